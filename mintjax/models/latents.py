"""Multi-head latent attention, absorbed: queries meet the cached latents themselves, and no key or value is ever made.

Of head h, a key is ``[W_h c, k]`` and a value ``U_h c``, where c is a token's latent and k its rotated key, which all heads
share. So ``[q, r] · [W_h c, k] = [W_hᵀ q, r] · [c, k]``: what attention sees is one key head ``[c, k]`` for all query heads,
of which the first numbers are the value, and U_h turns the mean of latents into the head's mean of values afterwards.
(DeepSeek-V2, arXiv:2405.04434, section 2.1.2.)
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from mintjax.adapters import Adapter, LoraConfig
from mintjax.models.latent_config import LatentConfig
from mintjax.models.rope import apply_rope
from mintjax.products import kept

# A linear of the layer by its name, with its adapter; and a norm by its name.
Linear = Callable[[str, Array], Array]
Norm = Callable[[str, Array], Array]


def latent_queries_keys_values(
    latent: LatentConfig,
    lora: LoraConfig,
    weights: dict[str, Array],
    adapter: Adapter,
    x: Float[Array, "B S D"],
    rope: tuple[Float[Array, "B S half"], Float[Array, "B S half"]],
    project: Linear,
    norm: Norm,
) -> tuple[Float[Array, "B 1 G S C"], Float[Array, "B 1 S C"], Float[Array, "B 1 S R"]]:
    """What attention is given in place of queries, keys and values.

    Args:
        latent: the widths.
        lora: scale of the adapter.
        weights: the layer's weights.
        adapter: the layer's adapters, possibly empty.
        x: the normed residual stream.
        rope: cos and sin tables of the tokens' positions.
        project: one of the layer's linears.
        norm: one of its norms.

    Returns:
        Queries of all G heads, the cached latents and rotated keys (C = R + rope_dim), and the latents among them; in at
        least float32. Queries are not scaled.
    """
    batch, size, _ = x.shape
    low = x if latent.query_rank is None else norm("q_a_norm", project("q_a", x))
    query = project("q" if latent.query_rank is None else "q_b", low)
    query = query.reshape(batch, size, -1, latent.key_dim + latent.rope_dim)
    absorbed = _absorbed(latent, lora, weights, adapter, query[..., : latent.key_dim])
    q = jnp.concatenate([absorbed, _turned(latent, query[..., latent.key_dim :], rope)], -1)
    kv = project("kv_a", x)
    c = norm("kv_a_norm", kv[..., : latent.rank])[..., None, :]
    k = jnp.concatenate([c, _turned(latent, kv[..., None, latent.rank :], rope)], -1)
    # One key head, and all query heads beside it.
    q, k = q.transpose(0, 2, 1, 3)[:, None], k.transpose(0, 2, 1, 3)
    return q, k, k[..., : latent.rank]


def values_of(
    latent: LatentConfig,
    lora: LoraConfig,
    weights: dict[str, Array],
    adapter: Adapter,
    attended: Float[Array, "B S heads R"],
) -> Float[Array, "B S heads value_dim"]:
    """Each head's mean of values, from its mean of latents; in at least float32.

    Example:
        >>> heads = values_of(config.latent, lora, weights, adapter, attended)
    """
    weight = weights["kv_b"]
    values = _heads(latent, weight)[:, latent.key_dim :]
    y = kept(_product("bshr,hvr->bshv", attended, values, weight))
    if (pair := adapter.get("kv_b")) is not None:
        low = lora.scale * kept(_product("bshr,ar->bsha", attended, pair["a"], weight))
        values = _heads(latent, pair["b"])[:, latent.key_dim :]
        y += _product("bsha,hva->bshv", low, values, weight)
    return y


def _absorbed(
    latent: LatentConfig,
    lora: LoraConfig,
    weights: dict[str, Array],
    adapter: Adapter,
    query: Float[Array, "B S heads key_dim"],
) -> Float[Array, "B S heads R"]:
    """Queries that meet latents as they would meet the keys that are made from them."""
    weight = weights["kv_b"]
    keys = _heads(latent, weight)[:, : latent.key_dim]
    q = kept(_product("bshk,hkr->bshr", query, keys, weight))
    if (pair := adapter.get("kv_b")) is not None:
        keys = _heads(latent, pair["b"])[:, : latent.key_dim]
        low = lora.scale * kept(_product("bshk,hka->bsha", query, keys, weight))
        q += _product("bsha,ar->bshr", low, pair["a"], weight)
    return q


def _turned(latent: LatentConfig, x: Float[Array, "B S heads rope_dim"], rope: Any) -> Array:
    """Rotated numbers, which are then halves whatever they were before: queries and keys alike."""
    if latent.interleaved:
        x = x.reshape(*x.shape[:-1], -1, 2).swapaxes(-1, -2).reshape(x.shape)
    return apply_rope(x, *rope)


def _heads(latent: LatentConfig, x: Float[Array, "out i"]) -> Float[Array, "heads rows i"]:
    """``kv_b``, or its adapter's ``b``, head by head: the rows that make keys, and then those that make values."""
    return x.reshape(-1, latent.key_dim + latent.value_dim, x.shape[-1])


def _product(form: str, x: Array, y: Array, weight: Array) -> Array:
    """An einsum in the weight's dtype, summed in at least float32."""
    accumulate = jnp.promote_types(weight.dtype, jnp.float32)
    operands = x.astype(weight.dtype), y.astype(weight.dtype)
    return jnp.einsum(form, *operands, preferred_element_type=accumulate)
