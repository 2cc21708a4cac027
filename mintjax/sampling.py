"""Drawing one token a row from logits."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Int32

_BLOCK = 256


def sample_tokens(
    logits: Float[Array, "B V"],
    uniform: Float[Array, " B"],
    temperature: Float[Array, ""],
    top_k: Int[Array, ""],
    top_p: Float[Array, ""],
) -> tuple[Int32[Array, " B"], Float[Array, " B"]]:
    """Draws a token a row by inverting the cumulative distribution at one uniform number.

    Args:
        logits: next-token logits.
        uniform: in [0, 1), one a row.
        temperature: logits are divided by it; 0 takes the most likely token.
        top_k: only this many most likely tokens can be drawn; 0 or less: all.
        top_p: only the smallest set of most likely tokens with at least this probability can be drawn; 1: all.

    Returns:
        Tokens, and their log probabilities under the whole temperature-scaled distribution (of the unscaled one where
        the temperature is 0). The cut by top-k or top-p is not in them: training recomputes these very numbers, and
        leaves both off.

    Example:
        >>> token, logprob = sample_tokens(logits, uniform, 1.0, 0, 1.0)
    """
    greedy = temperature <= 0
    scaled = logits / jnp.where(greedy, 1, temperature)
    cut = (top_k > 0) | (top_p < 1)
    kept = lax.cond(cut & ~greedy, _keep_likely, lambda scaled, *_: scaled, scaled, top_k, top_p)
    token = jnp.where(greedy, jnp.argmax(logits, -1), _invert_cumulative(kept, uniform)).astype(
        jnp.int32
    )
    return token, log_probability(scaled, token)


def log_probability(
    logits: Float[Array, "P V"], tokens: Int[Array, " P *K"]
) -> Float[Array, " P *K"]:
    """Log probability of one token a row, or of K; the sampler and the losses both score with this function.

    The greatest logit is taken off first: logits of some tens are spaced by 2e-6 in float32, and a log probability that
    was their difference with a logsumexp as large would carry that spacing.

    Args:
        logits: one row a token, divided by the temperature.
        tokens: ids.

    Returns:
        Log probabilities in the dtype of the logits.

    Example:
        >>> log_probability(jnp.zeros((1, 4)), jnp.array([2]))  # -log(4)
    """
    # Stopped once, for both uses of it: stopped in one of them alone, the value is the same and the gradient is wrong.
    shifted = logits - lax.stop_gradient(logits.max(-1, keepdims=True))
    chosen = jnp.take_along_axis(shifted, tokens.reshape(len(tokens), -1), 1)
    total = jnp.log(jnp.exp(shifted).sum(-1, keepdims=True))
    return (chosen - total).reshape(tokens.shape)


def _keep_likely(
    logits: Float[Array, "B V"], top_k: Int[Array, ""], top_p: Float[Array, ""]
) -> Float[Array, "B V"]:
    """Sets the logits of tokens outside top-k, and outside top-p of what is left, to minus infinity."""
    ranked = -jnp.sort(-logits, -1)
    rank = jnp.arange(logits.shape[-1])
    among_k = (top_k <= 0) | (rank < top_k)
    probability = jax.nn.softmax(jnp.where(among_k, ranked, -jnp.inf), -1)
    before = jnp.cumsum(probability, -1) - probability
    kept = among_k & ((before < top_p) | (rank == 0))
    least = jnp.min(jnp.where(kept, ranked, jnp.inf), -1, keepdims=True)
    return jnp.where(logits >= least, logits, -jnp.inf)


def _invert_cumulative(
    logits: Float[Array, "B V"], uniform: Float[Array, " B"]
) -> Int[Array, " B"]:
    """The token at which the cumulative probability passes ``uniform``, found by block and then within the block."""
    batch, size = logits.shape
    logits = jnp.pad(logits, ((0, 0), (0, -size % _BLOCK)), constant_values=-jnp.inf)
    mass = jnp.exp(logits - logits.max(-1, keepdims=True)).reshape(batch, -1, _BLOCK)
    below = jnp.cumsum(mass.sum(-1), -1)
    target = uniform * below[:, -1]
    block = jnp.minimum(jnp.sum(below <= target[:, None], -1), below.shape[1] - 1)
    inside = jnp.take_along_axis(mass, block[:, None, None], 1)[:, 0]
    start = jnp.take_along_axis(below, block[:, None], 1)[:, 0] - inside.sum(-1)
    passed = jnp.cumsum(inside, -1) <= (target - start)[:, None]
    index = jnp.minimum(jnp.sum(passed, -1), _BLOCK - 1)
    # Rounding can land on a token that was cut off: then the most likely of the block, which never is.
    possible = jnp.take_along_axis(inside, index[:, None], 1)[:, 0] > 0
    return block * _BLOCK + jnp.where(possible, index, jnp.argmax(inside, -1))
