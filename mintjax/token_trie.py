"""Values under token sequences, found by the longest start that another sequence shares with one of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Int32

Value = TypeVar("Value")


class _Node(Generic[Value]):
    """A run of tokens after the node above, what follows it by its first token, and the value that ends here."""

    def __init__(self, edge: np.ndarray, above: "_Node[Value] | None") -> None:
        self.edge, self.above = edge, above
        self.below: dict[int, _Node[Value]] = {}
        self.value: Value | None = None


@dataclass(frozen=True)
class Match(Generic[Value]):
    """What :meth:`TokenTrie.find` found: a value, and how many tokens its sequence shares with the one asked for."""

    value: Value
    shared: int


class TokenTrie(Generic[Value]):
    """A map from token sequences to values that are not None.

    Runs of tokens where nothing branches are one node, so looking a sequence up takes as long as it has tokens, however
    many others are held.

    Example:
        >>> trie = TokenTrie()
        >>> trie.insert(np.array([1, 2, 3], np.int32), "a")
        >>> trie.find(np.array([1, 2, 9], np.int32))
        Match(value='a', shared=2)
    """

    def __init__(self) -> None:
        """Start empty."""
        self._root: _Node[Value] = _Node(np.zeros(0, np.int32), None)

    def find(self, ids: Int32[np.ndarray, " n"]) -> Match[Value] | None:
        """The value whose sequence shares the most tokens with ``ids``.

        Of several, one that ends where they part is preferred, and then the one that was inserted first.

        Args:
            ids: any sequence.

        Returns:
            None where not even the first token is shared.

        Example:
            >>> trie.find(prompt).shared
            57
        """
        path = list(self._path(ids))
        if not path:
            return None
        node, shared = path[-1][0], sum(end for _, end in path)
        while node.value is None:
            node = next(iter(node.below.values()))
        return Match(node.value, shared)

    def starts(self, ids: Int32[np.ndarray, " n"]) -> list[Value]:
        """The values whose whole sequences ``ids`` begins with, the shortest first.

        Example:
            >>> trie.starts(np.array([1, 2, 3, 4], np.int32))
            ['a']
        """
        return [
            node.value
            for node, end in self._path(ids)
            if node.value is not None and end == len(node.edge)
        ]

    def insert(self, ids: Int32[np.ndarray, " n"], value: Value) -> None:
        """Puts a value under a sequence, in the place of what was there.

        Raises:
            ValueError: where the sequence is empty.

        Example:
            >>> trie.insert(conversation.ids, conversation)
        """
        if not len(ids):
            raise ValueError("ids: expected at least one token, got none")
        node, shared = self._root, 0
        for node, end in self._path(ids):
            shared += end
            if end < len(node.edge):
                node = _split(node, end)
        if shared < len(ids):
            leaf: _Node[Value] = _Node(ids[shared:], node)
            node.below[int(ids[shared])] = leaf
            node = leaf
        node.value = value

    def remove(self, ids: Int32[np.ndarray, " n"]) -> None:
        """Forgets the value of a sequence.

        Raises:
            KeyError: where there is none.

        Example:
            >>> trie.remove(conversation.ids)
        """
        path = list(self._path(ids))
        shared = sum(end for _, end in path)
        node, end = path[-1] if path else (self._root, 0)
        if shared < len(ids) or end < len(node.edge) or node.value is None:
            raise KeyError(f"no value under this sequence of {len(ids)} tokens")
        node.value = None
        # Nodes that hold nothing go, and one that only leads on is joined with what it leads to.
        while node.value is None and node.above is not None:
            above = node.above
            if not node.below:
                del above.below[int(node.edge[0])]
            elif len(node.below) == 1:
                (only,) = node.below.values()
                only.edge, only.above = np.concatenate([node.edge, only.edge]), above
                above.below[int(only.edge[0])] = only
                return
            else:
                return
            node = above

    def _path(self, ids: np.ndarray) -> Iterator[tuple[_Node[Value], int]]:
        """The nodes below the root along a sequence, each with how many tokens of its run are shared."""
        node, place = self._root, 0
        while place < len(ids) and (found := node.below.get(int(ids[place]))) is not None:
            node = found
            size = min(len(node.edge), len(ids) - place)
            different = np.flatnonzero(node.edge[:size] != ids[place : place + size])
            end = int(different[0]) if different.size else size
            yield node, end
            if end < len(node.edge):
                return
            place += end


def _split(node: _Node[Value], place: int) -> _Node[Value]:
    """Cut a node's run in two; returns the new node, of the first part."""
    assert node.above is not None  # the root has no run to cut
    upper: _Node[Value] = _Node(node.edge[:place], node.above)
    node.above.below[int(node.edge[0])] = upper
    node.edge, node.above = node.edge[place:], upper
    upper.below[int(node.edge[0])] = node
    return upper
