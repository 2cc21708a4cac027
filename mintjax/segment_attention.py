"""Attention of a segment over the spans before it, by the kernel of a name: forwards, and with its backward pass in hand."""

from collections.abc import Callable, Sequence

import jax
from jaxtyping import Array, Float

from mintjax.attention import Cotangents, Span, attend, attend_backward
from mintjax.attention_kernels import Kernel, platform_attention

# Gradients of the keys and the values of each span.
_Flowed = Sequence[tuple[Array, Array]]


def attend_segment(
    q: Float[Array, "B K G S H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S H"],
    spans: Sequence[Span],
    kernel: Kernel,
    *,
    window: int | None = None,
    sinks: Float[Array, " KG"] | None = None,
) -> Float[Array, "B K G S H"]:
    """Attends from a segment to the spans before it and to itself.

    Args:
        q: the segment's queries, grouped by key head.
        k: the segment's own keys.
        v: the segment's own values.
        spans: what stands before.
        kernel: what computes it.
        window: tokens that a query sees at most; for ``"blockwise"`` alone.
        sinks: a further score for each query head; for ``"blockwise"`` alone.

    Returns:
        The mean of the values that each position sees, in their dtype.

    Example:
        >>> out = attend_segment(q, k, v, [Span(keys, values, length)], "blockwise")
    """
    if kernel == "blockwise":
        return attend(q, k, v, spans, window=window, sinks=sinks).out
    return platform_attention(kernel, window, sinks)(q, k, v, spans)


def attend_segment_vjp(
    q: Float[Array, "B K G S H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S H"],
    spans: Sequence[Span],
    kernel: Kernel,
    *,
    window: int | None = None,
    sinks: Float[Array, " KG"] | None = None,
) -> tuple[Float[Array, "B K G S H"], Callable[[Array, _Flowed], Cotangents]]:
    """:func:`attend_segment`, and the function that pulls a gradient back through it, to all but the sinks.

    Args:
        q: the segment's queries, grouped by key head.
        k: the segment's own keys.
        v: the segment's own values.
        spans: what stands before.
        kernel: what computes it.
        window: tokens that a query sees at most; for ``"blockwise"`` alone.
        sinks: a further score for each query head; for ``"blockwise"`` alone.

    Returns:
        The output; and a function of the output's gradient and of what has flowed to the spans' keys and values so far,
        which returns those with this segment's share added, and the gradients of q, k and v.

    Example:
        >>> out, pull = attend_segment_vjp(q, k, v, [span], "blockwise")
        >>> grads = pull(d_out, [(d_keys, d_values)])
    """
    if kernel == "blockwise":
        attended = attend(q, k, v, spans, window=window, sinks=sinks)

        def pull(d_out: Array, flowed: _Flowed) -> Cotangents:
            return attend_backward(q, k, v, spans, attended, d_out, flowed, window=window)

        return attended.out, pull

    attention = platform_attention(kernel, window, sinks)

    def run(q, k, v, cached):
        pairs = zip(cached, spans, strict=True)
        seen = [Span(keys, values, span.length) for (keys, values), span in pairs]
        return attention(q, k, v, seen)

    out, pull_run = jax.vjp(run, q, k, v, [(span.keys, span.values) for span in spans])

    def pull_and_add(d_out: Array, flowed: _Flowed) -> Cotangents:
        d_q, d_k, d_v, more = pull_run(d_out)
        # The buffers are at least float32, and the sum is theirs.
        pairs = zip(flowed, more, strict=True)
        return Cotangents(d_q, d_k, d_v, tuple((a + c, b + d) for (a, b), (c, d) in pairs))

    return out, pull_and_add
