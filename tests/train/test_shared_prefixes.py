"""What rows begin with alike is run once, and its gradient is the sum over the rows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mintjax.attention
import mintjax.segment_attention
from mintjax.adapters import LoraConfig
from mintjax.cache import bucket, fork, init_state
from mintjax.extension import extend
from mintjax.train.gradients import gradients
from mintjax.train.losses import ImportanceSampling
from mintjax.train.plan import Plan
from mintjax.train.plan_arguments import plan_arguments
from mintjax.train.shared_prefixes import find_levels, levels_of
from mintjax.types import Segment
from tests.naive import naive_logprobs
from tests.tiny import fed, random_batch, relative_difference, tiny_policy

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}  # of ‖g₁ - g₂‖ / ‖g₂‖, the worst leaf
SIZE = 72
# A group of four with a prompt of 30 tokens, of which each two go on alike to token 50; a group of three with 20.
LENGTHS, PROMPT, BRANCH, OTHER = [72, 61, 50, 66, 40, 0, 33, 31], 30, 50, 20


def branching_batch(dtype=np.float32):
    """Rows that share their beginnings, with trained tokens on both sides of every place where they part."""
    batch = random_batch(LENGTHS, SIZE, dtype=dtype)
    tokens = batch.tokens.copy()
    tokens[1:4, :PROMPT] = tokens[0, :PROMPT]
    tokens[1, :BRANCH] = tokens[0, :BRANCH]
    tokens[3, :BRANCH] = tokens[2, :BRANCH]
    tokens[6:, :OTHER] = tokens[4, :OTHER]
    mask = batch.mask.copy()
    for row, column in ((0, PROMPT), (1, BRANCH), (3, BRANCH), (4, OTHER), (7, OTHER), (2, 7)):
        mask[row, column] = 1
    return batch._replace(tokens=tokens, mask=mask)


def naive_gradient(policy, batch):
    def total(adapter):
        score = partial(
            naive_logprobs,
            policy.replace(adapter=adapter),
            temperature=float(batch.temperature),
            xp=jnp,
        )
        # What stands behind a row's end is seen by no token before it.
        ratio = jnp.exp(jax.lax.map(score, jnp.asarray(batch.tokens)) - batch.logprobs[:, 1:])
        return -jnp.sum(batch.mask[:, 1:] * batch.advantages[:, 1:] * ratio)

    return jax.jit(jax.value_and_grad(total))(policy.adapter)


def played(policy, batch):
    """The cache of the two groups as a rollout leaves it: prompts once, then what each row says after them."""
    ends = np.array([PROMPT, OTHER])
    tokens = np.zeros((2, 32), np.int32)
    for group, end in enumerate(ends):
        tokens[group, :end] = batch.tokens[4 * group, :end]
    state = extend(policy, Segment(tokens, ends.astype(np.int32)), init_state(policy, 2, 64))
    state = fork(state, fan=4, capacity=bucket(SIZE))
    return fed(policy, state, batch, [np.full(8, turn) for turn in (25, 40)])


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((np.float32, None), marks=pytest.mark.wide),
        (np.float64, None),
        (np.float64, LoraConfig(rank=3, alpha=6.0)),
    ],
    ids=["f32", "f64", "f64, frozen head"],
)
def case(request):
    dtype, lora = request.param
    with jax.enable_x64(dtype == np.float64):
        policy, batch = tiny_policy(dtype, lora=lora), branching_batch(dtype)
        yield dtype, policy, batch, *naive_gradient(policy, batch)


def test_shared_segments_equal_a_naive_gradient(case):
    dtype, policy, batch, value, reference = case
    plan = Plan("segments", segment=4, remat=dtype == np.float32)
    levels, _ = plan_arguments(batch, plan)
    assert [level.tokens.shape[1:] for level in levels] == [(2, 16), (4, 8), (8, 4)]
    grads, metrics = gradients(policy, batch, ImportanceSampling(), plan)
    assert relative_difference(grads, reference) < TOLERANCE[dtype]
    assert abs(metrics.loss - value) < TOLERANCE[dtype] * abs(value)
    assert (np.isfinite(metrics.logprobs) == (batch.mask > 0)).all()


def test_the_walk_over_a_rollouts_shared_prompts_equals_it_too(case):
    dtype, policy, batch, value, reference = case
    state = played(policy, batch)
    grads, metrics = gradients(
        policy, batch, ImportanceSampling(), Plan("reverse_only", segment=16), state
    )
    assert relative_difference(grads, reference) < TOLERANCE[dtype]
    assert abs(metrics.loss - value) < TOLERANCE[dtype] * abs(value)


def test_comparison_sees_a_prefix_that_one_row_alone_pulls_at(monkeypatch):
    policy, batch = tiny_policy(), random_batch([40, 33], 40)
    batch.tokens[1, :25] = batch.tokens[0, :25]
    reference, want = gradients(policy, batch, ImportanceSampling(), Plan("packed"))
    backward = mintjax.attention.attend_backward

    def first_row_alone(q, k, v, spans, attended, d_out, d_spans, **options):
        """The gradient of a shared span is taken from the first of its rows."""
        whole = backward(q, k, v, spans, attended, d_out, d_spans, **options)
        found = []
        for place, span in enumerate(spans):
            fan = q.shape[0] // span.length.size
            first = (jnp.arange(q.shape[0]) % fan == 0)[:, None, None, None, None]
            alone = backward(q, k, v, spans, attended, d_out * first, d_spans, **options)
            found.append(alone.spans[place])
        return whole._replace(spans=tuple(found))

    monkeypatch.setattr(mintjax.segment_attention, "attend_backward", first_row_alone)
    mintjax.train.gradients._gradients.clear_cache()
    plan = Plan("segments", segment=4)
    grads, metrics = gradients(policy, batch, ImportanceSampling(), plan)
    mintjax.train.gradients._gradients.clear_cache()
    np.testing.assert_allclose(metrics.logprobs, want.logprobs, rtol=0, atol=TOLERANCE[np.float32])
    assert relative_difference(grads, reference) > 1e-2


def ends(levels):
    return [(level.fan, level.start.tolist(), level.end.tolist()) for level in levels]


def test_levels_are_what_blocks_of_rows_share():
    batch = branching_batch()
    assert ends(find_levels(batch.tokens, batch.length, 10)) == [
        (4, [0, 0], [PROMPT, OTHER]),
        (2, [PROMPT, PROMPT, OTHER, OTHER], [50, 50, 40, OTHER]),
        (1, [50, 50, 50, 50, 40, 0, OTHER, OTHER], LENGTHS),
    ]


def test_rows_that_share_too_little_are_one_level():
    batch = random_batch([40, 40, 40, 40], 40)
    batch.tokens[:, :3] = 5
    assert ends(find_levels(batch.tokens, batch.length, 8)) == [(1, [0] * 4, [40] * 4)]
    assert find_levels(batch.tokens, batch.length, 8)[0].segment == 8
    batch.tokens[:, :30] = 5
    assert len(find_levels(batch.tokens, batch.length, 8)) == 2
    assert len(find_levels(batch.tokens, batch.length, 8, share=False)) == 1


def test_rows_that_do_not_share_what_their_cache_does_are_refused():
    policy, batch = tiny_policy(), branching_batch()
    state = init_state(policy, 2, 64).replace(length=jnp.array([PROMPT, OTHER]))
    state = fork(state, fan=4, capacity=SIZE)
    assert [level.fan for level in levels_of(state, batch.tokens, batch.length, 16)] == [4, 1]
    # Of a block of which one row has tokens nothing can differ.
    lone = np.where(np.arange(8) == 1, batch.length, 0)
    assert levels_of(state, batch.tokens, lone, 16)[0].end.tolist() == [PROMPT, 0]
    batch.tokens[2, 3] += 1
    with pytest.raises(ValueError, match=r"state: rows \[0, 1, 2, 3\] share \[30, 30, 30, 30\]"):
        levels_of(state, batch.tokens, batch.length, 16)
