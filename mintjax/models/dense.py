"""The dense decoder: its layers as Flax NNX modules, and the same layers as pure functions.

The modules say what there is (names, shapes, initial values); every computation, theirs too, goes through the pure
functions below, which take one layer's weights as a plain dict. Linears are stored ``[out, in]``, as checkpoints are.
"""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from mintjax.adapters import Adapter, LoraConfig, linear, linear_shapes
from mintjax.models.config import ModelConfig, like_layer
from mintjax.models.expert_config import FLOAT32_WEIGHTS
from mintjax.models.experts import run_experts
from mintjax.models.latents import latent_queries_keys_values, values_of
from mintjax.models.rope import apply_rope

Weights = dict[str, Any]

_ACTIVATIONS = {"silu": jax.nn.silu, "gelu_tanh": partial(jax.nn.gelu, approximate=True)}


class DecoderLayer(nnx.Module):
    """One layer's parameters: grouped-query attention, and a gated MLP or experts, each behind its norm."""

    def __init__(self, config: ModelConfig, layer: int, *, dtype: Any, rngs: nnx.Rngs) -> None:
        """Draws linears from a normal of standard deviation 1/sqrt(in); norms change nothing, nor do biases."""
        ones = partial(jnp.full, fill_value=1 - config.norm_offset, dtype=dtype)
        self.attn_norm = nnx.Param(ones(config.hidden_size))
        self.mlp_norm = nnx.Param(ones(config.hidden_size))
        if config.post_norms:
            self.attn_post_norm = nnx.Param(ones(config.hidden_size))
            self.mlp_post_norm = nnx.Param(ones(config.hidden_size))
        for name, size in ({} if config.latent is None else config.latent.norm_sizes()).items():
            setattr(self, name, nnx.Param(ones(size)))
        if config.qk_norm:
            self.q_norm = nnx.Param(ones(config.head_dim))
            self.k_norm = nnx.Param(ones(config.head_dim))
        if config.sinks:
            self.sinks = nnx.Param(jnp.zeros(config.num_heads, dtype))
        shapes = linear_shapes(config, layer)
        for name in config.biases:
            setattr(self, f"{name}_bias", nnx.Param(jnp.zeros(shapes[name][0], dtype)))
        experts = config.experts_of(layer)
        frozen = {} if experts is None else experts.other_shapes(config.hidden_size)
        for name, shape in (shapes | frozen).items():
            if name.startswith("router_") or name.endswith("_bias"):
                own = jnp.float32 if name in FLOAT32_WEIGHTS else dtype
                setattr(self, name, nnx.Param(jnp.zeros(shape, jnp.promote_types(dtype, own))))
            else:
                draw = jax.random.normal(rngs.params(), shape, dtype)
                setattr(self, name, nnx.Param(draw * shape[-1] ** -0.5))


class Decoder(nnx.Module):
    """All parameters of a dense decoder."""

    def __init__(self, config: ModelConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs) -> None:
        """Draws initial parameters; a checkpoint's take their place by name (``mintjax.weights``)."""
        shape = (config.vocab_size, config.hidden_size)
        self.embed = nnx.Param(
            jax.random.normal(rngs.params(), shape, dtype) * config.hidden_size**-0.5
        )
        self.norm = nnx.Param(jnp.full(config.hidden_size, 1 - config.norm_offset, dtype))
        self.layers = nnx.List(
            [DecoderLayer(config, i, dtype=dtype, rngs=rngs) for i in range(config.num_layers)]
        )
        if not config.tied_head:
            self.unembed = nnx.Param(
                jax.random.normal(rngs.params(), shape, dtype) * config.hidden_size**-0.5
            )


def weights_of(decoder: Decoder) -> Weights:
    """A module's parameters as the plain pytree that the pure functions take.

    Returns:
        ``{"embed": [V, D], "norm": [D], "layers": ({"q": [out, in], ...}, ...)}``, and ``"unembed": [V, D]`` where the
        head is not tied to the embedding.
    """
    pure = nnx.to_pure_dict(nnx.state(decoder, nnx.Param))
    return pure | {"layers": tuple(pure["layers"][i] for i in range(len(pure["layers"])))}


def init_weights(config: ModelConfig, key: Key[Array, ""], dtype: Any = jnp.float32) -> Weights:
    """Draws the weights of an untrained decoder in one compiled call.

    Example:
        >>> base = init_weights(config, jax.random.key(0))
    """
    return jax.jit(lambda key: weights_of(Decoder(config, dtype=dtype, rngs=nnx.Rngs(key))))(key)


def weight_shapes(config: ModelConfig, dtype: Any = jnp.float32) -> Weights:
    """The same tree as :func:`init_weights` with ``jax.ShapeDtypeStruct`` leaves: what a checkpoint must hold."""
    # Tracing all layers of a deep model takes half a minute, and they are of few kinds.
    models = [_one_layer_shapes(like_layer(config, i, 1), dtype) for i in range(config.num_layers)]
    return models[0] | {"layers": tuple(model["layers"][0] for model in models)}


@cache
def _one_layer_shapes(config: ModelConfig, dtype: Any) -> Weights:
    return jax.eval_shape(lambda: weights_of(Decoder(config, dtype=dtype, rngs=nnx.Rngs(0))))


