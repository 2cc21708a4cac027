"""Rows that go on from a prefix in the cache say what rows with a copy of it say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.cache import ContextOverflowError, fork, init_state, reserve, row_capacity, take_rows
from mintjax.decoding import DecodeParams
from mintjax.extension import extend, forward
from mintjax.generation import generate
from mintjax.types import Segment
from tests.tiny import CONFIG, tiny_policy

TOLERANCE = 1e-5  # of log probabilities
PROMPTS = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (2, 20)).astype(np.int32)
LENGTHS = np.array([20, 13], np.int32)
FAN = 3


@pytest.fixture(scope="module")
def states():
    policy = tiny_policy()
    prompts = extend(policy, Segment(PROMPTS, LENGTHS), init_state(policy, 2, 64))
    return policy, fork(prompts, FAN, 64), take_rows(prompts, np.repeat([0, 1], FAN))


def test_a_fork_stands_where_its_prefixes_end(states):
    _, forked, copied = states
    assert forked.position.tolist() == copied.length.tolist() == [20, 20, 20, 13, 13, 13]
    assert forked.length.tolist() == [0] * 6


def test_samples_and_their_log_probabilities_do_not_depend_on_sharing(states):
    policy, forked, copied = states
    params = DecodeParams(1.0, 0, 1.0, np.array([7]), np.array([9, 5, 0, 9, 9, 9]))
    keys = jax.random.split(jax.random.key(1), 6)
    shared, apart = (generate(policy, state, keys, params, buffer=9) for state in (forked, copied))
    for a, b in zip(shared.tokens, apart.tokens, strict=True):
        assert a.tolist() == b.tolist()
    more = Segment(np.tile(PROMPTS[:1, :5], (6, 1)), np.array([5, 0, 4, 5, 1, 5], np.int32))
    got, want = (forward(policy, more, out.state)[0] for out in (shared, apart))
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)
    assert shared.state.position.tolist() == apart.state.length.tolist()


def test_rows_of_a_fork_keep_a_prefix_that_blocks_of_them_share(states):
    policy, forked, copied = states
    segment = Segment(np.arange(6, dtype=np.int32)[:, None], np.ones(6, np.int32))
    forked, copied = (extend(policy, segment, state) for state in (forked, copied))
    for rows, prefixes in (([3, 4, 0, 1], 2), ([5, 0, 1, 2], 4)):
        some, same = take_rows(forked, np.array(rows)), take_rows(copied, np.array(rows))
        assert some.prefix.length.size == prefixes
        more = Segment(np.full((len(rows), 1), 9, np.int32), np.ones(len(rows), np.int32))
        got, want = (forward(policy, more, state)[0] for state in (some, same))
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)


def test_as_many_rows_share_a_prefix_as_are_wanted(states):
    _, forked, _ = states
    some = take_rows(forked, np.array([0, 1, 2, 0]), fan=2)
    assert some.prefix.length.tolist() == [20, 20] and some.position.tolist() == [20] * 4
    with pytest.raises(ValueError, match=r"fan: rows \[2, 3\] go on from the prefixes \[0, 1\]"):
        take_rows(forked, np.array([2, 3]), fan=2)


def test_a_rows_capacity_counts_what_it_shares(states):
    _, forked, copied = states
    assert (row_capacity(forked), row_capacity(copied)) == (20 + 64, 64)
    assert forked.cache_bytes == copied.cache_bytes + forked.prefix.cache_bytes
    assert copied.cache_bytes == 2 * len(copied.buffers) * copied.buffers[0][0].size * 4


def test_room_is_reserved_for_a_rows_own_tokens_within_the_context_of_all(states):
    policy, forked, _ = states
    assert reserve(policy.config, forked, 64) is forked
    assert reserve(policy.config, forked, 65).capacity == 128
    with pytest.raises(ContextOverflowError, match=r"513 are needed \(20 in the cache"):
        reserve(policy.config, forked, CONFIG.context - 19)


def test_overflow_of_a_row_is_its_own(states):
    policy, forked, _ = states
    full = forked.replace(length=jnp.array([64, 0, 0, 0, 0, 0]))
    segment = Segment(np.zeros((6, 1), np.int32), np.ones(6, np.int32))
    assert extend(policy, segment, full).overflow.tolist() == [True] + [False] * 5
