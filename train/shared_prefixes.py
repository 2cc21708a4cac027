"""What consecutive rows of a batch begin with: found on the host, so that a plan runs it once.

Rows that stand next to each other and begin with the same tokens are cut into levels: what a block of rows shares, then
what smaller blocks share after it, and at last what each row has of its own. Blocks of a level are of one size, for the
shapes of a program are fixed.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Integer

from mintjax.cache import State, bucket

_WORTH = 7 / 8  # a level is another loop to compile; it must leave at most this share of the work
_LONGEST = 256  # tokens of a segment that is lengthened: attention within it is quadratic
_SHORTEST = 16  # tokens of one that is shortened


class Level(NamedTuple):
    """The columns of a batch's rows that one level runs; each of its R rows stands for the next ``fan`` of the batch.

    Attributes:
        fan: rows of the batch that share a row of the level.
        row: a row of the batch that holds the tokens.
        start: the first column of each row of the level.
        end: the column after its last.
        segment: tokens in a segment.
        columns: columns that there is room for in each row; another number of them is another program.
    """

    fan: int
    row: Int[np.ndarray, " R"]
    start: Int[np.ndarray, " R"]
    end: Int[np.ndarray, " R"]
    segment: int
    columns: int

    @property
    def longest(self) -> int:
        """Columns of the longest row."""
        return int((self.end - self.start).max())


def find_levels(
    tokens: Integer[np.ndarray, "B N"],
    length: Integer[np.ndarray, " B"],
    segment: int,
    *,
    share: bool = True,
) -> list[Level]:
    """The levels that leave the least to compute.

    Args:
        tokens: right-padded rows.
        length: real tokens of each; a row of length 0 goes with any others.
        segment: tokens in a segment of single rows. Where several share a row it is longer, so that a segment of the
            whole level is about as many tokens; and shorter where no row fills it.
        share: whether to look for what rows share at all.

    Returns:
        The levels, the one that most rows share first; the last has every row. One alone where rows share too little.

    Example:
        >>> levels = find_levels(tokens, length, segment=128)
        >>> [(level.fan, level.end.tolist()) for level in levels]
        [(4, [512]), (1, [576, 570, 540, 576])]
    """
    best = [_level(1, length, np.zeros_like(length), length, segment, tokens.shape[1])]
    if not share:
        return best
    shared = {fan: _shared(tokens, length, fan) for fan in _divisors(len(length)) if fan > 1}
    for fans in _chains(len(length)):
        levels, start = [], np.zeros_like(length)
        for fan in fans:
            # What a smaller block shares is at least what the larger one does.
            end = np.maximum(shared[fan], start) if fan > 1 else length
            levels.append(_fitted(_level(fan, end, start, length, segment)))
            start = end
        if len(levels) > 1 and _cost(levels) <= _WORTH ** (len(levels) - len(best)) * _cost(best):
            best = levels
    return best


def levels_of(
    state: State,
    tokens: Integer[np.ndarray, "B N"],
    length: Integer[np.ndarray, " B"],
    segment: int,
) -> list[Level]:
    """The levels in which a state holds a batch's rows.

    Args:
        state: the cache of these rows, and of the prefixes that they share.
        tokens: right-padded rows.
        length: real tokens of each.
        segment: as for :func:`find_levels`.

    Raises:
        ValueError: where rows that share a prefix in the cache do not begin with the same tokens.

    Example:
        >>> [level.fan for level in levels_of(fork(prompt, 4, 64), tokens, length, 128)]
        [4, 1]
    """
    levels, start = [], np.zeros_like(length)
    for link in state.lineage:
        position = np.asarray(link.position)
        fan = len(length) // len(position)
        end = length if fan == 1 else np.where(length > 0, position.repeat(fan), 0)
        together = (length.reshape(-1, fan) > 0).sum(1).repeat(fan) > 1
        wrong = together & np.less(_shared(tokens, length, fan), end)
        if wrong.any():
            raise ValueError(
                f"state: rows {np.flatnonzero(wrong).tolist()} share {end[wrong].tolist()} tokens with others in the "
                f"cache, but not in the batch; pass the state of these very episodes, in their order"
            )
        level = _level(fan, end, start, length, segment)
        # The rows themselves differ in length from batch to batch. What their cache has room for does not.
        own = level._replace(segment=min(segment, link.capacity), columns=link.capacity)
        levels.append(own if link is state else _fitted(level))
        start = end
    return levels


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]


def _chains(count: int) -> Iterator[tuple[int, ...]]:
    """Sizes of ever smaller blocks, each cutting the one before it evenly, down to single rows; the short ones first."""
    chains: list[tuple[int, ...]] = [(1,)]
    while chains:
        yield from chains
        chains = [
            (fan, *chain)
            for chain in chains
            for fan in _divisors(count)
            if fan > chain[0] and fan % chain[0] == 0
        ]


def _shared(tokens: np.ndarray, length: np.ndarray, fan: int) -> np.ndarray:
    """How many first tokens each row shares with the others of its block; 0 in an empty row.

    A row that is alone in its block shares as much as the longest of the other blocks do, so that it does not hold them up.
    """
    size = tokens.shape[1]
    blocks = tokens.reshape(-1, fan, size)
    real = np.arange(size) < length.reshape(-1, fan, 1)
    some = np.greater(length.reshape(-1, fan), 0)
    first = np.expand_dims(some.argmax(1), (1, 2))
    same = np.equal(blocks, np.take_along_axis(blocks, first, 1)) & real
    same = np.where(np.expand_dims(some, 2), same, True)
    shared = np.cumprod(same.all(1) & some.any(1, keepdims=True), axis=1).sum(1)
    together = some.sum(1) > 1
    most = shared[together].max(initial=0)
    shared = np.where(together, shared, np.minimum(shared, most))
    return np.where(length > 0, shared.repeat(fan), 0)


def _level(
    fan: int,
    end: np.ndarray,
    start: np.ndarray,
    length: np.ndarray,
    segment: int,
    columns: int | None = None,
) -> Level:
    """The level of blocks of ``fan`` rows, of what stands from ``start`` to ``end`` in every row of the batch."""
    some = np.greater(length.reshape(-1, fan), 0)
    row = np.arange(0, end.size, fan) + some.argmax(1)
    longest = int((end[row] - start[row]).max())
    return Level(fan, row, start[row], end[row], segment, columns or bucket(longest))


def _fitted(level: Level) -> Level:
    """A level with segments as long as suits it, where those of single rows are as long as its own are now."""
    size = min(level.fan * level.segment, max(level.segment, _LONGEST))
    while size // 2 >= max(level.longest, _SHORTEST):
        size //= 2
    return level._replace(segment=size)


def _cost(levels: Sequence[Level]) -> int:
    """Tokens that are run, padding included: all rows of a level take as many segments as its longest."""
    return sum(
        level.row.size * -(-level.longest // level.segment) * level.segment for level in levels
    )
