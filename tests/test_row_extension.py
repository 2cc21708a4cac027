"""A few rows that are extended, replaced, joined or given a shared start are what they would be in a state of their own."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from mintjax.cache import fork, init_state, take_rows
from mintjax.extension import extend
from mintjax.renderers import to_segment
from mintjax.row_extension import extend_rows, join_rows, put_row, share_start
from tests.tiny import CONFIG, tiny_policy

EXACT = 1e-5  # float32: the same products in batches of another size
CAPACITY = 128


@pytest.fixture(scope="module")
def policy():
    return tiny_policy(config=replace(CONFIG, num_layers=1))


@pytest.fixture(scope="module")
def state(policy):
    """Four rows, the third of them empty."""
    ids = np.random.default_rng(0).integers(0, 61, (4, 20))
    rows = [ids[0], ids[1, :7], [], ids[3, :12]]
    return extend(policy, to_segment(rows), init_state(policy, 4, CAPACITY))


def copied(state):
    return take_rows(state, range(state.length.size))


def assert_rows_equal(got, want):
    """The same lengths, hidden states, and keys and values of the real tokens."""
    np.testing.assert_array_equal(got.length, want.length)
    np.testing.assert_allclose(got.hidden, want.hidden, atol=EXACT)
    np.testing.assert_array_equal(got.overflow, want.overflow)
    pairs = zip(jax.tree.leaves(got.buffers), jax.tree.leaves(want.buffers), strict=True)
    for a, b in (map(np.asarray, pair) for pair in pairs):
        for row, length in enumerate(np.asarray(want.length)):
            np.testing.assert_allclose(a[row, :, :length], b[row, :, :length], atol=EXACT)


def test_rows_that_are_extended_alone_are_those_extended_with_all(policy, state):
    news = [[], [5, 6, 7], [8, 9], []]
    want = extend(policy, to_segment(news), state)
    some = to_segment([news[2], [1, 2], news[1]])
    got = extend_rows(policy, some, copied(state), np.array([2, 4, 1], np.int32))
    assert_rows_equal(got, want)


def test_what_has_no_room_is_flagged_and_moves_nothing_else(policy, state):
    """The second row has two slots left for three tokens; the padding of the segment belongs nowhere."""
    ones = jax.tree.map(np.ones_like, state.buffers)
    full = copied(state).replace(buffers=ones, length=np.array([20, 126, 128, 128], np.int32))
    some = to_segment([[8], [1, 2], [5, 6, 7]])
    got = extend_rows(policy, some, full, np.array([0, 4, 1], np.int32))
    assert np.asarray(got.overflow).tolist() == [False, True, False, False]
    assert np.asarray(got.length).tolist() == [21, 128, 128, 128]
    for buffer in map(np.asarray, jax.tree.leaves(got.buffers)):
        changed = {(row, slot) for row, _, slot, _ in zip(*np.nonzero(buffer != 1), strict=True)}
        assert changed == {(0, 20), (1, 126), (1, 127)}


def test_the_work_is_that_of_the_rows_that_are_extended(policy):
    def flops(rows):
        shapes = jax.eval_shape(lambda: init_state(policy, 32, CAPACITY))
        segment = to_segment([[1]] * rows)
        run = extend_rows if rows < 32 else jax.jit(lambda p, s, x, _: extend(p, s, x))
        lowered = run.lower(policy, segment, shapes, np.arange(rows, dtype=np.int32))
        return lowered.cost_analysis()["flops"]

    assert flops(2) < flops(32) / 8


def test_a_row_gets_another_conversation(policy, state):
    one = extend(policy, to_segment([[3, 1, 4]]), init_state(policy, 1, 64))
    got = put_row(copied(state), 0, one)
    assert_rows_equal(take_rows(got, [0]), one)
    assert_rows_equal(take_rows(got, [1, 2, 3]), take_rows(state, [1, 2, 3]))


def test_rows_with_a_shared_start_are_a_fork(policy):
    start = extend(policy, to_segment([[3, 1, 4, 1, 5]]), init_state(policy, 1, CAPACITY))
    news = [[9, 2], [], [6, 5, 3]]
    want = extend(policy, to_segment(news), fork(start, 3, CAPACITY))
    rows = [extend(policy, to_segment([new]), take_rows(start, [0])) for new in news if new]
    empty = init_state(policy, 1, CAPACITY)
    got = share_start(join_rows([rows[0], empty, rows[1]]), start)
    assert got.prefix is not None and got.prefix.length.size == 1
    lived = [0, 2]  # the second never began: it has no hidden state, and no token of its own either
    assert_rows_equal(
        take_rows(got, lived).replace(prefix=None), take_rows(want, lived).replace(prefix=None)
    )
    assert np.asarray(got.position).tolist() == [7, 5, 8] == np.asarray(want.position).tolist()
