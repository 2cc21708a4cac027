"""A frozen linear of every expert and its adapter, over rows sorted by expert."""

from functools import partial

import jax
from jaxtyping import Array, Float, Int

from mintjax.adapters import Adapter
from mintjax.models.grouped_product import Kind, grouped_rows, grouped_sums
from mintjax.products import kept


def grouped_linear(
    x: Float[Array, "T i"],
    weight: Float[Array, "E o i"],
    sizes: Int[Array, " E"],
    adapter: Adapter | None,
    scale: float,
    kind: Kind = "platform",
) -> Float[Array, "T o"]:
    """Each row through its expert's linear and adapter, ``x Wₑᵀ + scale (x Aₑᵀ) Bₑᵀ``.

    What :func:`mintjax.adapters.linear` is to one linear: products are of the weight's dtype, sums are in at least
    float32. All gradients are exact, that by the weight too; where nothing asks for it the compiler leaves it out.

    Args:
        x: rows, sorted by expert.
        weight: frozen weights.
        sizes: rows of each expert; they add up to T.
        adapter: ``{"a": [E, r, i], "b": [E, o, r]}``, or None where these linears have none.
        scale: alpha / rank.
        kind: how the products are computed (``mintjax.models.grouped_product``). Static.

    Returns:
        ``[T, o]`` in ``promote_types(weight.dtype, float32)``.

    Example:
        >>> y = grouped_linear(x, weights["experts_up"], sizes, adapter.get("experts_up"), lora.scale)
    """
    x = x.astype(weight.dtype)
    if adapter is None:
        return _plain(x, weight, sizes, kind)
    return _adapted(x, weight, adapter["a"], adapter["b"], sizes, scale, kind)


def _plain_forward(x, weight, sizes, kind):
    return kept(grouped_rows([(x, weight)], sizes, 2, kind)), (x, weight, sizes)


def _plain_backward(kind, saved, d_y):
    x, weight, sizes = saved
    d_y = d_y.astype(x.dtype)
    d_x = grouped_rows([(d_y, weight)], sizes, 1, kind)
    d_weight = grouped_sums(d_y, x, sizes, kind)
    return d_x.astype(x.dtype), d_weight.astype(weight.dtype), None


def _adapted_forward(x, weight, a, b, sizes, scale, kind):
    low = kept((scale * grouped_rows([(x, a)], sizes, 2, kind)).astype(x.dtype))
    y = kept(grouped_rows([(x, weight), (low, b)], sizes, 2, kind))
    return y, (x, weight, a, b, low, sizes)


def _adapted_backward(scale, kind, saved, d_y):
    x, weight, a, b, low, sizes = saved
    d_y = d_y.astype(x.dtype)
    d_low = (scale * grouped_rows([(d_y, b)], sizes, 1, kind)).astype(x.dtype)
    d_x = grouped_rows([(d_y, weight), (d_low, a)], sizes, 1, kind)
    sums = partial(grouped_sums, sizes=sizes, kind=kind)
    d_weight, d_a, d_b = sums(d_y, x), sums(d_low, x), sums(d_y, low)
    pairs = ((d_x, x), (d_weight, weight), (d_a, a), (d_b, b))
    return *(gradient.astype(value.dtype) for gradient, value in pairs), None


_plain = jax.custom_vjp(lambda *args: _plain_forward(*args)[0], nondiff_argnums=(3,))
_plain.defvjp(_plain_forward, _plain_backward)
_adapted = jax.custom_vjp(lambda *args: _adapted_forward(*args)[0], nondiff_argnums=(5, 6))
_adapted.defvjp(_adapted_forward, _adapted_backward)
