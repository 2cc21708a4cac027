"""LoRA: low-rank adapters beside every frozen linear (Hu et al., arXiv:2106.09685)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from mintjax.models.config import ModelConfig
from mintjax.products import kept, product

ATTENTION_LINEARS = ("q", "k", "v", "o")
MLP_LINEARS = ("gate", "up", "down")
LATENT_LINEARS = ("q_a", "q_b", "kv_a", "kv_b")
EXPERT_LINEARS = tuple(f"{kind}_{name}" for kind in ("experts", "shared") for name in MLP_LINEARS)

# Takes the place of a layer's number in the key of what stands outside of all layers.
_OUTSIDE = 2**31 - 1

# One linear's adapter is {"a": [r, in], "b": [out, r]}, stacked over a layer's experts where each has this linear; a whole
# adapter is {"layers": ({"q": ..., ...}, ...)} and, where the unembedding is trained, {"unembed": ...} beside it.
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
        """Refuse a rank below 1, and an adapter on nothing."""
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
        """Names of the linears that have an adapter in the layers where they are."""
        attention = ATTENTION_LINEARS + LATENT_LINEARS
        return attention * self.train_attn + (MLP_LINEARS + EXPERT_LINEARS) * self.train_mlp


def linear_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Shape ``(out, in)`` of each linear of a decoder layer, by name; layers of one model may differ.

    Linears that each expert has are stacked, ``(experts, out, in)``.
    """
    if not 0 <= layer < config.num_layers:
        raise IndexError(f"layer: expected one of {config.num_layers}, got {layer}")
    d, f = config.hidden_size, config.intermediate_size
    attention: dict[str, tuple[int, ...]]
    if config.latent is not None:
        attention = {**config.latent.linear_shapes(d, config.num_heads)}
    else:
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention = {"q": (queries, d), "k": (keys, d), "v": (keys, d), "o": (d, queries)}
    experts = config.experts_of(layer)
    if experts is not None:
        return attention | experts.linear_shapes(d)
    return attention | {"gate": (f, d), "up": (f, d), "down": (d, f)}


def init_adapter(
    config: ModelConfig,
    lora: LoraConfig,
    key: Key[Array, ""],
    dtype: jnp.dtype | type = jnp.float32,
) -> Adapter:
    """Makes an adapter that changes nothing yet: A uniform in ±1/sqrt(in), B zero.

    The scale of A depends on its own width only, and each linear's key is folded from its layer and name, and its
    expert where it has one, so that fewer layers, experts or trained linears leave the others' numbers as they were.

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

    def pair(key: Key[Array, ""], shape: tuple[int, ...]) -> dict[str, Float[Array, "..."]]:
        *stack, out_size, in_size = shape
        if stack:
            each = jax.vmap(lambda expert: pair(jax.random.fold_in(key, expert), shape[1:]))
            return each(jnp.arange(stack[0]))
        bound = in_size**-0.5
        a = jax.random.uniform(key, (lora.rank, in_size), dtype, -bound, bound)
        return {"a": a, "b": jnp.zeros((out_size, lora.rank), dtype)}

    order = ATTENTION_LINEARS + MLP_LINEARS + EXPERT_LINEARS + LATENT_LINEARS

    def one_layer(layer: int) -> Adapter:
        layer_key, shapes = jax.random.fold_in(key, layer), linear_shapes(config, layer)
        return {
            name: pair(jax.random.fold_in(layer_key, order.index(name)), shapes[name])
            for name in lora.linears
            if name in shapes
        }

    adapter: Adapter = {"layers": tuple(map(one_layer, range(config.num_layers)))}
    if lora.train_unembed:
        adapter["unembed"] = pair(
            jax.random.fold_in(key, _OUTSIDE), (config.vocab_size, config.hidden_size)
        )
    return adapter


def layer_adapter(adapter: Adapter | None, layer: int) -> Adapter:
    """One layer's adapters by linear; empty for a policy without an adapter."""
    return {} if adapter is None else adapter["layers"][layer]


def linear(
    x: Float[Array, "... i"], weight: Float[Array, "o i"], adapter: Adapter | None, scale: float
) -> Float[Array, "... o"]:
    """A frozen linear and its adapter: ``x Wᵀ + scale (x Aᵀ) Bᵀ``.

    Products (:func:`mintjax.products.product`) are of the weight's dtype and are summed in at least float32, which is also
    what is returned.

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
    rows = x.astype(weight.dtype).reshape(-1, x.shape[-1])
    if adapter is None:
        y = kept(product(rows, weight, (1, 1)))
    else:
        y = _adapted(rows, weight, adapter["a"], adapter["b"], scale)
    return y.reshape(*x.shape[:-1], weight.shape[0])


def _adapted_forward(x, weight, a, b, scale):
    low = kept((scale * product(x, a, (1, 1))).astype(x.dtype))
    # Not the sum: on CPU the compiler holds both of its terms and adds them wherever it is used. The second is cheap.
    return kept(product(x, weight, (1, 1))) + product(low, b, (1, 1)), (x, weight, a, b, low)


def _adapted_backward(scale, saved, d_y):
    """Plain calculus; written out so that of each product the narrow factor is the one that gets transposed.

    The transposed cotangent of a wide linear costs as much as the product with its weight (on CPU).
    """
    x, weight, a, b, low = saved
    d_y = d_y.astype(x.dtype)
    d_low = (scale * product(d_y, b, (1, 0))).astype(x.dtype)
    d_x = product(d_y, weight, (1, 0)) + product(d_low, a, (1, 0))
    # Of a frozen weight: nothing asks for it, and the compiler leaves it out.
    d_weight = product(d_y, x, (0, 0))
    d_a, d_b = product(d_low, x, (0, 0)), product(low, d_y, (0, 0)).T
    pairs = ((d_x, x), (d_weight, weight), (d_a, a), (d_b, b))
    return tuple(gradient.astype(value.dtype) for gradient, value in pairs)


_adapted = jax.custom_vjp(lambda *args: _adapted_forward(*args)[0], nondiff_argnums=(4,))
_adapted.defvjp(_adapted_forward, _adapted_backward)
