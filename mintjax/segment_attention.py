"""Attention of a segment over its cache, by the kernel of a name: forwards, and with its backward pass in hand."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float

from mintjax.attention import Before, Cotangents, attend, attend_backward
from mintjax.attention_kernels import Kernel, platform_attention


def attend_segment(
    q: Float[Array, "B K G S H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S H"],
    before: Before,
    *,
    block: int,
    kernel: Kernel,
) -> Float[Array, "B K G S H"]:
    """Attends from a segment to the cache before it and to itself.

    Args:
        q: the segment's queries, grouped by key head.
        k: the segment's own keys.
        v: the segment's own values.
        before: the cache.
        block: slots of the cache that ``"blockwise"`` reads at a time.
        kernel: what computes it.

    Returns:
        The mean of the values that each position sees, in their dtype.

    Example:
        >>> out = attend_segment(q, k, v, Before(keys, values, length), block=64, kernel="blockwise")
    """
    if kernel == "blockwise":
        return attend(q, k, v, before, block=block).out
    return platform_attention(kernel)(q, k, v, before)


def attend_segment_vjp(
    q: Float[Array, "B K G S H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S H"],
    before: Before,
    *,
    block: int,
    kernel: Kernel,
) -> tuple[Float[Array, "B K G S H"], Callable[[Array, Array, Array], Cotangents]]:
    """:func:`attend_segment`, and the function that pulls a gradient back through it.

    Args:
        q: the segment's queries, grouped by key head.
        k: the segment's own keys.
        v: the segment's own values.
        before: the cache.
        block: slots of the cache that ``"blockwise"`` reads at a time.
        kernel: what computes it.

    Returns:
        The output; and a function of the output's gradient and of what has flowed to the cached keys and values so far,
        which returns those two with this segment's share added, and the gradients of q, k and v.

    Example:
        >>> out, pull = attend_segment_vjp(q, k, v, before, block=64, kernel="blockwise")
        >>> grads = pull(d_out, d_keys, d_values)
    """
    if kernel == "blockwise":
        attended = attend(q, k, v, before, block=block)

        def pull(d_out: Array, d_keys: Array, d_values: Array) -> Cotangents:
            return attend_backward(q, k, v, before, attended, d_out, d_keys, d_values, block=block)

        return attended.out, pull

    def run(q, k, v, keys, values):
        return platform_attention(kernel)(q, k, v, Before(keys, values, before.length))

    out, pull_run = jax.vjp(run, q, k, v, before.keys, before.values)

    def pull_and_add(d_out: Array, d_keys: Array, d_values: Array) -> Cotangents:
        d_q, d_k, d_v, more_keys, more_values = pull_run(d_out)
        # The buffers are at least float32, and the sum is theirs.
        return Cotangents(d_q, d_k, d_v, d_keys + more_keys, d_values + more_values)

    return out, pull_and_add
