"""The backward walk over a rollout's own cache gives the gradient that every other plan gives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.cache import ContextOverflowError, bucket, init_state, take_rows
from mintjax.train.gradients import gradients
from mintjax.train.losses import ImportanceSampling, Ppo
from mintjax.train.plan import Plan
from mintjax.train.reverse_only import StaleCacheError
from tests.naive import naive_logprobs
from tests.tiny import fed, random_batch, relative_difference, tiny_policy

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}  # of ‖g₁ - g₂‖ / ‖g₂‖, the worst leaf
LENGTHS, SIZE = [90, 0, 41], 90
PLAN = Plan("reverse_only", segment=32)


def played(policy, batch):
    """The cache as turns of uneven length leave it."""
    state = init_state(policy, len(batch.length), bucket(SIZE))
    return fed(policy, state, batch, [turn - 4 * np.arange(3) for turn in (25, 50, 40)])


@pytest.fixture(
    scope="module",
    params=[pytest.param(np.float32, marks=pytest.mark.wide), np.float64],
    ids=["f32", "f64"],
)
def case(request):
    dtype = request.param
    with jax.enable_x64(dtype == np.float64):
        policy, batch = tiny_policy(dtype), random_batch(LENGTHS, SIZE, dtype=dtype)
        yield dtype, policy, batch, played(policy, batch)


def test_it_equals_a_naive_gradient_and_the_other_plans(case):
    dtype, policy, batch, state = case

    def total(adapter):
        score = partial(
            naive_logprobs,
            policy.replace(adapter=adapter),
            temperature=float(batch.temperature),
            xp=jnp,
        )
        value = 0.0
        for row in np.flatnonzero(batch.length):
            n = batch.length[row]
            ratio = jnp.exp(score(batch.tokens[row, :n]) - batch.logprobs[row, 1:n])
            value -= jnp.sum(batch.mask[row, 1:n] * batch.advantages[row, 1:n] * ratio)
        return value

    value, reference = jax.jit(jax.value_and_grad(total))(policy.adapter)
    for plan in (PLAN, Plan("reverse_only", segment=32, remat=True)):
        grads, metrics = gradients(policy, batch, ImportanceSampling(), plan, state)
        assert relative_difference(grads, reference) < TOLERANCE[dtype]
        assert abs(metrics.loss - value) < TOLERANCE[dtype] * abs(value)
    segments = gradients(policy, batch, ImportanceSampling(), Plan("segments", segment=32))[1]
    np.testing.assert_allclose(
        metrics.logprobs, segments.logprobs, rtol=0, atol=10 * TOLERANCE[dtype]
    )


def test_rows_can_be_taken_apart(case):
    dtype, policy, batch, state = case
    whole = gradients(policy, batch, Ppo(), PLAN, state)[0]
    parts = []
    for rows in ([0, 1], [2, 1]):
        some = jax.tree.map(lambda x, rows=rows: x[rows] if x.ndim else x, batch)
        parts.append(gradients(policy, some, Ppo(), PLAN, take_rows(state, np.array(rows)))[0])
    total = jax.tree.map(jnp.add, *parts)
    assert relative_difference(total, whole) < TOLERANCE[dtype]


def test_a_cache_of_another_policy_or_of_other_streams_is_refused():
    policy, batch = tiny_policy(), random_batch(LENGTHS, SIZE)
    state = init_state(policy, 3, SIZE).replace(length=jnp.array(LENGTHS))
    updated = policy.replace(version=policy.version + 1)
    with pytest.raises(StaleCacheError, match=r"version 0 of the policy, which is at 1 now"):
        gradients(updated, batch, Ppo(), PLAN, state)
    with pytest.raises(ValueError, match="expected 3 rows as the batch has, got 2"):
        gradients(policy, batch, Ppo(), PLAN, take_rows(state, np.array([0, 1])))
    with pytest.raises(ValueError, match=r"rows \[2\] hold \[40\] tokens, .* have \[41\]"):
        gradients(policy, batch, Ppo(), PLAN, state.replace(length=jnp.array([90, 0, 40])))
    full = state.replace(overflow=jnp.array([True, False, False]))
    with pytest.raises(ContextOverflowError, match=r"rows \[0\]"):
        gradients(policy, batch, Ppo(), PLAN, full)
    with pytest.raises(ValueError, match="state: the plan 'reverse_only' walks the cache"):
        gradients(policy, batch, Ppo(), PLAN)
