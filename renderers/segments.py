"""Ids of several conversations as one fixed-shape segment."""

from collections.abc import Iterable, Sequence

import numpy as np

from mintjax.types import Segment

_SMALLEST = 16


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
