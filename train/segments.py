"""Token streams cut into segments, with the labels that each is to score."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mintjax.extension import slots_of


class Segments(NamedTuple):
    """B token streams cut into at most T segments, right-padded each; P labels to score a segment.

    As one level of several, a row is what follows a row of the level above: row ``b`` follows row ``b // (B / R)`` of R.

    Attributes:
        tokens: ``[T, B, S]``.
        length: ``[T, B]``; trailing segments that are empty in every row cost nothing.
        positions: ``[T, P]`` places that predict a label, as indices into a segment's flattened ``[B, S]``; a place may
            predict several, as the last one before streams part does.
        labels: ``[T, P]`` or ``[T, P, K]``, the ids to score there: a stream's next token, or any.
        scored: ``[T]`` how many labels a segment has; the others are padding.
    """

    tokens: Int[Array | np.ndarray, "T B S"]
    length: Int[Array | np.ndarray, "T B"]
    positions: Int[Array | np.ndarray, "T P"]
    labels: Int[Array | np.ndarray, "T P *K"]
    scored: Int[Array | np.ndarray, " T"]


def count(length: Int[Array | np.ndarray, "T B"]) -> Int[Array, ""]:
    """How many segments there are, without the trailing ones that are empty in every row."""
    used = length.max(1) > 0
    return jnp.max(jnp.where(used, jnp.arange(used.size) + 1, 0))


class JoinedSegments(NamedTuple):
    """Segments joined to fewer and longer ones, for a pass that keeps nothing of them but their cache.

    Attributes:
        tokens: ``[t, B, s]``.
        length: ``[t, B]``.
        positions: ``[t, p]`` of the labels of the segments that were joined, as indices into ``[B, s]``.
    """

    tokens: Int[Array | np.ndarray, "t B s"]
    length: Int[Array | np.ndarray, "t B"]
    positions: Int[Array | np.ndarray, "t p"]


def joined(segments: Segments, together: int) -> JoinedSegments:
    """Joins consecutive segments. A product of few rows is slow, and each segment reads the cache before it.

    Args:
        segments: T segments.
        together: how many become one.

    Returns:
        A row's tokens stand without gaps in each, also where a segment that was joined is not full.

    Example:
        >>> joined(segments, 4).tokens.shape  # of [32, 1, 64]
        (8, 1, 256)
    """
    steps, batch, size = segments.tokens.shape
    if together == 1:
        return JoinedSegments(segments.tokens, segments.length, segments.positions)
    wide, padding = together * size, -steps % together

    def grouped(x: Array | np.ndarray) -> Array:
        x = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, together, *x.shape[1:])

    tokens, length, positions = map(grouped, segments[:3])
    start = jnp.cumsum(length, 1) - length  # of each segment in the one that it is part of
    place = slots_of(start.reshape(-1), length.reshape(-1), size, wide).reshape(tokens.shape)
    t, b = jnp.arange(len(tokens))[:, None, None, None], jnp.arange(batch)[:, None]
    empty = jnp.zeros((len(tokens), batch, wide), tokens.dtype)
    row, column = jnp.divmod(positions, size)
    positions = row * wide + jnp.take_along_axis(start, row, 2) + column
    return JoinedSegments(
        empty.at[t, b, place].set(tokens, mode="drop"),
        length.sum(1),
        positions.reshape(len(tokens), -1),
    )


def parted(numbers: Float[Array, "_ _ D"], segments: Segments) -> Float[Array, "T P D"]:
    """What the labels have, by the segments that were joined.

    Example:
        >>> parted(predictors, segments)
    """
    steps, labels = segments.positions.shape
    return numbers.reshape(-1, labels, numbers.shape[-1])[:steps]
