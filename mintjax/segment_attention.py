"""Attention of a segment over the spans before it, by the kernel of a name: forwards, and with its backward pass in hand."""

from collections.abc import Callable, Sequence

import jax
from jaxtyping import Array, Float

from mintjax.attention import Cotangents, Span, attend, attend_backward, span_of
from mintjax.attention_kernels import Kernel, platform_attention
from mintjax.ordering import after

# Gradients of the buffers of each span.
_Flowed = Sequence[tuple[Array, ...]]


def attend_segment(
    q: Float[Array, "B K G S H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S V"],
    spans: Sequence[Span],
    kernel: Kernel,
    *,
    window: int | None = None,
    sinks: Float[Array, " KG"] | None = None,
) -> Float[Array, "B K G S V"]:
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
    v: Float[Array, "B K S V"],
    spans: Sequence[Span],
    kernel: Kernel,
    *,
    window: int | None = None,
    sinks: Float[Array, " KG"] | None = None,
) -> tuple[Float[Array, "B K G S V"], Callable[[Array, _Flowed], Cotangents]]:
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
        The output; and a function of the output's gradient and of what has flowed to the spans' buffers so far,
        which returns those with this segment's share added, and the gradients of q, k and v.

    Example:
        >>> out, pull = attend_segment_vjp(q, k, v, [span], "blockwise")
        >>> grads = pull(d_out, [(d_keys, d_values)])
    """
    if kernel == "blockwise":
        attended = attend(q, k, v, spans, window=window, sinks=sinks)

        def pull(d_out: Array, flowed: _Flowed) -> Cotangents:
            # The segment's own scores need no cotangent, and would be made in all layers before the first one's turn.
            own_q, own_k, own_v = (after(x, d_out) for x in (q, k, v))
            return attend_backward(
                own_q, own_k, own_v, spans, attended, d_out, flowed, window=window
            )

        return attended.out, pull

    attention = platform_attention(kernel, window, sinks)

    def run(q, k, v, cached):
        pairs = zip(cached, spans, strict=True)
        seen = [span_of(buffers, span.length) for buffers, span in pairs]
        return attention(q, k, v, seen)

    out, pull_run = jax.vjp(run, q, k, v, [span.buffers for span in spans])

    def pull_and_add(d_out: Array, flowed: _Flowed) -> Cotangents:
        d_q, d_k, d_v, more = pull_run(d_out)
        # The buffers are at least float32, and the sum is theirs.
        pairs = zip(flowed, more, strict=True)
        added = (tuple(a + b for a, b in zip(*pair, strict=True)) for pair in pairs)
        return Cotangents(d_q, d_k, d_v, tuple(added))

    return out, pull_and_add
