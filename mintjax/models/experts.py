"""A mixture of experts as a layer's feed-forward half: each token through its few experts, and through what all share."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mintjax.adapters import Adapter, LoraConfig, linear
from mintjax.models.expert_config import ExpertsConfig
from mintjax.models.grouped_linear import grouped_linear
from mintjax.models.grouped_product import Kind
from mintjax.models.routing import route

# Of gpt-oss: its gate is x sigmoid(alpha x), and both inputs are clamped.
_ALPHA, _LIMIT = 1.702, 7.0


def run_experts(
    config: ExpertsConfig,
    lora: LoraConfig,
    weights: dict[str, Array],
    adapter: Adapter,
    x: Float[Array, "B S D"],
    kind: Kind = "platform",
) -> Float[Array, "B S D"]:
    """Routes each token, runs its experts' gated MLPs over it, and adds them up by weight.

    A token's result depends on no other token, so padding costs work and nothing else.

    Args:
        config: the mixture.
        lora: scale of the adapter.
        weights: ``router`` [E, D]; ``experts_gate`` and ``experts_up`` [E, f, D]; ``experts_down`` [E, D, f]; where the
            mixture has them ``router_correction`` [E], ``router_bias`` [E] and each expert linear's bias [E, out]; and
            ``shared_gate``, ``shared_up``, ``shared_down``.
        adapter: pairs by linear, those of experts stacked; possibly empty. The router has none.
        x: the layer's input, behind its norm.
        kind: how the experts' products are computed. Static.

    Returns:
        What the layer adds to the residual stream, in at least float32.

    Example:
        >>> residual = residual + run_experts(config.experts, lora, weights, adapter, x)
    """
    shape, x = x.shape, x.reshape(-1, x.shape[-1])
    routing = config.routing
    bias = weights["router_bias"] if config.bias else None
    correction = weights["router_correction"] if routing.kind == "sigmoid" else None
    chosen, shares = route(routing, router_logits(x, weights["router"], bias), correction)
    order = jnp.argsort(chosen.reshape(-1), stable=True)
    place = jnp.argsort(order)
    expert = chosen.reshape(-1)[order]
    sizes = jnp.bincount(expert, length=routing.experts)

    def project(name: str, rows: Float[Array, "R i"]) -> Float[Array, "R o"]:
        return grouped_linear(rows, weights[name], sizes, adapter.get(name), lora.scale, kind)

    def biased(name: str, rows: Float[Array, "R i"]) -> Float[Array, "R o"]:
        y = project(name, rows)
        return y + weights[f"{name}_bias"][expert].astype(y.dtype) if config.bias else y

    rows = _spread(x, order, place, routing.per_token)
    inner = activation(config.activation, biased("experts_gate", rows), biased("experts_up", rows))
    # Weighed before the last linear, to which it makes no difference: the gradient by the shares then needs nothing that
    # is as wide as the residual stream for each of a token's experts.
    inner = inner * _reorder(shares.reshape(-1, 1), order, place)
    rows = _reorder(project("experts_down", inner), place, order)
    out = rows.reshape(*shares.shape, -1).sum(1)
    if config.bias:
        bias = weights["experts_down_bias"][chosen].astype(out.dtype)
        out = out + (shares[..., None] * bias).sum(1)
    if config.shared_size:
        out = out + run_shared(lora, weights, adapter, x)
    return out.reshape(shape)


def run_shared(
    lora: LoraConfig, weights: dict[str, Array], adapter: Adapter, x: Float[Array, "... D"]
) -> Float[Array, "... D"]:
    """The gated MLP that every token runs beside its experts.

    Args:
        lora: scale of the adapter.
        weights: ``shared_gate``, ``shared_up`` and ``shared_down``.
        adapter: pairs by linear, possibly empty.
        x: the layer's input, behind its norm.

    Returns:
        Its output, in at least float32.

    Example:
        >>> out = out + run_shared(lora, weights, adapter, x)
    """

    def project(name: str, x: Float[Array, "... i"]) -> Float[Array, "... o"]:
        return linear(x, weights[name], adapter.get(name), lora.scale)

    return project("shared_down", jax.nn.silu(project("shared_gate", x)) * project("shared_up", x))


def router_logits(
    x: Float[Array, "T D"], weight: Float[Array, "E D"], bias: Float[Array, " E"] | None = None
) -> Float[Array, "T E"]:
    """Each expert's logit, computed in at least float32 whatever the weights are in: a choice hangs on them.

    Example:
        >>> logits = router_logits(x, weights["router"])
    """
    weight = weight.astype(jnp.promote_types(weight.dtype, jnp.float32))
    logits = linear(x, weight, None, 1.0)
    return logits if bias is None else logits + bias.astype(logits.dtype)


def activation(
    kind: str, gate: Float[Array, "... f"], up: Float[Array, "... f"]
) -> Float[Array, "... f"]:
    """The gated activation between an expert's linears.

    Args:
        kind: ``"silu"``; or ``"clamped_swiglu"``, gpt-oss's: gate at most 7, up within ±7 and raised by 1, and a
            sigmoid steepened to 1.702.
        gate: output of the gate's linear.
        up: output of the other.

    Returns:
        The down projection's input.

    References:
        GLU variants, arXiv:2002.05202; gpt-oss, arXiv:2508.10925, section 2.2.

    Example:
        >>> float(activation("silu", jnp.array(0.0), jnp.array(3.0)))
        0.0
    """
    if kind == "silu":
        return jax.nn.silu(gate) * up
    gate, up = jnp.minimum(gate, _LIMIT), jnp.clip(up, -_LIMIT, _LIMIT)
    return gate * jax.nn.sigmoid(_ALPHA * gate) * (up + 1)


# Orders are permutations and `place` is their inverse, so that gradients are gathered as values are: scattering rows is
# slow. The first gives so many copies of each token's row.
_spread = jax.custom_vjp(lambda x, order, place, copies: x[order // copies], nondiff_argnums=(3,))
_reorder = jax.custom_vjp(lambda x, order, place: x[order])


def _spread_backward(copies, place, d_rows):
    return d_rows[place].reshape(-1, copies, d_rows.shape[-1]).sum(1), None, None


_spread.defvjp(lambda x, order, place, copies: (x[order // copies], place), _spread_backward)
_reorder.defvjp(
    lambda x, order, place: (x[order], place), lambda place, d_rows: (d_rows[place], None, None)
)
