"""Losses against their formulas in float64, and every gradient against a finite difference."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.train.corrections import Corrected, Masked, Truncated
from mintjax.train.gradients import gradients
from mintjax.train.losses import (
    Cispo,
    CrossEntropy,
    Dro,
    Gspo,
    ImportanceSampling,
    Loss,
    LossInputs,
    Ppo,
    masked_sum,
)
from mintjax.train.plan import Plan
from tests.tiny import random_batch, relative_difference, tiny_policy

TERM_TOLERANCE = 1e-12  # relative, of a formula in float64
SLOPE_TOLERANCE = 1e-6  # relative, of a central difference in float64
SAME_TOLERANCE = 1e-10  # relative, of one float64 gradient by two ways
STEP = 1e-5


def clipped(ratio, a, low, high):
    return np.minimum(ratio * a, np.clip(ratio, low, high) * a)


def dual(ratio, a):
    return np.where(
        a < 0, np.maximum(clipped(ratio, a, 0.7, 1.3), 1.5 * a), clipped(ratio, a, 0.7, 1.3)
    )


def row_product(lp, q, row, mean):
    """exp of the mean, or the sum, of the log ratios of each token's row."""
    rows = {r: [x - y for x, y, s in zip(lp, q, row, strict=True) if s == r] for r in set(row)}
    total = {r: sum(logs) / (len(logs) if mean else 1) for r, logs in rows.items()}
    return np.exp([total[r] for r in row])


# Terms of log probabilities, the same held fixed, weights, advantages, the sampler's, shares, and each token's row.
LOSSES = {
    "cross_entropy": (CrossEntropy(), lambda lp, sg, w, a, q, n, row: -w * lp),
    "importance_sampling": (
        ImportanceSampling(),
        lambda lp, sg, w, a, q, n, row: -np.exp(lp - q) * a,
    ),
    "ppo": (
        Ppo(0.7, 1.3),
        lambda lp, sg, w, a, q, n, row: -clipped(np.exp(lp - q), a, 0.7, 1.3),
    ),
    "ppo, dual clip": (
        Ppo(0.7, 1.3, 1.5),
        lambda lp, sg, w, a, q, n, row: -dual(np.exp(lp - q), a),
    ),
    "cispo": (
        Cispo(0.7, 1.3),
        lambda lp, sg, w, a, q, n, row: -np.clip(np.exp(sg - q), 0.7, 1.3) * lp * a,
    ),
    "gspo": (
        Gspo(0.9, 1.1),
        lambda lp, sg, w, a, q, n, row: (
            -clipped(row_product(sg, q, row, mean=True) * np.exp(lp - sg), a, 0.9, 1.1)
        ),
    ),
    "dro": (Dro(0.3), lambda lp, sg, w, a, q, n, row: -(lp * a - 0.15 * n * (lp - q) ** 2)),
    "truncated": (
        Corrected(Ppo(), Truncated("token", 1.2)),
        lambda lp, sg, w, a, q, n, row: -np.minimum(np.exp(sg - q), 1.2) * np.exp(lp - sg) * a,
    ),
    "truncated rows": (
        Corrected(Gspo(), Truncated("sequence", 1.2)),
        lambda lp, sg, w, a, q, n, row: (
            -np.minimum(row_product(sg, q, row, mean=False), 1.2) * np.exp(lp - sg) * a
        ),
    ),
    "masked": (
        Corrected(CrossEntropy(), Masked("token", 0.8, 1.2)),
        lambda lp, sg, w, a, q, n, row: (
            -np.where(abs(np.exp(sg - q) - 1) <= 0.2, np.exp(sg - q), 0) * w * lp
        ),
    ),
    "masked rows": (
        Corrected(ImportanceSampling(), Masked("sequence", 0.5, 1.5)),
        lambda lp, sg, w, a, q, n, row: (
            -np.where(
                abs(row_product(sg, q, row, mean=False) - 1) <= 0.5,
                row_product(sg, q, row, mean=False),
                0,
            )
            * np.exp(lp - sg)
            * a
        ),
    ),
}
TOKENS, ROWS = 60, 12


def numbers(seed=0):
    """Tokens of some rows, in any order, of which the last twenty do not count."""
    rng = np.random.default_rng(seed)
    row = rng.permutation(np.arange(TOKENS) % ROWS)
    q = rng.uniform(-5, -1, TOKENS)
    lp = q + 0.3 * rng.standard_normal(TOKENS)
    w, a = rng.standard_normal((2, TOKENS))
    return lp, w, a, q, rng.uniform(0.5, 1, TOKENS), row


def inputs_of(w, a, q, n, row, mask):
    return LossInputs(*map(jnp.asarray, (mask, w, a, q, n)), row=jnp.asarray(row))


