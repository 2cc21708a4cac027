"""Attention of a segment over everything before it, by blocks, forwards and backwards.

Queries of a segment see the first ``prefix`` slots of a row's cache, and their own segment up to themselves:

    slot      0 1 2 | own 0 1 2          prefix = 3, segment of 3
    query 0   1 1 1 |     1 0 0
    query 1   1 1 1 |     1 1 0
    query 2   1 1 1 |     1 1 1

The cache is read in blocks up to the longest prefix of the batch, never up to its capacity, with a running softmax
(Milakov and Gimelshein, arXiv:1805.02867; Dao et al., arXiv:2205.14135), and the backward pass adds what flows to the
cache into buffers that it is given. Both loops have a traced length: neither is ever differentiated by JAX.

Letters: B rows, K key heads, G query heads a key head, S segment, N capacity, H head size.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

_MASKED = -1e30  # finite: a block that a row cannot see at all must not give nan


class Attended(NamedTuple):
    """What attention returns and its backward pass needs again: the mean of values, and the scores' logsumexp."""

    out: Float[Array, "B K G S H"]
    logsumexp: Float[Array, "B K G S"]


def _scores(q: Float[Array, "B K G S H"], k: Float[Array, "B K M H"]) -> Float[Array, "B K G S M"]:
    accumulate = jnp.promote_types(q.dtype, jnp.float32)
    return jnp.einsum("bkgsh,bkmh->bkgsm", q, k, preferred_element_type=accumulate) * q.shape[-1] ** -0.5


def _causal(size: int) -> Array:
    return jnp.tril(jnp.ones((size, size), bool))


def _block(x: Float[Array, "B K N H"], index: Int[Array, ""], block: int) -> Float[Array, "B K M H"]:
    return lax.dynamic_slice_in_dim(x, index * block, block, 2)


def _seen(prefix: Int[Array, " B"], index: Int[Array, ""], block: int) -> Array:
    slots = index * block + jnp.arange(block)
    return (slots < prefix[:, None])[:, None, None, None, :]


def _blocks(prefix: Int[Array, " B"], keys: Float[Array, "B K N H"], block: int) -> Int[Array, ""]:
    # A ragged last block would be read clamped, so that some slots count twice, in silence.
    if keys.shape[2] % block:
        raise ValueError(f"capacity: expected a multiple of the block ({block}), got {keys.shape[2]}")
    return (jnp.max(prefix) + block - 1) // block


def attend(
    q: Float[Array, "B K G S H"],
    keys: Float[Array, "B K N H"],
    values: Float[Array, "B K N H"],
    prefix: Int[Array, " B"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S H"],
    *,
    block: int,
) -> Attended:
    """Attends from a segment to the cache before it and to itself.

    Padding needs no mask: it stands at the end of a segment, where no real query looks.

    Args:
        q: the segment's queries, grouped by key head.
        keys: cached keys; slots at or past ``prefix`` are not seen.
        values: cached values.
        prefix: how many slots each row sees.
        k: the segment's own keys.
        v: the segment's own values.
        block: slots read at a time; the capacity is a multiple of it.

    Returns:
        The output in the dtype of ``v``, and the logsumexp in at least float32.

    Raises:
        ValueError: if the capacity is no multiple of the block.
    """
    accumulate = jnp.promote_types(q.dtype, jnp.float32)

    def weighted(p: Float[Array, "B K G S M"], v: Float[Array, "B K M H"]) -> Float[Array, "B K G S H"]:
        return jnp.einsum("bkgsm,bkmh->bkgsh", p.astype(v.dtype), v, preferred_element_type=accumulate)

    scores = jnp.where(_causal(q.shape[3]), _scores(q, k), _MASKED)
    top = scores.max(-1)
    p = jnp.exp(scores - top[..., None])

    def step(index, carry):
        top, total, out = carry
        scores = _scores(q, _block(keys, index, block))
        scores = jnp.where(_seen(prefix, index, block), scores, _MASKED)
        new_top = jnp.maximum(top, scores.max(-1))
        shrink = jnp.exp(top - new_top)
        p = jnp.exp(scores - new_top[..., None])
        out = out * shrink[..., None] + weighted(p, _block(values, index, block))
        return new_top, total * shrink + p.sum(-1), out

    carry = top, p.sum(-1), weighted(p, v)
    top, total, out = lax.fori_loop(0, _blocks(prefix, keys, block), step, carry)
    return Attended((out / total[..., None]).astype(v.dtype), top + jnp.log(total))


class Cotangents(NamedTuple):
    """Gradients of a loss with respect to what :func:`attend` was given."""

    q: Float[Array, "B K G S H"]
    keys: Float[Array, "B K N H"]
    values: Float[Array, "B K N H"]
    k: Float[Array, "B K S H"]
    v: Float[Array, "B K S H"]


def attend_backward(
    q: Float[Array, "B K G S H"],
    keys: Float[Array, "B K N H"],
    values: Float[Array, "B K N H"],
    prefix: Int[Array, " B"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S H"],
    attended: Attended,
    d_out: Float[Array, "B K G S H"],
    d_keys: Float[Array, "B K N H"],
    d_values: Float[Array, "B K N H"],
    *,
    block: int,
) -> Cotangents:
    """The backward pass of :func:`attend`; gradients of the cache are added to the buffers given.

    Args:
        q, keys, values, prefix, k, v, block: what :func:`attend` was given.
        attended: what it returned.
        d_out: gradient with respect to its output.
        d_keys: what has flowed to the cached keys so far, in at least float32.
        d_values: the same for the cached values.

    Returns:
        Gradients of the segment's own q, k, v (at least float32), and the two buffers with this segment's share added.
    """
    accumulate = jnp.promote_types(q.dtype, jnp.float32)
    out, logsumexp = attended
    delta = jnp.sum(d_out.astype(accumulate) * out.astype(accumulate), -1)
    d_out = d_out.astype(v.dtype)

    def block_gradients(k, v, mask):
        p = jnp.exp(jnp.where(mask, _scores(q, k), _MASKED) - logsumexp[..., None])
        einsum = lambda *x: jnp.einsum(*x, preferred_element_type=accumulate)  # noqa: E731
        d_v = einsum("bkgsm,bkgsh->bkmh", p.astype(v.dtype), d_out)
        d_p = einsum("bkgsh,bkmh->bkgsm", d_out, v)
        d_scores = (p * (d_p - delta[..., None]) * q.shape[-1] ** -0.5).astype(q.dtype)
        d_q = einsum("bkgsm,bkmh->bkgsh", d_scores, k)
        return d_q, einsum("bkgsm,bkgsh->bkmh", d_scores, q), d_v

    def add(buffer, index, update):
        update = _block(buffer, index, block) + update.astype(buffer.dtype)
        return lax.dynamic_update_slice_in_dim(buffer, update, index * block, 2)

    def step(index, carry):
        d_q, d_keys, d_values = carry
        k, v = _block(keys, index, block), _block(values, index, block)
        more_q, d_k, d_v = block_gradients(k, v, _seen(prefix, index, block))
        return d_q + more_q, add(d_keys, index, d_k), add(d_values, index, d_v)

    d_q, d_k, d_v = block_gradients(k, v, _causal(q.shape[3]))
    carry = d_q, d_keys, d_values
    d_q, d_keys, d_values = lax.fori_loop(0, _blocks(prefix, keys, block), step, carry)
    return Cotangents(d_q, d_keys, d_values, d_k, d_v)


