"""Losses: what each scored token adds to the sum that training minimises.

A loss is a pure function of log probabilities and of constants, summed over tokens and nothing else: whatever it is
divided by is baked into the advantages beforehand, so it is exact under any cut into segments or micro-batches.
Definitions are Tinker's; a bound on a ratio is the ratio itself, never an epsilon.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int


class LossInputs(NamedTuple):
    """Constants beside the log probabilities, one number a scored token, all of one shape.

    Attributes:
        mask: 1 on tokens that count, 0 on padding; nothing else is read where it is 0.
        weights: cross entropy's weights.
        advantages: advantages, normaliser included.
        logprobs: the sampler's log probabilities, of the same temperature as the loss is taken at.
        shares: what a term without an advantage is multiplied by, so that it is normalised as the advantages are; None
            where the batch has none.
        reference: the reference policy's log probabilities, of that temperature too; None where none were computed.
        row: which row of the batch a token stands in, or which document where rows hold several, for `row_sums`; None
            where a loss is computed in pieces of rows, as the plan ``"reverse_only"`` does.
    """

    mask: Float[Array | np.ndarray, "*shape"]
    weights: Float[Array | np.ndarray, "*shape"]
    advantages: Float[Array | np.ndarray, "*shape"]
    logprobs: Float[Array | np.ndarray, "*shape"]
    shares: Float[Array | np.ndarray, "*shape"] | None = None
    reference: Float[Array | np.ndarray, "*shape"] | None = None
    row: Int[Array | np.ndarray, "*shape"] | None = None


@runtime_checkable
class Loss(Protocol):
    """A hashable value that maps log probabilities to one term a token; static under jit."""

    def __call__(
        self, logprobs: Float[Array, "*shape"], inputs: LossInputs
    ) -> Float[Array, "*shape"]:
        """Returns the term of each token; their masked sum is minimised."""
        ...


def masked_sum(
    loss: Loss, logprobs: Float[Array, "*shape"], inputs: LossInputs
) -> Float[Array, ""]:
    """The sum of a loss's terms over the tokens that count.

    Example:
        >>> value = masked_sum(Ppo(), logprobs, inputs)
    """
    # Padding gets a ratio of 1, so that no overflow there turns into 0 * inf in the backward pass.
    terms = loss(jnp.where(inputs.mask > 0, logprobs, inputs.logprobs), inputs)
    return jnp.sum(jnp.where(inputs.mask > 0, terms, 0))


def row_sums(values: Float[Array, "*shape"], inputs: LossInputs) -> Float[Array, "*shape"]:
    """The sum of values over the tokens that count in a token's row, at every token: what a loss over episodes needs.

    Args:
        values: a number a token.
        inputs: the loss's constants.

    Returns:
        The sum of each token's row.

    Raises:
        ValueError: where rows come in pieces.

    Example:
        >>> mean_log_ratio = row_sums(log_ratio, inputs) / row_sums(jnp.ones_like(log_ratio), inputs)
    """
    if inputs.row is None:
        raise ValueError(
            "inputs.row: None, since the plan 'reverse_only' computes a loss a piece of a row at a time; a loss over "
            "whole episodes needs gradients.plan 'segments' or 'packed'"
        )
    counted = jnp.where(inputs.mask > 0, values, 0).reshape(-1)
    row = jnp.asarray(inputs.row).reshape(-1)
    sums = jax.ops.segment_sum(counted, row, num_segments=row.size)
    return sums[row].reshape(values.shape)


def scales_with_advantages(loss: Loss) -> bool:
    """Whether advantages and weights that are divided by a positive number divide the loss by it.

    If so, that number may as well divide the gradient, once it is known.

    Args:
        loss: any; of one that is not defined here nothing is known.

    Example:
        >>> scales_with_advantages(Ppo()), scales_with_advantages(Dro())
        (True, False)
    """
    return isinstance(loss, CrossEntropy | ImportanceSampling | Ppo | Cispo)


@dataclass(frozen=True)
class CrossEntropy:
    """Negative log probability times weight: ``-w log p``."""

    def __call__(
        self, logprobs: Float[Array, "*shape"], inputs: LossInputs
    ) -> Float[Array, "*shape"]:
        """See :class:`Loss`."""
        return -logprobs * inputs.weights


@dataclass(frozen=True)
class ImportanceSampling:
    """Policy gradient corrected for the sampler: ``-r A`` with ``r = p / q``."""

    def __call__(
        self, logprobs: Float[Array, "*shape"], inputs: LossInputs
    ) -> Float[Array, "*shape"]:
        """See :class:`Loss`."""
        return -jnp.exp(logprobs - inputs.logprobs) * inputs.advantages


@dataclass(frozen=True)
class Ppo:
    """Clipped policy ratio (Schulman et al., arXiv:1707.06347): ``-min(r A, clip(r, low, high) A)``.

    Attributes:
        clip_low_threshold: the lowest ratio that still carries a gradient where A is negative.
        clip_high_threshold: the highest ratio that still carries a gradient where A is positive.
    """

    clip_low_threshold: float = 0.8
    clip_high_threshold: float = 1.2

    def __call__(
        self, logprobs: Float[Array, "*shape"], inputs: LossInputs
    ) -> Float[Array, "*shape"]:
        """See :class:`Loss`."""
        ratio = jnp.exp(logprobs - inputs.logprobs)
        clipped = jnp.clip(ratio, self.clip_low_threshold, self.clip_high_threshold)
        return -jnp.minimum(ratio * inputs.advantages, clipped * inputs.advantages)


@dataclass(frozen=True)
class Cispo:
    """REINFORCE with a clipped ratio as its weight (MiniMax-M1, arXiv:2506.13585): ``-sg(clip(r, low, high)) A log p``.

    Unlike :class:`Ppo` a clipped token keeps its gradient.

    Attributes:
        clip_low_threshold: the least weight.
        clip_high_threshold: the greatest weight.
    """

    clip_low_threshold: float = 0.0
    clip_high_threshold: float = 4.0

    def __call__(
        self, logprobs: Float[Array, "*shape"], inputs: LossInputs
    ) -> Float[Array, "*shape"]:
        """See :class:`Loss`."""
        ratio = jnp.exp(logprobs - inputs.logprobs)
        clipped = jnp.clip(ratio, self.clip_low_threshold, self.clip_high_threshold)
        return -lax.stop_gradient(clipped) * inputs.advantages * logprobs


@dataclass(frozen=True)
class Dro:
    """Direct reward optimisation (arXiv:2405.19107), a token at a time: ``-(A log p - beta / 2 (log p - log q)^2)``.

    The square pulls on every token that counts, whatever its advantage: the mask must leave out what was not sampled.

    Attributes:
        beta: weight of the square.
    """

    beta: float = 0.05

    def __call__(
        self, logprobs: Float[Array, "*shape"], inputs: LossInputs
    ) -> Float[Array, "*shape"]:
        """See :class:`Loss`."""
        square = jnp.square(logprobs - inputs.logprobs)
        return -(logprobs * inputs.advantages - self.beta / 2 * square)
