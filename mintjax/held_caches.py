"""Caches that are kept within a bound of memory, found again by the tokens in them."""

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Int32

from mintjax.token_trie import Match, TokenTrie


@runtime_checkable
class Cached(Protocol):
    """A cache, as its keeper sees it."""

    @property
    def ids(self) -> np.ndarray:
        """The tokens in it, at least one."""
        ...

    @property
    def bytes(self) -> int:
        """What it takes."""
        ...


Kept = TypeVar("Kept", bound=Cached)


class HeldCaches(Generic[Kept]):
    """Caches by their tokens; where they take too much, the least recently used goes first.

    Attributes:
        limit: bytes that all caches together may take.
        evicted: caches dropped so far for want of room.

    Example:
        >>> held = HeldCaches(limit=2**30)
        >>> held.hold(conversation)
        >>> held.find(prompt).shared
        57
    """

    def __init__(self, limit: int) -> None:
        """Start with none."""
        self.limit, self.evicted = limit, 0
        self._trie: TokenTrie[Kept] = TokenTrie()
        self._by_use: OrderedDict[bytes, Kept] = OrderedDict()  # the most recently used last

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._by_use)

    @property
    def bytes(self) -> int:
        """What all caches take."""
        return sum(kept.bytes for kept in self._by_use.values())

    def find(self, ids: Int32[np.ndarray, " n"]) -> Match[Kept] | None:
        """The cache that shares the most tokens with ``ids``, which counts as its use; see :meth:`TokenTrie.find`.

        Example:
            >>> match = held.find(prompt)
        """
        found = self._trie.find(ids)
        if found is not None:
            self._by_use.move_to_end(found.value.ids.tobytes())
        return found

    def take(self, kept: Kept) -> None:
        """Gives a cache away: it is held no more.

        Raises:
            KeyError: where it is not held.

        Example:
            >>> held.take(match.value)
        """
        self._trie.remove(kept.ids)
        del self._by_use[kept.ids.tobytes()]

    def starts(self, ids: Int32[np.ndarray, " n"]) -> list[Kept]:
        """The caches whose tokens ``ids`` begins with.

        Example:
            >>> for old in held.starts(conversation.ids):
            ...     held.take(old)
        """
        return self._trie.starts(ids)

    def hold(self, kept: Kept) -> None:
        """Holds a cache, in the place of one of the same tokens; others go, and at last it itself, where room lacks.

        Example:
            >>> held.hold(conversation)
        """
        self._trie.insert(kept.ids, kept)
        self._by_use[kept.ids.tobytes()] = kept
        self._by_use.move_to_end(kept.ids.tobytes())
        while self._by_use and self.bytes > self.limit:
            self.take(next(iter(self._by_use.values())))
            self.evicted += 1
