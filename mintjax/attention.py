"""Attention of a segment over everything before it, by blocks, forwards and backwards.

Queries of a segment see the first ``length`` slots of each span before it, and their own segment up to themselves:

    slot      0 1 2 | own 0 1 2          one span of length 3, segment of 3
    query 0   1 1 1 |     1 0 0
    query 1   1 1 1 |     1 1 0
    query 2   1 1 1 |     1 1 1

A large span is read in blocks up to the longest length of the batch, never up to its capacity, with a running softmax
(Milakov and Gimelshein, arXiv:1805.02867; Dao et al., arXiv:2205.14135); a small one is one block (:func:`block_of`). What
is small is more for one query of each row, as in decoding, than for many, and then a window spares only the reads of a
span that lies wholly before it.
Where consecutive rows share a span, their queries stand together as if they were more heads, so its keys are read once
for all of them (Juravsky et al., arXiv:2402.05099).
Where a layer has a window, a query at position p sees the keys at p - window + 1 to p alone, and the blocks that lie
wholly before the windows of all rows are not read:

    slot      0 1 2 | own 0 1 2          the same with a window of 3
    query 0   0 1 1 |     1 0 0
    query 1   0 0 1 |     1 1 0
    query 2   0 0 0 |     1 1 1

Where a row holds several documents, a query sees its own alone: each has the place of the first token that it sees.

A layer may have sinks, a learned score for each query head that takes its share of the softmax and adds no value.

The backward pass adds what flows to the spans into buffers that it is given. The loops over blocks have a traced length:
they are never differentiated by JAX.

Letters: B rows, K key heads, G query heads a key head, S segment, R rows of a span, N its capacity, H head size, V that of
values.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Shaped

BLOCK = 64  # slots; every capacity is a multiple of it
# Slots of a large span that are read at a time: by one query of each row, by few and by many. A larger block is fewer and
# larger products, and more slots past the longest row and the causal diagonal (docs/cpu.md).
_FOR_ONE, _FOR_FEW, _FOR_MANY = 2 * BLOCK, BLOCK, 4 * BLOCK
_MANY = 2 * BLOCK  # queries of each row
# Bytes of a span's keys up to which one query of each row reads it at once. Where keys took one mebibyte, a loop over
# blocks cost more than the slots that it spares; where they took three, less (docs/cpu.md).
_BYTES_AT_ONCE = 2**20
_MASKED = -1e30  # finite: a block that a row cannot see at all must not give nan


class Span(NamedTuple):
    """What is cached before a segment, of which a row sees the first ``length`` slots.

    Row ``b`` of the segment sees row ``b // (B / R)`` of the span: with R less than B, consecutive rows share one.
    ``values`` is None where they are the first numbers of the keys, as of latents (:mod:`mintjax.models.latents`).
    """

    keys: Float[Array, "R K N H"]
    values: Float[Array, "R K N V"] | None
    length: Int[Array, " R"]

    def values_like(self, v: Float[Array, "B K S V"]) -> Float[Array, "R K N V"]:
        """The values, of the width of others."""
        return self.keys[..., : v.shape[-1]] if self.values is None else self.values

    @property
    def buffers(self) -> tuple[Float[Array, "R K N _"], ...]:
        """The arrays that there are."""
        return (self.keys,) if self.values is None else (self.keys, self.values)


def span_of(buffers: Sequence[Float[Array, "R K N _"]], length: Int[Array, " R"]) -> Span:
    """What one layer's cache holds, as attention sees it.

    Example:
        >>> span = span_of((keys, values), length)
    """
    keys, *values = buffers
    return Span(keys, values[0] if values else None, length)


class Attended(NamedTuple):
    """What attention returns and its backward pass needs again: the mean of values, and the scores' logsumexp.

    A sink is one of the scores.
    """

    out: Float[Array, "B K G S V"]
    logsumexp: Float[Array, "B K G S"]


def _scores(q: Float[Array, "B K G S H"], k: Float[Array, "B K M H"]) -> Float[Array, "B K G S M"]:
    accumulate = jnp.promote_types(q.dtype, jnp.float32)
    return (
        jnp.einsum("bkgsh,bkmh->bkgsm", q, k, preferred_element_type=accumulate)
        * q.shape[-1] ** -0.5
    )


def _causal(
    size: int, window: int | None, starts: Int[Array, "B S"] | None, spans: Sequence[Span]
) -> Array:
    """What each query of a segment sees of it, ``[S, M]``, or ``[B, 1, 1, S, M]`` with starts."""
    seen = jnp.tril(jnp.ones((size, size), bool))
    seen = seen if window is None or window >= size else jnp.triu(seen, 1 - window)
    if starts is None:
        return seen
    first = starts - _position(spans, len(starts))[:, None]
    return seen & (jnp.arange(size) >= first[..., None])[:, None, None]


def _position(spans: Sequence[Span], batch: int) -> Int[Array, " B"]:
    """How many tokens stand before a segment in each row."""
    lengths = (for_each_row(span.length, batch) for span in spans)
    return sum(lengths, jnp.zeros(batch, jnp.int32))


class _Reach(NamedTuple):
    """Which slots of a span the queries see: those from ``first`` on, which is None without a window or starts.

    ``first`` is ``[R, 1, FG, S]``, a number for each query, folded as the queries are (:func:`_fold`); ``block`` is how
    many slots are read at a time.
    """

    span: Span
    block: int
    first: Int[Array, "R 1 FG S"] | None

    def part(self, x: Float[Array, "R K N H"], index: Int[ArrayLike, ""]) -> Array:
        """A block of one of the span's buffers, or of a buffer like it, ``[R, K, M, H]``."""
        return lax.dynamic_slice_in_dim(x, index * self.block, self.block, 2)

    def pair(self, index: Int[ArrayLike, ""], v: Float[Array, "B K S V"]) -> tuple[Array, Array]:
        """The keys and the values of a block; values are as wide as ``v``."""
        keys, values = self.part(self.span.keys, index), self.span.values
        return keys, keys[..., : v.shape[-1]] if values is None else self.part(values, index)

    def seen(self, index: Int[ArrayLike, ""]) -> Array:
        """The slots of a block that each query sees, ``[R, 1, FG or 1, S or 1, M]``."""
        slots = jnp.arange(self.block) + index * self.block
        seen = (slots < self.span.length[:, None])[:, None, None, None, :]
        return seen if self.first is None else seen & (slots >= self.first[..., None])

    def blocks(self) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """The first block that any row sees, and the one after the last."""
        block, length = self.block, self.span.length
        end = (jnp.max(length) + block - 1) // block
        if self.first is None:
            return jnp.zeros_like(end), end
        # A row whose windows begin behind the span, or that has nothing there, asks for no block of it.
        first = jnp.maximum(jnp.min(self.first, (1, 2, 3)), 0)
        first = jnp.min(jnp.where(first < length, first, self.span.keys.shape[2]))
        return (first // block).astype(end.dtype), end


def _reaches(
    q: Float[Array, "B K G S H"],
    spans: Sequence[Span],
    window: int | None,
    starts: Int[Array, "B S"] | None,
) -> list[_Reach]:
    """What the queries see of each span. Positions follow from the lengths, for spans stand one behind the other."""
    if window is None and starts is None:
        return [_Reach(span, _slots_at_once(q, span), None) for span in spans]
    batch, _, group, size, _ = q.shape
    first = jnp.zeros((batch, size), jnp.int32) if starts is None else starts
    if window is not None:
        position = _position(spans, batch)
        first = jnp.maximum(first, (position - window + 1)[:, None] + jnp.arange(size))
    reaches = []
    for span in spans:
        shape = batch, 1, group, size
        folded = _fold(jnp.broadcast_to(first[:, None, None, :], shape), len(span.length))
        reaches.append(_Reach(span, _slots_at_once(q, span), folded))
        first = first - for_each_row(span.length, batch)[:, None]
    return reaches


def for_each_row(x: Shaped[Array, " R *rest"], batch: int) -> Shaped[Array, " B *rest"]:
    """What consecutive rows share, repeated for each of them."""
    return jnp.repeat(x, batch // len(x), 0) if len(x) < batch else x


def _over_blocks(step, carry, reach: _Reach):
    """Runs ``step`` over the blocks that any row sees; without a loop where the span is one block."""
    capacity, block = reach.span.keys.shape[2], reach.block
    # A ragged last block would be read clamped, so that some slots count twice, in silence.
    if capacity % block:
        raise ValueError(f"capacity: expected a multiple of the block ({block}), got {capacity}")
    first, end = reach.blocks()
    if capacity == block:
        # A conversation's first segment has nothing before it: reading the cache all the same was a tenth of its time.
        return lax.cond(first < end, partial(step, 0), lambda carry: carry, carry)
    return lax.fori_loop(first, end, step, carry)


def _fold(x: Shaped[Array, "B K G S *rest"], rows: int) -> Shaped[Array, "R K FG S *rest"]:
    """Rows that share a row of a span, as more query heads of one row."""
    batch, heads, groups, *rest = x.shape
    if batch == rows:
        return x
    x = x.reshape(rows, batch // rows, heads, groups, *rest).swapaxes(1, 2)
    return x.reshape(rows, heads, -1, *rest)


def _unfold(x: Float[Array, "R K FG S *rest"], batch: int) -> Float[Array, "B K G S *rest"]:
    """The inverse of :func:`_fold`."""
    rows, heads, groups, *rest = x.shape
    if batch == rows:
        return x
    fan = batch // rows
    x = x.reshape(rows, heads, fan, groups // fan, *rest).swapaxes(1, 2)
    return x.reshape(batch, heads, -1, *rest)


def block_of(size: int, most: int = _FOR_MANY) -> int:
    """The block to take slots or tokens in: all at once where they are few, which is one matrix product.

    Of more it is the largest part of ``most`` that cuts them evenly, and :data:`BLOCK` at least, to a multiple of which
    the caller pads them.

    Example:
        >>> block_of(200), block_of(1024), block_of(1024 + 64)
        (200, 256, 64)
    """
    return size if size <= 4 * BLOCK else max(BLOCK, math.gcd(size, most))


def _slots_at_once(q: Float[Array, "B K G S H"], span: Span) -> int:
    """Slots of a span that the queries read at a time; by shapes alone, so that no row depends on another's length."""
    capacity, queries = span.keys.shape[2], q.shape[3]
    if queries > 1:
        return block_of(capacity, _FOR_MANY if queries >= _MANY else _FOR_FEW)
    return capacity if span.keys.nbytes <= _BYTES_AT_ONCE else block_of(capacity, _FOR_ONE)


def attend(
    q: Float[Array, "B K G S H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S V"],
    spans: Sequence[Span] = (),
    *,
    window: int | None = None,
    sinks: Float[Array, " KG"] | None = None,
    starts: Int[Array, "B S"] | None = None,
) -> Attended:
    """Attends from a segment to the spans before it and to itself.

    Padding needs no mask: it stands at the end of a segment, where no real query looks.

    Args:
        q: the segment's queries, grouped by key head.
        k: the segment's own keys.
        v: the segment's own values.
        spans: what stands before, one behind the other; the capacity of each is a multiple of its block (see
            :func:`block_of`), and B a multiple of its rows.
        window: tokens that a query sees at most, itself included; None is all before it. Static. (Beltagy et al.,
            arXiv:2004.05150.)
        sinks: a score for each query head, in the order of K and then G, beside those of the keys. (Xiao et al.,
            arXiv:2309.17453; learned, as in gpt-oss.)
        starts: for each query the place of the first token that it sees, counted from the row's first and at most its own;
            None is the row's first.

    Returns:
        The output in the dtype of ``v``, and the logsumexp in at least float32.

    Raises:
        ValueError: if a capacity is no multiple of the block, or the window is below 1.

    Example:
        >>> out = attend(q, k, v, [Span(keys, values, length)]).out
    """
    if window is not None and window < 1:
        raise ValueError(f"window: expected at least 1, the query itself, got {window}")
    accumulate = jnp.promote_types(q.dtype, jnp.float32)

    def weighted(
        p: Float[Array, "B K G S M"], v: Float[Array, "B K M V"]
    ) -> Float[Array, "B K G S V"]:
        return jnp.einsum(
            "bkgsm,bkmh->bkgsh", p.astype(v.dtype), v, preferred_element_type=accumulate
        )

    def step(q, reach: _Reach, index, carry):
        top, total, out = carry
        keys, values = reach.pair(index, v)
        scores = jnp.where(reach.seen(index), _scores(q, keys), _MASKED)
        new_top = jnp.maximum(top, scores.max(-1))
        shrink = jnp.exp(top - new_top)
        p = jnp.exp(scores - new_top[..., None])
        out = out * shrink[..., None] + weighted(p, values)
        return new_top, total * shrink + p.sum(-1), out

    scores = jnp.where(_causal(q.shape[3], window, starts, spans), _scores(q, k), _MASKED)
    top = scores.max(-1)
    p = jnp.exp(scores - top[..., None])
    carry = top, p.sum(-1), weighted(p, v)
    for reach in _reaches(q, spans, window, starts):
        rows = reach.span.length.shape[0]
        carry = tuple(_fold(x, rows) for x in carry)
        carry = _over_blocks(partial(step, _fold(q, rows), reach), carry, reach)
        carry = tuple(_unfold(x, q.shape[0]) for x in carry)
    top, total, out = carry
    logsumexp = top + jnp.log(total)
    if sinks is None:
        return Attended((out / total[..., None]).astype(v.dtype), logsumexp)
    with_sinks = jnp.logaddexp(logsumexp, by_head(sinks, q).astype(accumulate))
    out = out * (jnp.exp(top - with_sinks))[..., None]
    return Attended(out.astype(v.dtype), with_sinks)


def by_head(sinks: Float[Array, " KG"], q: Float[Array, "B K G S H"]) -> Float[Array, "K G 1"]:
    """Sinks beside the queries that they belong to."""
    return sinks.reshape(q.shape[1], q.shape[2], 1)


class Cotangents(NamedTuple):
    """Gradients of a loss with respect to what :func:`attend` was given, for each span those of its buffers."""

    q: Float[Array, "B K G S H"]
    k: Float[Array, "B K S H"]
    v: Float[Array, "B K S V"]
    spans: tuple[tuple[Float[Array, "_ K _ _"], ...], ...]


def attend_backward(
    q: Float[Array, "B K G S H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S V"],
    spans: Sequence[Span],
    attended: Attended,
    d_out: Float[Array, "B K G S V"],
    d_spans: Sequence[tuple[Float[Array, "_ K _ _"], ...]],
    *,
    window: int | None = None,
    starts: Int[Array, "B S"] | None = None,
) -> Cotangents:
    """The backward pass of :func:`attend`; gradients of the spans are added to the buffers given.

    Args:
        q: the queries that :func:`attend` was given.
        k: the segment's own keys.
        v: the segment's own values.
        spans: those that it was given.
        attended: what it returned.
        d_out: gradient with respect to its output.
        d_spans: what has flowed to the buffers of each span so far, in at least float32.
        window: that which it was given. Sinks are in what it returned.
        starts: those that it was given.

    Returns:
        Gradients of the segment's own q, k, v (at least float32), and the buffers with this segment's share added.

    Example:
        >>> grads = attend_backward(q, k, v, [span], attended, d_out, [(d_keys, d_values)])
    """
    accumulate = jnp.promote_types(q.dtype, jnp.float32)
    out, logsumexp = attended
    delta = jnp.sum(d_out.astype(accumulate) * out.astype(accumulate), -1)
    d_out = d_out.astype(v.dtype)

    def einsum(form: str, *operands: Array) -> Array:
        return jnp.einsum(form, *operands, preferred_element_type=accumulate)

    def gradients(q, d_out, logsumexp, delta, k, v, mask):
        p = jnp.exp(jnp.where(mask, _scores(q, k), _MASKED) - logsumexp[..., None])
        d_v = einsum("bkgsm,bkgsh->bkmh", p.astype(v.dtype), d_out)
        d_p = einsum("bkgsh,bkmh->bkgsm", d_out, v)
        d_scores = (p * (d_p - delta[..., None]) * q.shape[-1] ** -0.5).astype(q.dtype)
        d_q = einsum("bkgsm,bkmh->bkgsh", d_scores, k)
        return d_q, einsum("bkgsm,bkgsh->bkmh", d_scores, q), d_v

    def add(reach: _Reach, buffer, index, update):
        update = reach.part(buffer, index) + update.astype(buffer.dtype)
        return lax.dynamic_update_slice_in_dim(buffer, update, index * reach.block, 2)

    def step(queries, reach: _Reach, index, carry):
        d_q, d_keys, *d_values = carry
        keys, values = reach.pair(index, v)
        q, d_out, logsumexp, delta = queries
        more_q, d_k, d_v = gradients(q, d_out, logsumexp, delta, keys, values, reach.seen(index))
        if not d_values:
            d_k = d_k.at[..., : d_v.shape[-1]].add(d_v)
        added = [
            add(reach, buffer, index, d)
            for buffer, d in zip((d_keys, *d_values), (d_k, d_v), strict=False)
        ]
        return d_q + more_q, *added

    queries = q, d_out, logsumexp, delta
    seen = _causal(q.shape[3], window, starts, spans)
    d_q, d_k, d_v = gradients(q, d_out, logsumexp, delta, k, v, seen)
    added = []
    for reach, d_span in zip(_reaches(q, spans, window, starts), d_spans, strict=True):
        rows = reach.span.length.shape[0]
        folded = partial(step, [_fold(x, rows) for x in queries], reach)
        d_q, *d_span = _over_blocks(folded, (_fold(d_q, rows), *d_span), reach)
        d_q = _unfold(d_q, q.shape[0])
        added.append(tuple(d_span))
    return Cotangents(d_q, d_k, d_v, tuple(added))
