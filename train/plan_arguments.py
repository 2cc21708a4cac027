"""A batch as a plan takes it: whole rows, or levels of segments, and where each scored position stands in the batch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int

from mintjax.attention import block_of
from mintjax.cache import State
from mintjax.train.batches import Batch
from mintjax.train.plan import Plan
from mintjax.train.segments import Segments
from mintjax.train.shared_prefixes import Level, find_levels, levels_of

_POSITIONS = 512  # scored positions of whole rows are padded to this, doubled as often as it takes: few shapes, few compiles


class Rows(NamedTuple):
    """B right-padded rows, and P labels at positions of the flattened rows.

    Attributes:
        tokens: ``[B, N]``.
        positions: ``[P]``.
        labels: ``[P]`` or ``[P, K]``.
        starts: ``[B, N]``, for each place the one where its document begins; None where a row is one.
    """

    tokens: Int[Array | np.ndarray, "B N"]
    positions: Int[Array | np.ndarray, " P"]
    labels: Int[Array | np.ndarray, " P *K"]
    starts: Int[Array | np.ndarray, "B N"] | None = None


def plan_arguments(
    batch: Batch, plan: Plan, state: State | None = None
) -> tuple["Rows | tuple[Segments, ...]", np.ndarray]:
    """A batch as a plan takes it, and where each of its scored positions stands in the batch.

    Args:
        batch: rows of token streams.
        plan: how they will be computed on.
        state: the cache that they will be computed on, for the plan ``"reverse_only"``.

    Returns:
        The arrays for :func:`plan_logprobs`, and ``[P]`` flat indices into ``[B, N]``, -1 on padding.

    Raises:
        ValueError: if the first token of a row or of a document is trained or scored.

    Example:
        >>> data, index = plan_arguments(batch, Plan())
    """
    trained = np.asarray(batch.mask).reshape(*batch.tokens.shape, -1).max(-1, initial=0)
    wanted = np.greater(trained if batch.scored is None else trained + batch.scored, 0)
    if wanted[:, 0].any():
        raise ValueError(
            f"batch.mask: rows {np.flatnonzero(wanted[:, 0]).tolist()} train their first token, which nothing "
            f"predicts; set the mask to 0 there"
        )
    if batch.starts is not None:
        first = wanted & (batch.starts == np.arange(wanted.shape[1]))
        if first.any():
            raise ValueError(
                f"batch.mask: rows {np.flatnonzero(first.any(1)).tolist()} train the first token of a document, which "
                f"nothing in it predicts; set the mask to 0 there"
            )
    scored = np.flatnonzero(wanted)
    if plan.kind == "packed":
        return _packed_arguments(batch, scored)
    tokens, length = np.asarray(batch.tokens), np.asarray(batch.length)
    if plan.kind == "reverse_only" and state is not None:
        levels = levels_of(state, tokens, length, plan.segment)
    else:
        levels = find_levels(tokens, length, plan.segment, share=plan.share)
    return _segment_arguments(levels, batch, scored)


class TokensRun(NamedTuple):
    """Tokens that a plan runs through the model, each once: without padding, and with it."""

    real: int
    padded: int


def tokens_run(batch: Batch, data: "Rows | tuple[Segments, ...]") -> TokensRun:
    """What a plan makes of a batch: whole rows to their padded length, or segments up to the last that has a token.

    Of segments these are the ones that the backward pass walks; a forward pass that joins some may pad its last one more.

    Args:
        batch: rows of token streams.
        data: the same as the plan takes them. What rows share in it counts once.

    Example:
        >>> data, _ = plan_arguments(batch, Plan())
        >>> tokens_run(batch, data)
        TokensRun(real=431, padded=960)
    """
    if isinstance(data, Rows):
        return TokensRun(int(batch.length.sum()), data.tokens.size)
    real = padded = 0
    for segments in data:
        length = np.asarray(segments.length)
        real += int(length.sum())
        steps = int(np.flatnonzero(length.any(1)).max(initial=-1)) + 1
        padded += steps * segments.tokens[0].size
    return TokensRun(real, padded)


def labels_of(batch: Batch) -> Int[np.ndarray, "B N *K"]:
    """What is scored at each place of a batch.

    Example:
        >>> labels_of(batch) is batch.tokens
        True
    """
    return batch.tokens if batch.labels is None else batch.labels


def row_numbers(batch: Batch) -> Int[np.ndarray, "B N"]:
    """For each place the number of its row; of its document, counted over all rows, where rows hold several.

    Example:
        >>> row_numbers(batch)[:, 0]
        array([0, 1, 2], dtype=int32)
    """
    shape = batch.tokens.shape
    if batch.starts is None:
        return np.broadcast_to(np.arange(shape[0], dtype=np.int32)[:, None], shape)
    column = np.arange(shape[1])
    first = (batch.starts == column) & (column < np.asarray(batch.length)[:, None])
    # Padding is of the document before it, where nothing reads it.
    return np.maximum(first.cumsum().reshape(shape) - 1, 0).astype(np.int32)


def pick(index: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Numbers at flat indices into the first two dimensions; 0 where the index is -1.

    Example:
        >>> pick(index, batch.mask)
    """
    x = np.asarray(x)
    real = (index >= 0).reshape(*index.shape, *(1 for _ in x.shape[2:]))
    return np.where(real, x.reshape(-1, *x.shape[2:])[index], 0).astype(x.dtype)


