"""Extending a state: turn by turn equals one pass, and a cache never lies about what it holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.attention import Span, attend
from mintjax.cache import (
    BLOCK,
    ContextOverflowError,
    bucket,
    check_overflow,
    grow,
    init_state,
    reserve,
    truncate,
)
from mintjax.extension import extend, forward, run_segment
from mintjax.generation import rewind
from mintjax.types import Segment
from tests.naive import naive_logprobs
from tests.tiny import CONFIG, tiny_policy

TOLERANCE = 1e-5
TURNS = np.array([[30, 7, 0], [40, 64, 33], [5, 1, 60], [14, 0, 22]])  # tokens a turn and row
SIZE = 64


@pytest.fixture(scope="module")
def policy():
    return tiny_policy()


@pytest.fixture(scope="module")
def streams():
    return (
        np.random.default_rng(0)
        .integers(0, CONFIG.vocab_size, (3, TURNS.sum(0).max()))
        .astype(np.int32)
    )


def segment(streams, start, length):
    tokens = np.zeros((len(streams), SIZE), np.int32)
    for row, (stream, first, count) in enumerate(zip(streams, start, length, strict=True)):
        tokens[row, :count] = stream[first : first + count]
    return Segment(tokens, np.asarray(length, np.int32))


def test_turn_by_turn_equals_one_pass(policy, streams):
    # 160 tokens of room: more than one block, so the cache is read in a loop as well.
    state, start = init_state(policy, 3, 5 * BLOCK), np.zeros(3, int)
    scored = [[], [], []]
    for length in TURNS:
        logprobs, state = forward(policy, segment(streams, start, length), state, temperature=0.7)
        assert np.isnan(np.asarray(logprobs)[np.arange(SIZE) >= length[:, None]]).all(), (
            "padding has no score"
        )
        for row in range(3):
            scored[row].append(np.asarray(logprobs)[row, : length[row]])
        start += length
        assert state.length.tolist() == start.tolist()
    for row, parts in enumerate(scored):
        got = np.concatenate(parts)
        assert np.isnan(got[0]), "nothing predicts a first token"
        want = naive_logprobs(policy, streams[row, : start[row]], 0.7)
        np.testing.assert_allclose(got[1:], want, rtol=0, atol=TOLERANCE)


def test_logits_of_long_rows_equal_the_naive_ones(policy):
    # More than four blocks: rows are attended to block by block.
    tokens = (
        np.random.default_rng(1).integers(0, CONFIG.vocab_size, (1, 5 * BLOCK - 7)).astype(np.int32)
    )
    table = np.asarray(policy.logits(tokens))[0]
    logprobs = table - np.logaddexp.reduce(table, -1, keepdims=True)
    got = logprobs[np.arange(tokens.size - 1), tokens[0, 1:]]
    np.testing.assert_allclose(got, naive_logprobs(policy, tokens[0]), rtol=0, atol=TOLERANCE)


def test_row_longer_than_the_context_is_refused(policy):
    with pytest.raises(ValueError, match="tiny has a context of 512 tokens, and a row has 513"):
        policy.logits(np.zeros((1, 513), np.int32))


def test_what_does_not_fit_is_flagged_and_not_written(policy, streams):
    state = extend(
        policy, segment(streams, np.zeros(3, int), [60, 7, 0]), init_state(policy, 3, BLOCK)
    )
    fuller = extend(policy, segment(streams, [60, 7, 0], [10, 10, 10]), state)
    assert fuller.overflow.tolist() == [True, False, False]
    assert fuller.length.tolist() == [64, 17, 10]
    for before, after in zip(
        jax.tree.leaves(state.buffers), jax.tree.leaves(fuller.buffers), strict=True
    ):
        assert (before[0, :, :60] == after[0, :, :60]).all(), (
            "a write that slid back would have overwritten these"
        )
    with pytest.raises(
        ContextOverflowError,
        match=r"rows \[0\] were given more tokens than the cache's capacity of 64",
    ):
        check_overflow(policy.config, fuller)


def test_reserve_moves_up_buckets_and_names_the_context(policy, streams):
    state = extend(
        policy, segment(streams, np.zeros(3, int), [60, 7, 0]), init_state(policy, 3, BLOCK)
    )
    assert reserve(policy.config, state, 4) is state
    assert reserve(policy.config, state, 5).capacity == 128
    assert reserve(policy.config, state, np.array([0, 50, 64])) is state, (
        "a row that takes nothing needs no room"
    )
    with pytest.raises(
        ContextOverflowError,
        match=r"a context of 512 tokens; 513 are needed \(60 in the cache and 453",
    ):
        reserve(policy.config, state, 453)
    with pytest.raises(ValueError, match="at least the present 64"):
        grow(state, 0)


def test_buckets_are_powers_of_two():
    assert [bucket(n) for n in (1, 64, 65, 128, 129, 300)] == [64, 64, 128, 128, 256, 512]


def test_a_grown_state_goes_on_alike(policy, streams):
    start = segment(streams, np.zeros(3, int), [30, 7, 0])
    more = segment(streams, [30, 7, 0], [40, 40, 33])
    small = extend(policy, start, init_state(policy, 3, 64))
    want, _ = forward(policy, more, extend(policy, start, init_state(policy, 3, 128)))
    got, _ = forward(policy, more, grow(small, 128))
    np.testing.assert_array_equal(got, want)


def test_rewound_state_equals_one_that_never_went_on(policy, streams):
    base = init_state(policy, 3, 128)
    kept = [20, 7, 1]
    want = extend(policy, segment(streams, np.zeros(3, int), kept), base)
    longer = extend(policy, segment(streams, np.zeros(3, int), [50, 7, 33]), base)
    cut = truncate(longer, jnp.array(kept))
    assert np.isnan(np.asarray(cut.hidden)).all(1).tolist() == [True, False, True], (
        "no stale hidden state is left"
    )
    last = np.array([streams[row, n - 1] for row, n in enumerate(kept)])
    again = rewind(policy, longer, jnp.array(kept), last)
    assert again.length.tolist() == kept
    np.testing.assert_allclose(again.hidden, want.hidden, rtol=0, atol=TOLERANCE)
    more = segment(streams, kept, [9, 9, 9])
    np.testing.assert_allclose(
        forward(policy, more, again)[0], forward(policy, more, want)[0], rtol=0, atol=TOLERANCE
    )


def test_attention_refuses_a_ragged_block():
    q, k = jnp.zeros((1, 1, 1, 4, 8)), jnp.zeros((1, 1, 4, 8))
    cache = jnp.zeros((1, 1, 300, 8))
    with pytest.raises(
        ValueError, match=r"capacity: expected a multiple of the block \(64\), got 300"
    ):
        attend(q, k, k, [Span(cache, cache, jnp.array([3]))])


def test_a_row_that_does_not_move_reads_nothing(policy, streams):
    state = extend(policy, segment(streams, [0] * 3, [60, 9, 9]), init_state(policy, 3, 5 * BLOCK))
    unreadable = state.replace(
        buffers=tuple((keys.at[0].set(jnp.nan), values) for keys, values in state.buffers)
    )
    hidden, after = run_segment(policy, Segment(streams[:, :1], np.array([0, 1, 1])), unreadable)
    assert np.isfinite(hidden).all()
    np.testing.assert_array_equal(after.hidden[0], state.hidden[0])


def test_the_first_segment_reads_no_buffer_of_its_own(policy, streams):
    empty = init_state(policy, 3, BLOCK)
    unreadable = empty.replace(
        buffers=tuple((keys, jnp.full_like(values, jnp.nan)) for keys, values in empty.buffers)
    )
    first = segment(streams, [0] * 3, [9, 5, 9])
    want, _ = run_segment(policy, first, empty)
    got, _ = run_segment(policy, first, unreadable, first=True)
    np.testing.assert_allclose(got[0], want[0], rtol=0, atol=TOLERANCE)
    assert np.isfinite(got).all()
