"""Losses against their formulas, and every gradient against a finite difference of its own loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.train.gradients import gradients
from mintjax.train.losses import (
    Cispo,
    CrossEntropy,
    Dro,
    ImportanceSampling,
    LossInputs,
    Ppo,
    scales_with_advantages,
)
from mintjax.train.plan import Plan
from tests.tiny import random_batch, relative_difference, tiny_policy

SLOPE_TOLERANCE = 1e-6  # relative, of a central difference in float64
STEP = 1e-5

LOSSES = {
    "cross_entropy": (CrossEntropy(), lambda lp, w, a, q: -w * lp),
    "importance_sampling": (ImportanceSampling(), lambda lp, w, a, q: -np.exp(lp - q) * a),
    "ppo": (
        Ppo(0.7, 1.3),
        lambda lp, w, a, q: -np.minimum(np.exp(lp - q) * a, np.clip(np.exp(lp - q), 0.7, 1.3) * a),
    ),
    "cispo": (Cispo(0.7, 1.3), lambda lp, w, a, q: -np.clip(np.exp(lp - q), 0.7, 1.3) * lp * a),
    "dro": (Dro(0.3), lambda lp, w, a, q: -(lp * a - 0.15 * (lp - q) ** 2)),
}

# CISPO's gradient is no slope of its value, by design: it has a test of its own.
SMOOTH = [name for name in LOSSES if name != "cispo"]


@pytest.mark.parametrize(("loss", "formula"), LOSSES.values(), ids=LOSSES.keys())
def test_terms_are_those_of_the_definition(loss, formula):
    rng = np.random.default_rng(0)
    logprobs, weights, advantages, sampler = rng.standard_normal((4, 100)).astype(np.float32)
    inputs = LossInputs(*map(jnp.asarray, (np.ones(100, np.float32), weights, advantages, sampler)))
    got = loss(jnp.asarray(logprobs), inputs)
    np.testing.assert_allclose(
        got, formula(logprobs, weights, advantages, sampler), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("loss", [loss for loss, _ in LOSSES.values()], ids=LOSSES.keys())
def test_which_losses_a_divisor_of_the_advantages_divides(loss):
    rng = np.random.default_rng(1)
    logprobs, weights, advantages, sampler = jnp.asarray(rng.standard_normal((4, 100)), np.float32)
    inputs = LossInputs(jnp.ones(100), weights, advantages, sampler)
    divided = inputs._replace(weights=weights / 4, advantages=advantages / 4)
    same = loss(logprobs, divided) == loss(logprobs, inputs) / 4
    assert same.all() == scales_with_advantages(loss)


def slope(policy, batch, loss, plan, direction):
    """The loss's derivative along a direction, by a central difference of the loss alone."""

    def value(size):
        adapter = jax.tree.map(lambda x, d: x + size * d, policy.adapter, direction)
        return float(gradients(policy.replace(adapter=adapter), batch, loss, plan)[1].loss)

    return (value(STEP) - value(-STEP)) / (2 * STEP)


@pytest.mark.parametrize(
    ("name", "plan"),
    [*((name, Plan()) for name in SMOOTH), ("ppo", Plan("segments", segment=24))],
    ids=[*SMOOTH, "ppo, segments"],
)
def test_gradient_is_the_slope_of_the_loss(name, plan):
    loss, _ = LOSSES[name]
    with jax.enable_x64(True):
        policy, batch = tiny_policy(np.float64), random_batch([40, 33], 40, dtype=np.float64)
        # Ratios near 1, some past either bound, none so close to one that the step crosses it.
        _, found = gradients(policy, batch, loss, plan)
        shift = np.random.default_rng(1).choice([-0.5, -0.1, 0.1, 0.5], batch.mask.shape)
        batch = batch._replace(
            logprobs=np.where(batch.mask > 0, np.nan_to_num(found.logprobs) + shift, 0)
        )
        grads, _ = gradients(policy, batch, loss, plan)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        direction = jax.tree.map(lambda g: g / norm, grads)
        assert slope(policy, batch, loss, plan, direction) == pytest.approx(
            float(norm), rel=SLOPE_TOLERANCE
        )


def test_cispo_has_the_gradient_of_reinforce_with_its_ratios_held():
    with jax.enable_x64(True):
        policy, batch = tiny_policy(np.float64), random_batch([40, 33], 40, dtype=np.float64)
        _, found = gradients(policy, batch, CrossEntropy())
        now = np.nan_to_num(found.logprobs)
        shift = np.random.default_rng(1).choice([-0.5, -0.1, 0.1, 0.5], batch.mask.shape)
        batch = batch._replace(logprobs=np.where(batch.mask > 0, now + shift, 0))
        grads, _ = gradients(policy, batch, Cispo(0.7, 1.3))
        held = np.clip(np.exp(now - batch.logprobs), 0.7, 1.3) * batch.advantages
        want, _ = gradients(policy, batch._replace(weights=held), CrossEntropy())
        assert relative_difference(grads, want) < SLOPE_TOLERANCE


def test_masked_tokens_add_nothing_whatever_stands_there():
    policy, batch = tiny_policy(), random_batch([40, 33], 40)
    padded = np.where(batch.mask > 0, batch.logprobs, -1e30).astype(np.float32)
    junk = batch._replace(
        logprobs=padded,
        advantages=batch.advantages + np.where(batch.mask > 0, 0, 1e30).astype(np.float32),
    )
    for loss in (ImportanceSampling(), Ppo()):
        (grads, found), (clean, want) = (
            gradients(policy, junk, loss),
            gradients(policy, batch, loss),
        )
        assert float(found.loss) == float(want.loss)
        assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), grads, clean)))
