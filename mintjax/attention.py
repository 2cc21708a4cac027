"""Attention of a segment over everything before it, by blocks, forwards and backwards.

Queries of a segment see the first ``prefix`` slots of a row's cache, and their own segment up to themselves:

    slot      0 1 2 | own 0 1 2          prefix = 3, segment of 3
    query 0   1 1 1 |     1 0 0
    query 1   1 1 1 |     1 1 0
    query 2   1 1 1 |     1 1 1

A large cache is read in blocks up to the longest prefix of the batch, never up to its capacity, with a running softmax
(Milakov and Gimelshein, arXiv:1805.02867; Dao et al., arXiv:2205.14135); a small one is one block (:func:`block_of`).
The backward pass adds what flows to the cache into buffers that it is given. The loops over blocks have a traced length:
they are never differentiated by JAX.

Letters: B rows, K key heads, G query heads a key head, S segment, N capacity, H head size.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

BLOCK = 64  # slots of a large cache that are read at a time; every capacity is a multiple of it
_MASKED = -1e30  # finite: a block that a row cannot see at all must not give nan


class Before(NamedTuple):
    """What stands before a segment: cached keys and values, of which each row sees its first ``length`` slots."""

    keys: Float[Array, "B K N H"]
    values: Float[Array, "B K N H"]
    length: Int[Array, " B"]


class Attended(NamedTuple):
    """What attention returns and its backward pass needs again: the mean of values, and the scores' logsumexp."""

    out: Float[Array, "B K G S H"]
    logsumexp: Float[Array, "B K G S"]


def _scores(q: Float[Array, "B K G S H"], k: Float[Array, "B K M H"]) -> Float[Array, "B K G S M"]:
    accumulate = jnp.promote_types(q.dtype, jnp.float32)
    return (
        jnp.einsum("bkgsh,bkmh->bkgsm", q, k, preferred_element_type=accumulate)
        * q.shape[-1] ** -0.5
    )


def _causal(size: int) -> Array:
    return jnp.tril(jnp.ones((size, size), bool))


def _block(
    x: Float[Array, "B K N H"], index: Int[ArrayLike, ""], block: int
) -> Float[Array, "B K M H"]:
    return lax.dynamic_slice_in_dim(x, index * block, block, 2)


def _seen(before: Before, index: Int[ArrayLike, ""], block: int) -> Array:
    slots = jnp.arange(block) + index * block
    return (slots < before.length[:, None])[:, None, None, None, :]


def _over_blocks(step, carry, before: Before | None, block: int):
    """Runs ``step`` over the blocks that any row sees; straight on, without a loop, where there is but one."""
    if before is None:
        return carry
    capacity = before.keys.shape[2]
    # A ragged last block would be read clamped, so that some slots count twice, in silence.
    if capacity % block:
        raise ValueError(f"capacity: expected a multiple of the block ({block}), got {capacity}")
    if capacity == block:
        return step(before, 0, carry)
    return lax.fori_loop(
        0, (jnp.max(before.length) + block - 1) // block, partial(step, before), carry
    )


def block_of(capacity: int) -> int:
    """The block to take slots or tokens in: all at once where they are few, which is one matrix product."""
    return capacity if capacity <= 4 * BLOCK else BLOCK


