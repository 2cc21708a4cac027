"""Ids of conversations as segments of one fixed shape: new ids in one, or whole streams in many."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mintjax.renderers.rendered import Rendered
from mintjax.types import Segment

_SMALLEST = 16


class Segments(NamedTuple):
    """Token streams cut into T segments of S tokens, right-padded. The edges carry no meaning.

    ``[T, S]`` of one conversation, ``[T, B, S]`` of B side by side. What stands at or past a
    segment's length is 0.

    Attributes:
        tokens: int32.
        sampled: bool, see ``Rendered``.
        weights: float32, see ``Rendered``.
        length: int32 ``[T]`` or ``[T, B]``; how many tokens of each segment are real. Only the last
            segment of a stream that has any can have less than S.
    """

    tokens: np.ndarray
    sampled: np.ndarray
    weights: np.ndarray
    length: np.ndarray


def bucket(length: int) -> int:
    """The segment size that holds ``length`` tokens: the next power of two, 16 at least.

    Few sizes mean few compiled shapes.

    Args:
        length: tokens of the longest row, from 0.

    Raises:
        ValueError: where ``length`` is negative.

    Example:
        >>> bucket(17)
        32
    """
    if length < 0:
        raise ValueError(f"length: expected a count of tokens from 0, got {length}")
    return max(_SMALLEST, 1 << (length - 1).bit_length()) if length else _SMALLEST


def to_segment(rows: Sequence[Iterable[int]], size: int | None = None) -> Segment:
    """Puts B rows of ids side by side, padded on the right.

    Args:
        rows: B lists, arrays or ``Rendered`` of ids; an empty row does not move.
        size: S; by default the bucket of the longest row.

    Returns:
        Tokens int32 ``[B, S]`` (0 past a row's length) and lengths int32 ``[B]``.

    Raises:
        ValueError: where there is no row, or one is longer than ``size``.

    Example:
        >>> to_segment([[1, 2, 3], []], size=4).tokens
        array([[1, 2, 3, 0], [0, 0, 0, 0]], dtype=int32)
    """
    if not len(rows):
        raise ValueError("rows: expected the ids of at least one conversation, got none")
    listed = [np.fromiter(row, np.int32) for row in rows]
    length = np.array([len(row) for row in listed], np.int32)
    size = bucket(int(length.max())) if size is None else size
    if length.max() > size:
        raise ValueError(
            f"rows[{int(length.argmax())}]: {length.max()} ids do not fit a segment of {size}; use "
            f"size={bucket(int(length.max()))}, or feed the row in two segments"
        )
    tokens = np.zeros((len(listed), size), np.int32)
    for place, row in enumerate(listed):
        tokens[place, : len(row)] = row
    return Segment(tokens, length)


def segment_count(longest: int, size: int) -> int:
    """How many segments hold a stream: the next power of two, so that few shapes are compiled.

    Args:
        longest: tokens of the longest stream there will be, from 0.
        size: S.

    Raises:
        ValueError: where ``longest`` is negative, or ``size`` less than 1.

    Example:
        >>> segment_count(300, size=64)
        8
    """
    if longest < 0 or size < 1:
        raise ValueError(
            f"expected longest from 0 and size from 1, got longest={longest} and size={size}"
        )
    return 1 << max(0, -(-longest // size) - 1).bit_length()


def to_segments(
    conversations: Rendered | Sequence[Rendered], size: int = 64, count: int | None = None
) -> Segments:
    """Cuts whole conversations into segments, whatever the turns they came in.

    Choose ``size`` and ``count`` once, for all data that one compiled step is to take.

    Args:
        conversations: one ``Rendered``, or B of them; with each goes all that stands before it.
        size: S.
        count: T; by default ``segment_count`` of the longest.

    Returns:
        ``[T, S]`` for one, ``[T, B, S]`` for a list.

    Raises:
        ValueError: where there is no conversation, or one does not fit.

    Example:
        >>> to_segments(answered, size=64).tokens.shape
        (2, 64)
        >>> to_segments([answered, following], size=64, count=8).tokens.shape
        (8, 2, 64)
    """
    if isinstance(conversations, Rendered):
        return Segments._make(array[:, 0] for array in to_segments([conversations], size, count))
    if not len(conversations):
        raise ValueError("conversations: expected at least one, got none")
    longest = max(one.start + len(one) for one in conversations)
    count = segment_count(longest, size) if count is None else count
    if longest > count * size:
        raise ValueError(
            f"conversations: {longest} ids do not fit {count} segments of {size}; use "
            f"count={segment_count(longest, size)}"
        )
    shape = (len(conversations), count * size)
    tokens, sampled = np.zeros(shape, np.int32), np.zeros(shape, bool)
    weights, lengths = np.zeros(shape, np.float32), np.zeros(len(conversations), np.int32)
    for row, conversation in enumerate(conversations):
        whole = conversation.whole()
        lengths[row] = end = len(whole)
        tokens[row, :end], sampled[row, :end] = whole.ids, whole.sampled
        weights[row, :end] = whole.weights
    starts = size * np.arange(count, dtype=np.int32)[:, None]

    def cut(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(-1, count, size).swapaxes(0, 1)

    return Segments(cut(tokens), cut(sampled), cut(weights), np.clip(lengths - starts, 0, size))
