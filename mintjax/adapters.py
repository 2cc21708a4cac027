"""LoRA: low-rank adapters beside every frozen linear (Hu et al., arXiv:2106.09685)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from mintjax.models.config import ModelConfig

ATTENTION_LINEARS = ("q", "k", "v", "o")
MLP_LINEARS = ("gate", "up", "down")

# One linear's adapter is {"a": [r, in], "b": [out, r]}; a whole adapter is {"layers": ({"q": ..., ...}, ...)} and, where
# the unembedding is trained, {"unembed": ...} beside it.
Adapter = dict


@dataclass(frozen=True)
class LoraConfig:
    """Which linears have an adapter, of what rank, and how much it weighs. Static: part of a policy's tree structure."""

    rank: int = 16
    alpha: float = 32.0
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank: expected an integer of at least 1, got {self.rank}")
        if not (self.train_attn or self.train_mlp or self.train_unembed):
            raise ValueError(
                "train_attn, train_mlp, train_unembed: all are false, so nothing would be trained; set one of them"
            )

    @property
    def scale(self) -> float:
        """What the product of the two factors is multiplied by, alpha / rank."""
        return self.alpha / self.rank

    @property
    def linears(self) -> tuple[str, ...]:
        """Names of the linears in each layer that have an adapter."""
        return ATTENTION_LINEARS * self.train_attn + MLP_LINEARS * self.train_mlp


def linear_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Shape ``(out, in)`` of each linear of one decoder layer, by name."""
    d, f = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "q": (queries, d),
        "k": (keys, d),
        "v": (keys, d),
        "o": (d, queries),
        "gate": (f, d),
        "up": (f, d),
        "down": (d, f),
    }


def init_adapter(
    config: ModelConfig, lora: LoraConfig, key: Key[Array, ""], dtype: jnp.dtype | type = jnp.float32
) -> Adapter:
    """Makes an adapter that changes nothing yet: A uniform in ±1/sqrt(in), B zero.

    The scale of A depends on its own width only, never on the number of layers, and each linear's key is folded from
    its layer and name, so that training fewer linears leaves the others' numbers as they were.

    Args:
        config: the model that the adapter stands beside.
        lora: rank and which linears.
        key: a typed key.
        dtype: of the masters; float32 except in tests.

    Returns:
        ``{"layers": ({"q": {"a": [r, in], "b": [out, r]}, ...}, ...)}`` and ``"unembed"`` if it is trained.

    Example:
        >>> adapter = init_adapter(config, LoraConfig(rank=8), jax.random.key(0))
    """
    shapes = linear_shapes(config)

    def pair(key: Key[Array, ""], shape: tuple[int, int]) -> dict[str, Float[Array, "..."]]:
        out_size, in_size = shape
        bound = in_size**-0.5
        a = jax.random.uniform(key, (lora.rank, in_size), dtype, -bound, bound)
        return {"a": a, "b": jnp.zeros((out_size, lora.rank), dtype)}

    order = ATTENTION_LINEARS + MLP_LINEARS
    layers = tuple(
        {
            name: pair(jax.random.fold_in(jax.random.fold_in(key, layer), order.index(name)), shapes[name])
            for name in lora.linears
        }
        for layer in range(config.num_layers)
    )
    adapter: Adapter = {"layers": layers}
    if lora.train_unembed:
        adapter["unembed"] = pair(
            jax.random.fold_in(key, config.num_layers), (config.vocab_size, config.hidden_size)
        )
    return adapter


def layer_adapter(adapter: Adapter | None, layer: int) -> Adapter:
    """One layer's adapters by linear; empty for a policy without an adapter."""
    return {} if adapter is None else adapter["layers"][layer]


def linear(
    x: Float[Array, "... i"], weight: Float[Array, "o i"], adapter: Adapter | None, scale: float
) -> Float[Array, "... o"]:
    """A frozen linear and its adapter: ``x Wᵀ + scale (x Aᵀ) Bᵀ``.

    Products are of the weight's dtype and are summed in at least float32, which is also what is returned.

    Args:
        x: inputs.
        weight: frozen weight.
        adapter: ``{"a", "b"}``, or None where this linear has none.
        scale: alpha / rank.

    Returns:
        ``[..., o]`` in ``promote_types(weight.dtype, float32)``.

    Example:
        >>> y = linear(x, weights["q"], adapter.get("q"), lora.scale)
    """
    accumulate = jnp.promote_types(weight.dtype, jnp.float32)

    def dot(x: Float[Array, "... i"], w: Float[Array, "o i"]) -> Float[Array, "... o"]:
        return jnp.einsum("...i,oi->...o", x, w, preferred_element_type=accumulate)

    x = x.astype(weight.dtype)
    y = dot(x, weight)
    if adapter is None:
        return y
    low = dot(x, adapter["a"].astype(weight.dtype)).astype(weight.dtype)
    return y + scale * dot(low, adapter["b"].astype(weight.dtype))
