"""The trie, and the caches that are found with it, against a search through all that is held."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintjax.held_caches import HeldCaches
from mintjax.token_trie import TokenTrie

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=12)


def ids(tokens):
    return np.array(tokens, np.int32)


def common(a, b):
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@given(SEQUENCES, SEQUENCES, st.lists(st.integers(0, 2), max_size=7))
def test_it_finds_what_a_search_through_all_finds(inserted, removed, wanted):
    trie, held = TokenTrie(), {}
    for tokens in inserted:
        trie.insert(ids(tokens), tuple(tokens))
        held[tuple(tokens)] = True
    for tokens in removed:
        if held.pop(tuple(tokens), False):
            trie.remove(ids(tokens))
        else:
            with pytest.raises(KeyError, match=f"this sequence of {len(tokens)} tokens"):
                trie.remove(ids(tokens))
    longest = max((common(tokens, wanted) for tokens in held), default=0)
    found = trie.find(ids(wanted))
    assert (found.shared if found else 0) == longest
    if found:
        assert common(found.value, wanted) == longest and found.value in held
        exact = tuple(wanted[:longest])
        assert found.value == exact or exact not in held
    starts = sorted(tokens for tokens in held if tokens == tuple(wanted[: len(tokens)]))
    assert trie.starts(ids(wanted)) == sorted(starts, key=len)


def test_an_empty_sequence_is_refused():
    with pytest.raises(ValueError, match="ids: expected at least one token"):
        TokenTrie().insert(ids([]), 1)


@dataclass(frozen=True, eq=False)
class Cache:
    ids: np.ndarray
    bytes: int


def test_the_least_recently_used_goes_first_until_the_rest_fits():
    held = HeldCaches(limit=10)
    caches = [Cache(ids([first, 7]), 4) for first in range(3)]
    held.hold(caches[0])
    held.hold(caches[1])
    assert held.find(ids([0, 9])).value is caches[0]  # which counts as use
    held.hold(caches[2])
    assert (len(held), held.bytes, held.evicted) == (2, 8, 1)
    assert held.find(ids([1, 7])) is None
    again = Cache(ids([2, 7]), 5)
    held.hold(again)
    assert held.find(ids([2, 7])).value is again and held.bytes == 9
    held.take(again)
    with pytest.raises(KeyError):
        held.take(again)
    held.hold(Cache(ids([5]), 11))
    assert (len(held), held.evicted) == (0, 3)
