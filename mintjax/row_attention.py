"""Causal self-attention of whole rows, differentiable, by the kernel of a name.

``"blockwise"`` walks a row as segments of one block over its own keys.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from mintjax.attention import Attended, Span, attend, attend_backward, by_head
from mintjax.attention_kernels import Kernel, platform_attention
from mintjax.ordering import after


def _cut(x: Array, index: Int[ArrayLike, ""], block: int) -> Array:
    return lax.dynamic_slice_in_dim(x, index * block, block, -2)


def _put(
    buffer: Array, update: Array, index: Int[ArrayLike, ""], block: int, axis: int = -2
) -> Array:
    return lax.dynamic_update_slice_in_dim(
        buffer, update.astype(buffer.dtype), index * block, axis % buffer.ndim
    )


def attend_row(
    q: Float[Array, "B K G N H"],
    k: Float[Array, "B K N H"],
    v: Float[Array, "B K N V"],
    block: int,
    kernel: Kernel = "blockwise",
    *,
    window: int | None = None,
    sinks: Float[Array, " KG"] | None = None,
    starts: Int[Array, "B N"] | None = None,
) -> Float[Array, "B K G N V"]:
    """Causal attention within each row, in memory linear in its length.

    Padding at the end of a row needs no mask: no real query looks there.

    Args:
        q: queries, grouped by key head.
        k: keys.
        v: values.
        block: queries and keys that ``"blockwise"`` takes at a time; N is then a multiple of it.
        kernel: what computes it (``mintjax.attention_kernels``).
        window: tokens that a query sees at most; for ``"blockwise"`` alone.
        sinks: a further score for each query head; for ``"blockwise"`` alone.
        starts: for each query the place in its row of the first token that it sees, as where a row holds several documents;
            None is the row's first. For ``"blockwise"`` alone.

    Returns:
        The mean of the values that each position sees, in their dtype.

    Raises:
        ValueError: if N is no multiple of the block, where that is taken; or for starts that a kernel does not serve.

    Example:
        >>> out = attend_row(q, k, v, 64)
    """
    if kernel == "blockwise":
        return _attend_row(q, k, v, sinks, starts, block, window)
    if starts is not None:
        raise ValueError(f"starts: {kernel!r} serves no packed documents; take 'blockwise'")
    return platform_attention(kernel, window, sinks)(q, k, v)


def _walk(step, carry, blocks: int):
    """Runs ``step`` over all blocks; straight on, without a loop, where there is but one."""
    return step(0, carry) if blocks == 1 else lax.fori_loop(0, blocks, step, carry)


def _before(q: Array, k: Array, v: Array, index: Int[ArrayLike, ""], block: int) -> list[Span]:
    if q.shape[3] == block:
        return []
    return [Span(k, v, jnp.broadcast_to(index * block, q.shape[:1]))]


def _starts(starts: Array | None, index: Int[ArrayLike, ""], block: int) -> Array | None:
    return None if starts is None else lax.dynamic_slice_in_dim(starts, index * block, block, 1)


def _forward(q, k, v, sinks, starts, block, window):
    size = q.shape[3]
    if size % block:
        raise ValueError(
            f"q: expected a length that is a multiple of the block ({block}), got {size}"
        )

    def step(index, carry):
        out, logsumexp = carry
        own_q, own_k, own_v = (_cut(x, index, block) for x in (q, k, v))
        spans = _before(q, k, v, index, block)
        own = _starts(starts, index, block)
        part = attend(own_q, own_k, own_v, spans, window=window, sinks=sinks, starts=own)
        return _put(out, part.out, index, block), _put(logsumexp, part.logsumexp, index, block, -1)

    accumulate = jnp.promote_types(q.dtype, jnp.float32)
    shape = *q.shape[:-1], v.shape[-1]
    # Zeros that wait for nothing are held from the start of the program on, those of all layers at once.
    empty = after(jnp.zeros(shape, v.dtype), q), after(jnp.zeros(q.shape[:-1], accumulate), q)
    out, logsumexp = _walk(step, empty, size // block)
    return out, (q, k, v, sinks, starts, Attended(out, logsumexp))


def _backward(block, window, residuals, d_out):
    q, k, v, sinks, starts, attended = residuals
    blocks = q.shape[3] // block

    def step(i, carry):
        # From the last block to the first: when a block is reached, all that flows to its keys has arrived.
        d_q, d_k, d_v = carry
        index = blocks - 1 - i
        own_q, own_k, own_v, own_d = (_cut(x, index, block) for x in (q, k, v, d_out))
        part = Attended(
            _cut(attended.out, index, block),
            lax.dynamic_slice_in_dim(attended.logsumexp, index * block, block, 3),
        )
        spans = _before(q, k, v, index, block)
        flowed = [(d_k, d_v)] * len(spans)
        options = {"window": window, "starts": _starts(starts, index, block)}
        grads = attend_backward(own_q, own_k, own_v, spans, part, own_d, flowed, **options)
        if spans:
            d_k, d_v = grads.spans[0]
        d_k = _put(d_k, _cut(d_k, index, block) + grads.k, index, block)
        d_v = _put(d_v, _cut(d_v, index, block) + grads.v, index, block)
        return _put(d_q, grads.q, index, block), d_k, d_v

    accumulate = jnp.promote_types(q.dtype, jnp.float32)
    empty = tuple(after(jnp.zeros(x.shape, accumulate), d_out) for x in (q, k, v))
    d_q, d_k, d_v = _walk(step, empty, blocks)
    d_sinks = None if sinks is None else _sinks_gradient(sinks, q, attended, d_out)
    return d_q.astype(q.dtype), d_k.astype(k.dtype), d_v.astype(v.dtype), d_sinks, None


def _sinks_gradient(sinks, q, attended, d_out):
    """Of frozen weights: nothing asks for it, and the compiler leaves it out."""
    share = jnp.exp(by_head(sinks, q) - attended.logsumexp)
    delta = jnp.sum(d_out.astype(share.dtype) * attended.out.astype(share.dtype), -1)
    return -(share * delta).sum((0, 3)).reshape(sinks.shape).astype(sinks.dtype)


_attend_row = jax.custom_vjp(lambda *args: _forward(*args)[0], nondiff_argnums=(5, 6))
_attend_row.defvjp(_forward, _backward)