COUNT = TOKENS - 20
MASK = (np.arange(TOKENS) < COUNT).astype(np.float64)


def test_every_loss_is_among_those_tested():
    tested = {type(getattr(loss, "loss", loss)) for loss, _ in LOSSES.values()}
    shipped = {x for x in Loss.get_known_choices().values() if x.__module__.startswith("mintjax.")}
    assert tested == shipped


@pytest.mark.parametrize(("loss", "formula"), LOSSES.values(), ids=LOSSES.keys())
def test_terms_are_those_of_the_definition_and_the_gradient_is_their_slope(loss, formula):
    lp, *rest = numbers()
    counted = [x[:COUNT] for x in rest]
    with jax.enable_x64(True):
        inputs = inputs_of(*rest, MASK)
        got = loss(jnp.asarray(lp), inputs)[:COUNT]
        grads = jax.grad(lambda x: masked_sum(loss, x, inputs))(jnp.asarray(lp))
    want = formula(lp[:COUNT], lp[:COUNT], *counted)
    np.testing.assert_allclose(got, want, rtol=TERM_TOLERANCE)
    step = STEP * np.eye(COUNT)
    slopes = [
        (
            formula(lp[:COUNT] + h, lp[:COUNT], *counted).sum()
            - formula(lp[:COUNT] - h, lp[:COUNT], *counted).sum()
        )
        / (2 * STEP)
        for h in step
    ]
    np.testing.assert_allclose(grads[:COUNT], slopes, rtol=SLOPE_TOLERANCE, atol=SLOPE_TOLERANCE)
    assert not grads[COUNT:].any()
    # A bound that nothing meets, or everything, would be a formula without one.
    assert 0 < np.count_nonzero(grads) <= COUNT


def test_gspo_of_one_advantage_a_row_is_the_papers_sequence_form():
    lp, w, _, q, n, row = numbers()
    by_row = np.random.default_rng(3).standard_normal(ROWS)
    mask = np.ones(TOKENS)

    def papers(lp):
        total = 0.0
        for r in range(ROWS):
            s = np.exp(np.mean((lp - q)[row == r]))
            # One term a sequence; the sum over its tokens counts it as often as it has tokens.
            total -= np.count_nonzero(row == r) * clipped(s, by_row[r], 0.9, 1.1)
        return total

    with jax.enable_x64(True):
        inputs = inputs_of(w, by_row[row], q, n, row, mask)
        value, grads = jax.value_and_grad(lambda x: masked_sum(Gspo(0.9, 1.1), x, inputs))(
            jnp.asarray(lp)
        )
    assert float(value) == pytest.approx(papers(lp), rel=TERM_TOLERANCE)
    slopes = [(papers(lp + STEP * h) - papers(lp - STEP * h)) / (2 * STEP) for h in np.eye(TOKENS)]
    np.testing.assert_allclose(grads, slopes, rtol=SLOPE_TOLERANCE, atol=SLOPE_TOLERANCE)


@dataclass(frozen=True)
class Silent(Loss):
    """Says nothing of itself."""

    def __call__(self, logprobs, inputs):
        return -inputs.advantages * logprobs + jnp.square(logprobs)


@pytest.mark.parametrize(
    "loss", [*(loss for loss, _ in LOSSES.values()), Silent()], ids=[*LOSSES, "silent"]
)
def test_which_losses_a_divisor_of_the_advantages_divides(loss):
    lp, w, a, q, n, row = numbers(1)
    whole, quarter = (
        loss(jnp.asarray(lp), inputs_of(w / k, a / k, q, n / k, row, MASK)) for k in (1, 4)
    )
    same = np.allclose(quarter, whole / 4, rtol=TERM_TOLERANCE, atol=0)
    assert same == loss.scales_with_advantages


@pytest.mark.parametrize("loss", [loss for loss, _ in LOSSES.values()], ids=LOSSES.keys())
def test_which_losses_need_whole_rows(loss):
    lp, *rest = numbers(1)
    inputs = inputs_of(*rest, MASK)._replace(row=None)
    if loss.whole_rows:
        with pytest.raises(ValueError, match=r"inputs.row: None, .* 'segments' or 'packed'"):
            loss(jnp.asarray(lp), inputs)
    else:
        assert np.isfinite(loss(jnp.asarray(lp), inputs)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gspo(1.1), "loss.ratio_min: expected a ratio from 0 to 1, got 1.1"),
        (lambda: Cispo(-0.1), "loss.ratio_min: expected a ratio of at least 0"),
        (lambda: Cispo(2.0, 1.0), r"loss.ratio_max: expected at least 2.0 \(loss.ratio_min\)"),
        (lambda: Truncated(ratio_max=0.9), "correction.ratio_max: expected a ratio of at least 1"),
        (lambda: Masked(ratio_min=1.1), "correction.ratio_min: expected a ratio from 0 to 1"),
        (lambda: Masked(ratio_max=0.5), "correction.ratio_max: expected a ratio of at least 1"),
    ],
)
def test_bounds_that_a_fresh_policy_would_not_meet_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def slope(policy, batch, loss, plan, direction):
    """The loss's derivative along a direction, by a central difference of the loss alone."""

    def value(size):
        adapter = jax.tree.map(lambda x, d: x + size * d, policy.adapter, direction)
        return float(gradients(policy.replace(adapter=adapter), batch, loss, plan)[1].loss)

    return (value(STEP) - value(-STEP)) / (2 * STEP)