def rms_norm(
    x: Float[Array, "... D"], weight: Float[Array, " D"], eps: float
) -> Float[Array, "... D"]:
    """Root-mean-square norm (Zhang and Sennrich, arXiv:1910.07467) in at least float32, in which it is returned."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight.astype(x.dtype)


def _norm(config: ModelConfig, x: Float[Array, "... D"], weight: Float[Array, " D"]) -> Array:
    """The model's norm, in at least float32, in which its weight is offset."""
    weight = weight.astype(jnp.promote_types(weight.dtype, jnp.float32))
    return rms_norm(x, weight + config.norm_offset, config.norm_eps)


def embed(
    config: ModelConfig, weights: Weights, tokens: Int[Array, "B S"]
) -> Float[Array, "B S D"]:
    """Token embeddings as the residual stream, which is kept in at least float32 whatever the weights are in."""
    table = weights["embed"]
    rows = table[tokens].astype(jnp.promote_types(table.dtype, jnp.float32))
    # Trained with the scale rounded to the weights' dtype.
    return rows * jnp.asarray(config.embed_scale, table.dtype).astype(rows.dtype)


def queries_keys_values(
    config: ModelConfig,
    lora: LoraConfig,
    weights: Weights,
    adapter: Adapter,
    residual: Float[Array, "B S D"],
    rope: tuple[Float[Array, "B S half"], Float[Array, "B S half"]],
) -> tuple[Float[Array, "B K G S H"], Float[Array, "B K S H"], Float[Array, "B K S V"]]:
    """The first half of a layer: norm, projections, q/k norm, rotation.

    Args:
        config: the model.
        lora: scale of the adapter.
        weights: one layer's weights.
        adapter: one layer's adapters, possibly empty.
        residual: residual stream.
        rope: cos and sin tables of the tokens' positions.

    Returns:
        Queries grouped by the key head they share (G = query heads a key head), keys and values, all in the weights'
        dtype: that is what a cache stores, so fresh and cached keys are the same numbers. Of latent attention, what
        :func:`mintjax.models.latents.latent_queries_keys_values` has in their place.
    """
    batch, size, _ = residual.shape
    x = _norm(config, residual, weights["attn_norm"])
    dtype = weights["o"].dtype
    if (latent := config.latent) is not None:
        q, k, v = latent_queries_keys_values(
            latent,
            lora,
            weights,
            adapter,
            x,
            rope,
            partial(_project, lora, weights, adapter),
            lambda name, x: rms_norm(x, weights[name], latent.norm_eps),
        )
        return (q * config.query_scale).astype(dtype), k.astype(dtype), v.astype(dtype)

    def project(name: str) -> Float[Array, "B S heads H"]:
        y = _project(lora, weights, adapter, name, x)
        return y.reshape(batch, size, -1, config.head_dim)

    q, k, v = project("q"), project("k"), project("v")
    if config.qk_norm:
        q, k = _norm(config, q, weights["q_norm"]), _norm(config, k, weights["k_norm"])
    q, k = apply_rope(q, *rope) * config.query_scale, apply_rope(k, *rope)
    q = q.reshape(batch, size, config.num_kv_heads, -1, config.head_dim).transpose(0, 2, 3, 1, 4)
    return (
        q.astype(dtype),
        k.transpose(0, 2, 1, 3).astype(dtype),
        v.transpose(0, 2, 1, 3).astype(dtype),
    )


def attention_options(config: ModelConfig, weights: Weights, layer: int) -> dict[str, Any]:
    """What a layer's attention is given beside queries, keys and values: its window and its sinks."""
    return {"window": config.window_of(layer), "sinks": weights.get("sinks")}


def finish_layer(
    config: ModelConfig,
    lora: LoraConfig,
    weights: Weights,
    adapter: Adapter,
    residual: Float[Array, "B S D"],
    attended: Float[Array, "B K G S V"],
) -> Float[Array, "B S D"]:
    """The second half of a layer: output projection, and the gated MLP or the experts behind their norm."""
    batch, size, _ = residual.shape
    attended = attended.transpose(0, 3, 1, 2, 4)
    if config.latent is not None:
        attended = values_of(config.latent, lora, weights, adapter, attended[:, :, 0])
    attended = attended.reshape(batch, size, -1)

    project = partial(_project, lora, weights, adapter)
    behind = project("o", attended)
    if config.post_norms:
        behind = _norm(config, behind, weights["attn_post_norm"])
    residual = residual + behind
    x = _norm(config, residual, weights["mlp_norm"])
    if config.experts is not None and "router" in weights:
        behind = run_experts(config.experts, lora, weights, adapter, x)
    else:
        gate = _ACTIVATIONS[config.activation](project("gate", x))
        behind = project("down", gate * project("up", x))
    if config.post_norms:
        behind = _norm(config, behind, weights["mlp_post_norm"])
    return residual + behind


def _project(
    lora: LoraConfig, weights: Weights, adapter: Adapter, name: str, x: Float[Array, "B S i"]
) -> Float[Array, "B S o"]:
    """A linear of a layer, with its adapter and its bias where it has them."""
    y = linear(x, weights[name], adapter.get(name), lora.scale)
    bias = weights.get(f"{name}_bias")
    return y if bias is None else y + bias.astype(y.dtype)


def final_norm(
    config: ModelConfig, weights: Weights, residual: Float[Array, "B S D"]
) -> Float[Array, "B S D"]:
    """The hidden states that the head reads."""
    return _norm(config, residual, weights["norm"])


def unembed(
    lora: LoraConfig, weights: Weights, adapter: Adapter | None, hidden: Float[Array, "... D"]
) -> Float[Array, "... V"]:
    """Next-token logits of hidden states, in at least float32."""
    table = weights.get("unembed", weights["embed"])
    return linear(hidden, table, None if adapter is None else adapter.get("unembed"), lora.scale)
