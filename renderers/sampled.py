"""Sampled ids as they come in: checked, and never changed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mintjax.renderers.errors import RenderError


def to_ids(ids: Any, where: str) -> np.ndarray:
    """Ids as int32 ``[n]``; a view where they are that already.

    Args:
        ids: a list or array of one row's tokens.
        where: whose they are, for errors.

    Raises:
        RenderError: where an entry is no id, or the shape is not ``[n]``.

    Example:
        >>> to_ids([6023, 151645], "message 1 (assistant)")
        array([  6023, 151645], dtype=int32)
    """
    array = np.asarray(ids)
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise RenderError(
            f"{where}: ids must be integers of shape [n], got {array.dtype} of shape "
            f"{list(array.shape)}; pass the tokens of one row"
        )
    if array.min() < 0 or array.max() > np.iinfo(np.int32).max:
        raise RenderError(
            f"{where}: ids must lie in 0..2**31-1, got {array.min()}..{array.max()}; leave padding "
            "out"
        )
    return array.astype(np.int32, copy=False).view()


def check_stop(ids: np.ndarray, stops: Sequence[int], where: str) -> None:
    """Refuses ids of which any follow a stop.

    Args:
        ids: int32 ``[n]``.
        stops: ids of the stop tokens.
        where: whose the ids are, for errors.

    Raises:
        RenderError: saying how many ids follow the first stop.

    Example:
        >>> check_stop(np.array([6023, 151645], np.int32), (151645,), "reply")
    """
    before = ids[:-1]
    if any((before == stop).any() for stop in stops):  # far cheaper than np.isin for so few
        raise ids_after_stop(where, len(before) - int(np.isin(before, stops).argmax()))


def ids_after_stop(where: str, count: int) -> RenderError:
    """The error for a reply of which ``count`` ids follow the stop.

    Example:
        >>> raise ids_after_stop("message 1 (assistant)", 2)
        Traceback (most recent call last):
        mintjax.renderers.errors.RenderError: message 1 (assistant): 2 ids follow the stop; ...
    """
    return RenderError(
        f"{where}: {count} ids follow the stop; stop sampling there, and give the ids up to and "
        "including the one that completes it"
    )
