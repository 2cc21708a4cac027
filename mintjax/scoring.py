"""Log probabilities of given tokens from hidden states, without ever holding all logits at once."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

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
    count: Int[ArrayLike, "..."] | None = None,
) -> Float[Array, "..."]:
    """Log probability of each token under the logits of its hidden state.

    Logits are made and thrown away in chunks of positions. Differentiated, they are made once where the head has no
    adapter and each state one token: what the backward pass needs of them is then a vector as wide as the hidden state.

    Args:
        policy: for its head.
        hidden: the state that each token is predicted from (see :func:`predictors`).
        tokens: the tokens to score, one a hidden state, or ``[*shape, K]``.
        temperature: what logits are divided by; above 0.
        count: how many hidden states of each row are real, the first ones, where hidden is ``[*rows, P, D]``; None is
            all. Only real ones are computed, those of all rows together in full chunks.

    Returns:
        Log probabilities in at least float32, shaped as ``tokens``; numbers without meaning past ``count``.

    Example:
        >>> token_logprobs(policy, hidden[:, :-1], tokens[:, 1:])
    """
    head = {name: pair for name, pair in (policy.adapter or {}).items() if name == "unembed"}
    frozen = policy.replace(adapter=None)

    def score(hidden: Array, tokens: Array, real: Array | None) -> Array:
        return _score(head, hidden, tokens, real, frozen, temperature)

    return _in_chunks(score, hidden, tokens, count).reshape(tokens.shape)


def has_slopes(
    policy: Policy,
    tokens: Int[Array | np.ndarray, "..."],
    positions: Int[Array | np.ndarray, "..."],
) -> bool:
    """Whether :func:`logprobs_and_slopes` serves tokens: the head has no adapter, and each position one token.

    Example:
        >>> has_slopes(policy, labels, positions)
    """
    return "unembed" not in (policy.adapter or {}) and tokens.shape == positions.shape


def logprobs_and_slopes(
    policy: Policy,
    hidden: Float[Array, "*rows P D"],
    tokens: Int[Array | np.ndarray, "*rows P"],
    temperature: Float[ArrayLike, ""] = 1.0,
    count: Int[ArrayLike, "*rows"] | None = None,
) -> tuple[Float[Array, "*rows P"], Float[Array, "*rows P D"]]:
    """:func:`token_logprobs`, and the gradient of each with respect to its own hidden state, while its logits are there.

    A backward pass that is given them does without the head.

    Args:
        policy: for its head, which has no adapter.
        hidden: the state that each token is predicted from.
        tokens: the tokens to score, one a hidden state.
        temperature: what logits are divided by; above 0.
        count: how many hidden states of each row are real, the first ones; None is all.

    Returns:
        Log probabilities and gradients.

    Example:
        >>> logprobs, slopes = logprobs_and_slopes(policy, hidden, labels)
    """

    def score(hidden: Array, tokens: Array, real: Array | None) -> tuple[Array, Array]:
        return _score_and_slope(hidden, tokens, real, policy, temperature)

    scores, slopes = _in_chunks(score, hidden, tokens, count)
    return scores.reshape(tokens.shape), slopes.reshape(hidden.shape)


def _in_chunks(score: Callable[..., Any], hidden: Array, tokens: Any, count: Any) -> Any:
    """What a function makes of hidden states, their tokens and whether they are real, computed chunk by chunk."""
    rows = hidden.reshape(-1, hidden.shape[-1])
    labels = jnp.asarray(tokens).reshape(len(rows), *tokens.shape[hidden.ndim - 1 :])
    chunk = CHUNK if count is None else COUNTED_CHUNK
    place = None
    if count is not None and hidden.ndim > 2:
        padding = jnp.arange(hidden.shape[-2]) >= jnp.asarray(count)[..., None]
        real_first = jnp.argsort(padding.reshape(-1))
        rows, labels, count = rows[real_first], labels[real_first], jnp.sum(count)
        place = jnp.argsort(real_first)
    chunks = _chunks(rows, chunk), _chunks(labels, chunk)
    first = jnp.arange(len(chunks[0])) * chunks[0].shape[1]
    real = None if count is None else first < count
    found = jax.lax.map(lambda chunk: score(*chunk), (*chunks, real))
    found = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: len(rows)], found)
    return found if place is None else jax.tree.map(lambda x: x[place], found)


@jax.custom_vjp
def _score(
    head: Adapter,
    hidden: Float[Array, "P D"],
    tokens: Int[Array, " P *K"],
    real: Bool[Array, ""] | None,
    frozen: Policy,
    temperature: Float[ArrayLike, ""],
) -> Float[Array, " P *K"]:
    """Log probabilities of a chunk, or zeros in no time; what flows back goes to the head's adapter and hidden states."""

    def score() -> Array:
        return log_probability(_logits(head, hidden, frozen, temperature), tokens)

    return _if_real(real, score)


def _logits(head: Adapter, hidden: Array, frozen: Policy, temperature) -> Array:
    return unembed(frozen.lora, frozen.base, head, hidden) / temperature


def _if_real(real: Array | None, compute: Callable[[], Any]) -> Any:
    """What is computed, or zeros.

    Never differentiated by JAX: it would hand what the backward pass needs out of the branch as a copy, the whole head,
    for every chunk.
    """
    if real is None:
        return compute()

    def zeros() -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(compute))

    return jax.lax.cond(real, compute, zeros)


def _score_and_slope(hidden, tokens, real, frozen: Policy, temperature) -> tuple[Array, Array]:
    """A score does not depend on another's hidden state: its slope is one vector, as wide as its own."""

    def both() -> tuple[Array, Array]:
        make = partial(_logits, {}, frozen=frozen, temperature=temperature)
        logits, pull = jax.vjp(make, hidden)
        chosen = jnp.arange(logits.shape[1]) == tokens[:, None]
        return log_probability(logits, tokens), pull(chosen - jax.nn.softmax(logits))[0]

    return _if_real(real, both)


def _score_forward(head, hidden, tokens, real, frozen, temperature):
    if head or tokens.ndim > 1:  # what flows to an adapter, or from several tokens, must be known
        args = head, hidden, tokens, real, frozen, temperature
        return _score(*args), (args, None)
    scores, slopes = _score_and_slope(hidden, tokens, real, frozen, temperature)
    return scores, (None, slopes)


def _score_backward(saved, d_scores):
    args, slopes = saved
    if args is None:
        return {}, (d_scores[:, None] * slopes).astype(slopes.dtype), None, None, None, None
    head, hidden, tokens, real, frozen, temperature = args

    def pull() -> tuple[Adapter, Array]:
        def score(head: Adapter, hidden: Array) -> Array:
            return log_probability(_logits(head, hidden, frozen, temperature), tokens)

        return jax.vjp(score, head, hidden)[1](d_scores)

    return *_if_real(real, pull), None, None, None, None


_score.defvjp(_score_forward, _score_backward)


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