def attend(
    q: Float[Array, "B K G S H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S H"],
    before: Before | None,
    *,
    block: int,
) -> Attended:
    """Attends from a segment to the cache before it and to itself.

    Padding needs no mask: it stands at the end of a segment, where no real query looks.

    Args:
        q: the segment's queries, grouped by key head.
        k: the segment's own keys.
        v: the segment's own values.
        before: the cache; None where nothing stands before.
        block: slots of the cache read at a time; its capacity is a multiple of it (see :func:`block_of`).

    Returns:
        The output in the dtype of ``v``, and the logsumexp in at least float32.

    Raises:
        ValueError: if the capacity is no multiple of the block.

    Example:
        >>> out = attend(q, k, v, Before(keys, values, length), block=64).out
    """
    accumulate = jnp.promote_types(q.dtype, jnp.float32)

    def weighted(
        p: Float[Array, "B K G S M"], v: Float[Array, "B K M H"]
    ) -> Float[Array, "B K G S H"]:
        return jnp.einsum(
            "bkgsm,bkmh->bkgsh", p.astype(v.dtype), v, preferred_element_type=accumulate
        )

    def step(before: Before, index, carry):
        top, total, out = carry
        scores = _scores(q, _block(before.keys, index, block))
        scores = jnp.where(_seen(before, index, block), scores, _MASKED)
        new_top = jnp.maximum(top, scores.max(-1))
        shrink = jnp.exp(top - new_top)
        p = jnp.exp(scores - new_top[..., None])
        out = out * shrink[..., None] + weighted(p, _block(before.values, index, block))
        return new_top, total * shrink + p.sum(-1), out

    scores = jnp.where(_causal(q.shape[3]), _scores(q, k), _MASKED)
    top = scores.max(-1)
    p = jnp.exp(scores - top[..., None])
    carry = top, p.sum(-1), weighted(p, v)
    top, total, out = _over_blocks(step, carry, before, block)
    return Attended((out / total[..., None]).astype(v.dtype), top + jnp.log(total))


class Cotangents(NamedTuple):
    """Gradients of a loss with respect to what :func:`attend` was given; None for a cache that was not there."""

    q: Float[Array, "B K G S H"]
    k: Float[Array, "B K S H"]
    v: Float[Array, "B K S H"]
    keys: Float[Array, "B K N H"] | None
    values: Float[Array, "B K N H"] | None


def attend_backward(
    q: Float[Array, "B K G S H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S H"],
    before: Before | None,
    attended: Attended,
    d_out: Float[Array, "B K G S H"],
    d_keys: Float[Array, "B K N H"] | None,
    d_values: Float[Array, "B K N H"] | None,
    *,
    block: int,
) -> Cotangents:
    """The backward pass of :func:`attend`; gradients of the cache are added to the buffers given.

    Args:
        q: the queries that :func:`attend` was given.
        k: the segment's own keys.
        v: the segment's own values.
        before: the cache that it was given, or None.
        attended: what it returned.
        d_out: gradient with respect to its output.
        d_keys: what has flowed to the cached keys so far, in at least float32.
        d_values: the same for the cached values.
        block: slots of the cache read at a time.

    Returns:
        Gradients of the segment's own q, k, v (at least float32), and the two buffers with this segment's share added.

    Example:
        >>> grads = attend_backward(q, k, v, before, attended, d_out, d_keys, d_values, block=64)
    """
    accumulate = jnp.promote_types(q.dtype, jnp.float32)
    out, logsumexp = attended
    delta = jnp.sum(d_out.astype(accumulate) * out.astype(accumulate), -1)
    d_out = d_out.astype(v.dtype)

    def einsum(form: str, *operands: Array) -> Array:
        return jnp.einsum(form, *operands, preferred_element_type=accumulate)

    def gradients(k, v, mask):
        p = jnp.exp(jnp.where(mask, _scores(q, k), _MASKED) - logsumexp[..., None])
        d_v = einsum("bkgsm,bkgsh->bkmh", p.astype(v.dtype), d_out)
        d_p = einsum("bkgsh,bkmh->bkgsm", d_out, v)
        d_scores = (p * (d_p - delta[..., None]) * q.shape[-1] ** -0.5).astype(q.dtype)
        d_q = einsum("bkgsm,bkmh->bkgsh", d_scores, k)
        return d_q, einsum("bkgsm,bkgsh->bkmh", d_scores, q), d_v

    def add(buffer, index, update):
        update = _block(buffer, index, block) + update.astype(buffer.dtype)
        return lax.dynamic_update_slice_in_dim(buffer, update, index * block, 2)

    def step(before: Before, index, carry):
        d_q, d_keys, d_values = carry
        k, v = _block(before.keys, index, block), _block(before.values, index, block)
        more_q, d_k, d_v = gradients(k, v, _seen(before, index, block))
        return d_q + more_q, add(d_keys, index, d_k), add(d_values, index, d_v)

    d_q, d_k, d_v = gradients(k, v, _causal(q.shape[3]))
    d_q, d_keys, d_values = _over_blocks(step, (d_q, d_keys, d_values), before, block)
    return Cotangents(d_q, d_k, d_v, d_keys, d_values)
