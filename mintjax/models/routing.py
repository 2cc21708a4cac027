"""From router logits to each token's experts and their weights: pure functions, in at least float32.

Equal scores go to the expert of the lowest index, as ``jax.lax.top_k`` has it; so do groups'. The choice itself has no
gradient; the weights have, and through them the router's input.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mintjax.models.expert_config import RoutingConfig

# Of DeepSeek-V3's normalisation: all sigmoids of a token may be 0 in float32.
_TINY = 1e-20


def route(
    config: RoutingConfig,
    logits: Float[Array, "T E"],
    correction: Float[Array, " E"] | None = None,
) -> tuple[Int[Array, "T k"], Float[Array, "T k"]]:
    """Chooses each token's experts, the best first, and weighs them.

    Args:
        config: the kind of choice and its numbers.
        logits: the router's, its bias included where it has one.
        correction: what is added to the scores for the choice alone (kind ``"sigmoid"``, which needs it).

    Returns:
        Expert ids, int32, and their weights in ``promote_types(logits.dtype, float32)``.

    Raises:
        ValueError: for a correction that is missing, or that this kind has no use for.

    References:
        Mixtral, arXiv:2401.04088, section 2.1 (softmax; with ``normalise`` it is the paper's softmax over the chosen).
        DeepSeek-V3, arXiv:2412.19437, sections 2.1.2 and 2.1.3 (sigmoid). gpt-oss, arXiv:2508.10925, section 2.2
        (chosen_softmax).

    Example:
        >>> route(RoutingConfig("chosen_softmax", 3, 2), jnp.array([[0.0, 1.0, 1.0]]))
        (Array([[1, 2]], dtype=int32), Array([[0.5, 0.5]], dtype=float32))
    """
    if (correction is None) == (config.kind == "sigmoid"):
        raise ValueError(
            f"correction: routing of kind {config.kind!r} got {'none' if correction is None else 'one'}; it belongs to "
            "kind 'sigmoid' and to no other"
        )
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if correction is not None:
        scores = jax.nn.sigmoid(logits)
        experts = _corrected_choice(config, jax.lax.stop_gradient(scores) + correction)
        weights = jnp.take_along_axis(scores, experts, axis=-1)
    elif config.kind == "softmax":
        weights, experts = jax.lax.top_k(jax.nn.softmax(logits), config.per_token)
    else:
        chosen, experts = jax.lax.top_k(logits, config.per_token)
        weights = jax.nn.softmax(chosen)
    if config.normalise:
        tiny = _TINY if config.kind == "sigmoid" else 0.0
        weights = weights / (weights.sum(-1, keepdims=True) + tiny)
    return experts, weights * config.scale


def _corrected_choice(config: RoutingConfig, scores: Float[Array, "T E"]) -> Int[Array, "T k"]:
    """The best experts of the best groups, a group being as good as its two best experts together."""
    groups = scores.reshape(len(scores), config.groups, -1)
    best_two = jax.lax.top_k(groups, 2)[0].sum(-1)
    chosen = jax.lax.top_k(best_two, config.chosen_groups)[1]
    allowed = (chosen[..., None] == jnp.arange(config.groups)).any(1)
    scores = jnp.where(allowed[..., None], groups, -jnp.inf).reshape(scores.shape)
    return jax.lax.top_k(scores, config.per_token)[1]
