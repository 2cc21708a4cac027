"""Log probabilities of given tokens from hidden states, without ever holding all logits at once."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from mintjax.models.dense import unembed
from mintjax.policy import Policy
from mintjax.sampling import log_probability

_CHUNK = 128  # positions whose logits are held at a time


def predictors(
    carried: Float[Array, "B D"], hidden: Float[Array, "B S D"]
) -> Float[Array, "B S D"]:
    """The hidden state that each token of a segment is predicted from: the carried one, then the segment's own."""
    return jnp.concatenate([carried[:, None].astype(hidden.dtype), hidden[:, :-1]], 1)


def token_logprobs(
    policy: Policy,
    hidden: Float[Array, "*shape D"],
    tokens: Int[Array, "*shape"],
    temperature: Float[ArrayLike, ""] = 1.0,
) -> Float[Array, "*shape"]:
    """Log probability of each token under the logits of its hidden state.

    Logits are made and thrown away in chunks of positions, in the backward pass too.

    Args:
        policy: for its head.
        hidden: the state that each token is predicted from (see :func:`predictors`).
        tokens: the tokens to score.
        temperature: what logits are divided by; above 0.

    Returns:
        Log probabilities in at least float32.

    Example:
        >>> token_logprobs(policy, hidden[:, :-1], tokens[:, 1:])
    """
    rows, labels = hidden.reshape(-1, hidden.shape[-1]), tokens.reshape(-1)
    chunk = min(_CHUNK, labels.size)
    padding = -labels.size % chunk
    rows = jnp.pad(rows, ((0, padding), (0, 0))).reshape(-1, chunk, rows.shape[-1])
    labels = jnp.pad(labels, (0, padding)).reshape(-1, chunk)

    @jax.checkpoint
    def score(chunk: tuple[Array, Array]) -> Array:
        hidden, tokens = chunk
        logits = unembed(policy.lora, policy.base, policy.adapter, hidden) / temperature
        return log_probability(logits, tokens)

    return jax.lax.map(score, (rows, labels)).reshape(-1)[: tokens.size].reshape(tokens.shape)