# CISPO's gradient is no slope of its value, by design: it has a test of its own.
SMOOTH = ["cross_entropy", "importance_sampling", "ppo", "dro"]


@pytest.mark.parametrize(
    ("name", "plan"),
    [*((name, Plan()) for name in SMOOTH), ("ppo", Plan("segments", segment=24))],
    ids=[*SMOOTH, "ppo, segments"],
)
def test_gradient_is_the_slope_of_the_loss(name, plan):
    loss, _ = LOSSES[name]
    with jax.enable_x64(True):
        policy, batch = tiny_policy(np.float64), near(random_batch([40, 33], 40, dtype=np.float64))
        grads, _ = gradients(policy, batch, loss, plan)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        direction = jax.tree.map(lambda g: g / norm, grads)
        assert slope(policy, batch, loss, plan, direction) == pytest.approx(
            float(norm), rel=SLOPE_TOLERANCE
        )


def near(batch):
    """The batch with ratios near 1, some past either bound, none so close to one that the step crosses it."""
    _, found = gradients(tiny_policy(np.float64), batch, CrossEntropy())
    shift = np.random.default_rng(1).choice([-0.5, -0.1, 0.1, 0.5], batch.mask.shape)
    logprobs = np.where(batch.mask > 0, np.nan_to_num(found.logprobs) + shift, 0)
    return batch._replace(logprobs=logprobs)


def test_cispo_has_the_gradient_of_reinforce_with_its_ratios_held():
    with jax.enable_x64(True):
        policy, batch = tiny_policy(np.float64), random_batch([40, 33], 40, dtype=np.float64)
        _, found = gradients(policy, batch, CrossEntropy())
        now, batch = np.nan_to_num(found.logprobs), near(batch)
        grads, _ = gradients(policy, batch, Cispo(0.7, 1.3))
        held = np.clip(np.exp(now - batch.logprobs), 0.7, 1.3) * batch.advantages
        want, _ = gradients(policy, batch._replace(weights=held), CrossEntropy())
        assert relative_difference(grads, want) < SLOPE_TOLERANCE


@dataclass(frozen=True)
class All(Loss):
    """The sum of some losses, so that one program tells of all."""

    losses: tuple[Loss, ...]

    def __call__(self, logprobs, inputs):
        return sum(loss(logprobs, inputs) for loss in self.losses)


def test_no_loss_depends_on_micro_batches_segments_or_the_order_of_rows():
    loss = All(tuple(loss for loss, _ in LOSSES.values()))
    with jax.enable_x64(True):
        policy = tiny_policy(np.float64)
        batch = near(random_batch([40, 33, 37, 21], 40, dtype=np.float64))
        batch = batch._replace(shares=batch.mask * 0.1)

        def rows(*places):
            """Some rows, and empty ones that make up their number."""
            kept = [*places] + [0] * (4 - len(places))
            here = np.arange(4) < len(places)
            return jax.tree.map(
                lambda x: (
                    (x[kept] * here.reshape(-1, *[1] * (x.ndim - 1))).astype(x.dtype)
                    if x.ndim
                    else x
                ),
                batch,
            )

        whole, metrics = gradients(policy, batch, loss)
        ways = {
            "micro-batches": [
                gradients(policy, rows(0, 3), loss),
                gradients(policy, rows(1, 2), loss),
            ],
            "order": [gradients(policy, rows(2, 0, 3, 1), loss)],
            "segments": [gradients(policy, batch, loss, Plan("segments", segment=24))],
        }
        for way, parts in ways.items():
            total = jax.tree.map(lambda *leaves: sum(leaves), *(grads for grads, _ in parts))
            assert relative_difference(total, whole) < SAME_TOLERANCE, way
            value = sum(float(found.loss) for _, found in parts)
            assert value == pytest.approx(float(metrics.loss), rel=SAME_TOLERANCE), way


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