def _padded(count: int, most: int) -> int:
    """The number of positions that ``count`` are padded to; there are no more than ``most``."""
    return min(most, _POSITIONS << max(0, -(-count // _POSITIONS) - 1).bit_length())


def _packed_arguments(batch: Batch, trained: np.ndarray) -> tuple[Rows, np.ndarray]:
    """Rows padded to the attention block, and for every scored position its index in the batch (-1 on padding)."""
    size = batch.tokens.shape[1]
    padding = -size % block_of(size)
    index = np.full(_padded(trained.size, batch.tokens.size), -1)
    index[: trained.size] = trained
    positions = np.where(index >= 0, index + index // size * padding, 0).astype(np.int32)
    tokens = np.pad(batch.tokens, ((0, 0), (0, padding)))
    starts = batch.starts
    if starts is not None:
        starts = np.pad(starts, ((0, 0), (0, padding)), constant_values=size)
    return Rows(tokens, positions, pick(index, labels_of(batch)), starts), index


def _segment_arguments(
    levels: Sequence[Level], batch: Batch, trained: np.ndarray
) -> tuple[tuple[Segments, ...], np.ndarray]:
    """Levels of rows cut into segments, and for every scored position its index in the batch (-1 on padding)."""
    size = batch.tokens.shape[1]
    row, column = np.divmod(trained, size)
    found, indices = [], []
    for level in levels:
        rows, segment = level.row.size, level.segment
        # Segments without a token cost nothing, and another number of them is another program.
        steps = -(-level.columns // segment)
        columns = level.start[:, None] + np.arange(steps * segment)
        tokens = np.where(
            columns < level.end[:, None],
            batch.tokens[level.row[:, None], np.minimum(columns, size - 1)],
            0,
        )
        start = level.start + np.arange(steps)[:, None] * segment
        length = np.clip(level.end - start, 0, segment).astype(np.int32)
        # A token is scored where the one before it stands.
        owner, predictor = row // level.fan, column - 1
        here = (level.start[owner] <= predictor) & (predictor < level.end[owner])
        owner, place = owner[here], (predictor - level.start[owner])[here]
        step = place // segment
        scored = np.bincount(step, minlength=steps).astype(np.int32)
        # As many as there are places: another number of labels is no other program. A place may have several.
        count = rows * segment * max(1, -(-int(scored.max()) // (rows * segment)))
        index = np.full((steps, count), -1)
        positions = np.zeros(index.shape, np.int32)
        for t in range(steps):
            now = step == t
            index[t, : now.sum()] = trained[here][now]
            positions[t, : now.sum()] = owner[now] * segment + place[now] % segment
        tokens = tokens.reshape(rows, steps, segment).swapaxes(0, 1)
        labels = pick(index, labels_of(batch))
        found.append(Segments(tokens, length, positions, labels, scored))
        indices.append(index.reshape(-1))
    return tuple(found), np.concatenate(indices)
