"""Causal self-attention of whole rows, differentiable: a row is walked as segments of one block over its own keys."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from mintjax.attention import Attended, attend, attend_backward


def _cut(x: Array, index: Int[Array, ""], block: int) -> Array:
    return lax.dynamic_slice_in_dim(x, index * block, block, -2)


def _put(buffer: Array, update: Array, index: Int[Array, ""], block: int, axis: int = -2) -> Array:
    return lax.dynamic_update_slice_in_dim(buffer, update.astype(buffer.dtype), index * block, axis % buffer.ndim)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def attend_row(
    q: Float[Array, "B K G N H"], k: Float[Array, "B K N H"], v: Float[Array, "B K N H"], block: int
) -> Float[Array, "B K G N H"]:
    """Causal attention within each row, in memory linear in its length.

    Padding at the end of a row needs no mask: no real query looks there.

    Args:
        q: queries, grouped by key head.
        k: keys.
        v: values.
        block: queries and keys taken at a time; N is a multiple of it.

    Returns:
        The mean of the values that each position sees, in their dtype.

    Raises:
        ValueError: if N is no multiple of the block.

    Example:
        >>> out = attend_row(q, k, v, 64)
    """
    return _forward(q, k, v, block)[0]


def _prefix(q: Array, index: Int[Array, ""], block: int) -> Int[Array, " B"]:
    return jnp.broadcast_to(index * block, q.shape[:1])


def _forward(q, k, v, block):
    def step(index, carry):
        out, logsumexp = carry
        part = attend(
            _cut(q, index, block), k, v, _prefix(q, index, block), _cut(k, index, block),
            _cut(v, index, block), block=block,
        )  # fmt: skip
        return _put(out, part.out, index, block), _put(logsumexp, part.logsumexp, index, block, -1)

    accumulate = jnp.promote_types(q.dtype, jnp.float32)
    empty = jnp.zeros(q.shape, v.dtype), jnp.zeros(q.shape[:-1], accumulate)
    out, logsumexp = lax.fori_loop(0, q.shape[3] // block, step, empty)
    return out, (q, k, v, Attended(out, logsumexp))


def _backward(block, residuals, d_out):
    q, k, v, attended = residuals
    blocks = q.shape[3] // block

    def step(i, carry):
        # From the last block to the first: when a block is reached, all that flows to its keys has arrived.
        d_q, d_k, d_v = carry
        index = blocks - 1 - i
        part = Attended(
            _cut(attended.out, index, block),
            lax.dynamic_slice_in_dim(attended.logsumexp, index * block, block, 3),
        )
        grads = attend_backward(
            _cut(q, index, block), k, v, _prefix(q, index, block), _cut(k, index, block),
            _cut(v, index, block), part, _cut(d_out, index, block), d_k, d_v, block=block,
        )  # fmt: skip
        d_k = _put(grads.keys, _cut(grads.keys, index, block) + grads.k, index, block)
        d_v = _put(grads.values, _cut(grads.values, index, block) + grads.v, index, block)
        return _put(d_q, grads.q, index, block), d_k, d_v

    accumulate = jnp.promote_types(q.dtype, jnp.float32)
    empty = tuple(jnp.zeros(x.shape, accumulate) for x in (q, k, v))
    d_q, d_k, d_v = lax.fori_loop(0, blocks, step, empty)
    return d_q.astype(q.dtype), d_k.astype(k.dtype), d_v.astype(v.dtype)


attend_row.defvjp(_forward, _backward)
