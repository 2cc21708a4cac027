"""Losses: what each scored token adds to the sum that training minimises.

A loss is a pure function of log probabilities and of constants, summed over tokens and nothing else: whatever it is
divided by is baked into the advantages beforehand, so it is exact under any cut into segments or micro-batches.
Definitions are Tinker's where it has the loss; a bound on a ratio is the ratio itself, never an epsilon.

A loss is a frozen dataclass, and that is the section ``loss`` of a configuration: its fields are the settings.

    >>> @register_loss("reinforce")
    ... @dataclass(frozen=True)
    ... class Reinforce(Loss):
    ...     scales_with_advantages = True
    ...
    ...     def __call__(self, logprobs, inputs):
    ...         return -inputs.advantages * logprobs

Arrays are jax's here, which is imported when a loss is first computed: a configuration is read without it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Float, Int

from mintjax.train.config_checks import require
from mintjax.train.config_kinds import Kind, Kinds, registering


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

    mask: Float[Any, "*shape"]
    weights: Float[Any, "*shape"]
    advantages: Float[Any, "*shape"]
    logprobs: Float[Any, "*shape"]
    shares: Float[Any, "*shape"] | None = None
    reference: Float[Any, "*shape"] | None = None
    row: Int[Any, "*shape"] | None = None


class Loss(Kinds, ABC):
    """A hashable value that maps log probabilities to one term a token; static under jit.

    Attributes:
        scales_with_advantages: whether advantages, weights and shares that are divided by a positive number divide the
            loss by it. If so, that number may as well divide the gradient once it is known, as the plan
            ``"reverse_only"`` does, which takes gradients before a batch is whole. Of a loss that does not say so
            nothing is known, and that plan refuses it.
        whole_rows: whether a term depends on other tokens of its row, as `row_sums` gives them; that plan refuses it too.
    """

    scales_with_advantages: ClassVar[bool] = False
    whole_rows: ClassVar[bool] = False

    @classmethod
    def default_choice_name(cls) -> str:
        """Return the kind that a loss without ``type`` is."""
        return "ppo"

    @abstractmethod
    def __call__(self, logprobs: Float[Any, "*shape"], inputs: LossInputs) -> Float[Any, "*shape"]:
        """Returns the term of each token; their masked sum is minimised."""


def register_loss(name: str) -> Callable[[Kind], Kind]:
    """Return a class decorator that makes a frozen dataclass the loss called ``name``.

    Args:
        name: what ``loss.type`` says in a YAML file.

    Raises:
        TypeError: if the class is not derived from `Loss`.
        ValueError: if the name is taken by another class.

    Example:
        >>> @register_loss("mine")
        ... @dataclass(frozen=True)
        ... class Mine(Loss): ...
    """
    return registering(Loss, name)


def masked_sum(loss: Loss, logprobs: Float[Any, "*shape"], inputs: LossInputs) -> Float[Any, ""]:
    """The sum of a loss's terms over the tokens that count.

    Example:
        >>> value = masked_sum(Ppo(), logprobs, inputs)
    """
    import jax.numpy as jnp

    # Padding gets a ratio of 1, so that no overflow there turns into 0 * inf in the backward pass.
    terms = loss(jnp.where(inputs.mask > 0, logprobs, inputs.logprobs), inputs)
    return jnp.sum(jnp.where(inputs.mask > 0, terms, 0))


def row_sums(values: Float[Any, "*shape"], inputs: LossInputs) -> Float[Any, "*shape"]:
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
    import jax
    import jax.numpy as jnp

    if inputs.row is None:
        raise ValueError(
            "inputs.row: None, since the plan 'reverse_only' computes a loss a piece of a row at a time; a loss over "
            "whole episodes needs gradients.plan 'segments' or 'packed'"
        )
    counted = jnp.where(inputs.mask > 0, values, 0).reshape(-1)
    row = jnp.asarray(inputs.row).reshape(-1)
    sums = jax.ops.segment_sum(counted, row, num_segments=row.size)
    return sums[row].reshape(values.shape)


@register_loss("cross_entropy")
@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Negative log probability times weight: ``-w log p``. In the loop the weight is the advantage: REINFORCE."""

    scales_with_advantages = True

    def __call__(self, logprobs: Float[Any, "*shape"], inputs: LossInputs) -> Float[Any, "*shape"]:
        """See :class:`Loss`."""
        return -logprobs * inputs.weights


@register_loss("importance_sampling")
@dataclass(frozen=True)
class ImportanceSampling(Loss):
    """Policy gradient corrected for the sampler, unclipped: ``-r A`` with ``r = p / q``."""

    scales_with_advantages = True

    def __call__(self, logprobs: Float[Any, "*shape"], inputs: LossInputs) -> Float[Any, "*shape"]:
        """See :class:`Loss`."""
        import jax.numpy as jnp

        return -jnp.exp(logprobs - inputs.logprobs) * inputs.advantages


