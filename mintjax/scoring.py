"""Log probabilities of given tokens from hidden states, without ever holding all logits at once."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from mintjax.adapters import Adapter
from mintjax.models.dense import unembed
from mintjax.policy import Policy
from mintjax.sampling import log_probability

CHUNK = 128  # positions whose logits are held at a time
COUNTED_CHUNK = (
    64  # the same, where a count says how many are real: smaller, so that fewer are in vain
)


def predictors(
    carried: Float[Array, "B D"], hidden: Float[Array, "B S D"]
) -> Float[Array, "B S D"]:
    """The hidden state that each token of a segment is predicted from: the carried one, then the segment's own."""
    return jnp.concatenate([carried[:, None].astype(hidden.dtype), hidden[:, :-1]], 1)


def token_logprobs(
    policy: Policy,
    hidden: Float[Array, "*shape D"],
    tokens: Int[Array | np.ndarray, "..."],
    temperature: Float[ArrayLike, ""] = 1.0,
    count: Int[ArrayLike, ""] | None = None,
) -> Float[Array, "..."]:
    """Log probability of each token under the logits of its hidden state.

    Logits are made and thrown away in chunks of positions, in the backward pass too.

    Args:
        policy: for its head.
        hidden: the state that each token is predicted from (see :func:`predictors`).
        tokens: the tokens to score, one a hidden state, or ``[*shape, K]``.
        temperature: what logits are divided by; above 0.
        count: how many hidden states are real, the first ones; None is all. Chunks past them cost nothing.

    Returns:
        Log probabilities in at least float32, shaped as ``tokens``; numbers without meaning past ``count``.

    Example:
        >>> token_logprobs(policy, hidden[:, :-1], tokens[:, 1:])
    """
    rows = hidden.reshape(-1, hidden.shape[-1])
    labels = jnp.asarray(tokens).reshape(len(rows), *tokens.shape[hidden.ndim - 1 :])
    head = {name: pair for name, pair in (policy.adapter or {}).items() if name == "unembed"}
    frozen = policy.replace(adapter=None)
    if count is None:

        @jax.checkpoint
        def score(chunk: tuple[Array, Array]) -> Array:
            hidden, tokens = chunk
            return _score(head, hidden, tokens, frozen, temperature)

        scores = jax.lax.map(score, (_chunks(rows), _chunks(labels)))
    else:
        chunks = _chunks(rows, COUNTED_CHUNK), _chunks(labels, COUNTED_CHUNK)
        real = jnp.arange(len(chunks[0])) * chunks[0].shape[1] < count

        def score_if_real(chunk: tuple[Array, Array, Array]) -> Array:
            hidden, tokens, is_real = chunk
            return _score_if_real(head, hidden, tokens, is_real, frozen, temperature)

        scores = jax.lax.map(score_if_real, (*chunks, real))
    return scores.reshape(-1, *labels.shape[1:])[: len(rows)].reshape(tokens.shape)


def _score(head: Adapter, hidden, tokens, frozen: Policy, temperature) -> Array:
    logits = unembed(frozen.lora, frozen.base, head, hidden) / temperature
    return log_probability(logits, tokens)


@jax.custom_vjp
def _score_if_real(head: Adapter, hidden, tokens, real, frozen: Policy, temperature) -> Array:
    """Log probabilities of a chunk, or zeros in no time; what flows back goes to the head's adapter and hidden states.

    Differentiated by JAX, a condition hands what its backward pass needs out of its branch as a copy: the whole head, for
    every chunk.
    """
    dtype = jnp.promote_types(hidden.dtype, jnp.float32)
    return jax.lax.cond(
        real,
        lambda: _score(head, hidden, tokens, frozen, temperature),
        lambda: jnp.zeros(tokens.shape, dtype),
    )


def _score_backward(saved, d_scores):
    head, hidden, tokens, real, frozen, temperature = saved

    def pull():
        score = partial(_score, tokens=tokens, frozen=frozen, temperature=temperature)
        return jax.vjp(score, head, hidden)[1](d_scores)

    def nothing():
        return jax.tree.map(jnp.zeros_like, (head, hidden))

    return *jax.lax.cond(real, pull, nothing), None, None, None, None


_score_if_real.defvjp(lambda *args: (_score_if_real(*args), args), _score_backward)


def top_logprobs(
    policy: Policy, hidden: Float[Array, "P D"], k: int
) -> tuple[Int[Array, "P k"], Float[Array, "P k"]]:
    """The likeliest next tokens of each hidden state, likeliest first, at temperature 1.

    Args:
        policy: for its head.
        hidden: the states to predict from.
        k: how many tokens; static.

    Returns:
        Their ids, and their log probabilities in at least float32.

    Example:
        >>> ids, logprobs = top_logprobs(policy, hidden, k=5)
    """

    def best(hidden: Array) -> tuple[Array, Array]:
        logits = unembed(policy.lora, policy.base, policy.adapter, hidden)
        ids = jax.lax.top_k(logits, k)[1]
        return ids, log_probability(logits, ids)

    ids, logprobs = jax.lax.map(best, _chunks(hidden))
    return tuple(x.reshape(-1, k)[: len(hidden)] for x in (ids, logprobs))


def _chunks(x: Array, chunk: int = CHUNK) -> Array:
    """Rows in chunks of equal size, padded with zeros at the end."""
    chunk = min(chunk, len(x))
    x = jnp.pad(x, ((0, -len(x) % chunk), *((0, 0) for _ in x.shape[1:])))
    return x.reshape(-1, chunk, *x.shape[1:])