@register_loss("ppo")
@dataclass(frozen=True)
class Ppo(Loss):
    """Clipped policy ratio: ``-min(r A, clip(r, ratio_min, ratio_max) A)``.

    Schulman et al., arXiv:1707.06347; with unequal distances of the bounds from 1 it is DAPO's (arXiv:2503.14476).
    ``negative_ratio_max`` is the dual clip of Ye et al., arXiv:1912.09729: where A is negative, ``max`` of that with
    ``negative_ratio_max A``.
    """

    ratio_min: float = 0.8
    """Lowest ratio that still carries a gradient where the advantage is negative."""
    ratio_max: float = 1.2
    """Highest ratio that still carries a gradient where the advantage is positive."""
    negative_ratio_max: float | None = None
    """Highest ratio that still carries a gradient where the advantage is negative; 3 is usual, null is no bound."""
    scales_with_advantages = True

    def __post_init__(self) -> None:
        """Check the bounds."""
        _check_around_one(self.ratio_min, self.ratio_max)
        cap = self.negative_ratio_max
        require(cap is None or cap > 1, "loss.negative_ratio_max", "a ratio above 1 or null", cap)

    def __call__(self, logprobs: Float[Any, "*shape"], inputs: LossInputs) -> Float[Any, "*shape"]:
        """See :class:`Loss`."""
        import jax.numpy as jnp

        ratio = jnp.exp(logprobs - inputs.logprobs)
        gain = _pessimistic(ratio, inputs.advantages, self.ratio_min, self.ratio_max)
        if self.negative_ratio_max is not None:
            floor = self.negative_ratio_max * inputs.advantages
            gain = jnp.where(inputs.advantages < 0, jnp.maximum(gain, floor), gain)
        return -gain


@register_loss("cispo")
@dataclass(frozen=True)
class Cispo(Loss):
    """REINFORCE with a clipped ratio as its weight: ``-sg(clip(r, ratio_min, ratio_max)) A log p``.

    MiniMax-M1, arXiv:2506.13585. Unlike :class:`Ppo` a clipped token keeps its gradient.
    """

    ratio_min: float = 0.0
    """Least weight."""
    ratio_max: float = 4.0
    """Greatest weight; the ratio itself, where some count from 1."""
    scales_with_advantages = True

    def __post_init__(self) -> None:
        """Check the bounds."""
        low, high = self.ratio_min, self.ratio_max
        require(low >= 0, "loss.ratio_min", "a ratio of at least 0", low)
        require(high >= low, "loss.ratio_max", f"at least {low} (loss.ratio_min)", high)

    def __call__(self, logprobs: Float[Any, "*shape"], inputs: LossInputs) -> Float[Any, "*shape"]:
        """See :class:`Loss`."""
        import jax.numpy as jnp
        from jax.lax import stop_gradient

        ratio = jnp.exp(logprobs - inputs.logprobs)
        clipped = jnp.clip(ratio, self.ratio_min, self.ratio_max)
        return -stop_gradient(clipped) * inputs.advantages * logprobs


@register_loss("gspo")
@dataclass(frozen=True)
class Gspo(Loss):
    """PPO's clip on the ratio of the whole row: ``-min(s A, clip(s, ratio_min, ratio_max) A)``.

    ``s`` is the exponential of the mean log ratio over the row's trained tokens (arXiv:2507.18071). The gradient is that
    of the paper's token form, ``s A`` times each token's own ``d log p``: for one advantage a row it is the sequence
    form's, and where turns have advantages of their own each token keeps its turn's. The paper's mean over sequences is
    the normaliser ``episode_tokens``.
    """

    ratio_min: float = 0.9997
    """Lowest ratio that still carries a gradient where the advantage is negative."""
    ratio_max: float = 1.0004
    """Highest ratio that still carries a gradient where the advantage is positive."""
    scales_with_advantages = True
    whole_rows = True

    def __post_init__(self) -> None:
        """Check the bounds."""
        _check_around_one(self.ratio_min, self.ratio_max)

    def __call__(self, logprobs: Float[Any, "*shape"], inputs: LossInputs) -> Float[Any, "*shape"]:
        """See :class:`Loss`."""
        import jax.numpy as jnp
        from jax.lax import stop_gradient

        now = stop_gradient(logprobs)
        tokens = row_sums(jnp.ones_like(now), inputs)
        row_ratio = jnp.exp(row_sums(now - inputs.logprobs, inputs) / jnp.maximum(tokens, 1))
        ratio = row_ratio * jnp.exp(logprobs - now)  # the second factor is 1, and has the gradient
        return -_pessimistic(ratio, inputs.advantages, self.ratio_min, self.ratio_max)


@register_loss("dro")
@dataclass(frozen=True)
class Dro(Loss):
    """Direct reward optimisation (arXiv:2405.19107), a token at a time: ``-(A log p - beta / 2 (log p - log q)^2)``.

    The square pulls on every token that counts, whatever its advantage: the mask must leave out what was not sampled.
    Where the batch has shares, they normalise it as the advantages are.
    """

    beta: float = 0.05
    """Weight of the square."""
    scales_with_advantages = True

    def __call__(self, logprobs: Float[Any, "*shape"], inputs: LossInputs) -> Float[Any, "*shape"]:
        """See :class:`Loss`."""
        import jax.numpy as jnp

        square = jnp.square(logprobs - inputs.logprobs)
        if inputs.shares is not None:
            square *= inputs.shares
        return -(logprobs * inputs.advantages - self.beta / 2 * square)


def _check_around_one(low: float, high: float) -> None:
    """Refuse bounds between which the ratio of an unchanged policy does not lie."""
    require(0 <= low <= 1, "loss.ratio_min", "a ratio from 0 to 1", low)
    require(high >= 1, "loss.ratio_max", "a ratio of at least 1", high)


def _pessimistic(
    ratio: Float[Any, "*shape"],
    advantages: Float[Any, "*shape"],
    low: float,
    high: float,
) -> Float[Any, "*shape"]:
    """The lesser of a gain and of the same with its ratio clipped."""
    import jax.numpy as jnp

    return jnp.minimum(ratio * advantages, jnp.clip(ratio, low, high) * advantages)
