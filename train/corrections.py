"""Corrections for a sampler that was not the policy being trained: importance weights around any loss.

Which policy is "old"? Without a correction a loss compares with the sampler itself, ``r = p / q``, and its clip bounds how
far from the *sampler* a token may push. With one the two questions are taken apart: the weight ``w`` answers for the
sampler, and the loss compares with the trainer's own policy before the update, ``p_old``. A step makes one update of a
batch, so ``p_old`` is the policy that the gradient is taken of: ``log p_old = sg(log p)``, no pass is needed for it, and the
ratio that the loss sees is 1, with a gradient. No clip of the loss acts then; the correction's bound is the only one.

Fengyao et al., "Your efficient RL framework secretly brings you off-policy RL training", for the truncated weight; IcePop
and TRL's ``token_mask`` and ``sequence_mask`` for the masked one.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float

from mintjax.train.config_checks import require
from mintjax.train.config_kinds import Kinds, registering
from mintjax.train.losses import Loss, LossInputs, row_sums

Level = Literal["token", "sequence"]


class Correction(Kinds, ABC):
    """What becomes of the weight ``p_old / q`` of each token."""

    @classmethod
    def default_choice_name(cls) -> str:
        """Return the kind that a correction without ``type`` is."""
        return "none"

    @abstractmethod
    def around(self, loss: Loss) -> Loss:
        """Returns the loss with this correction."""


@registering(Correction, "none")
@dataclass(frozen=True)
class NoCorrection(Correction):
    """No weight: the loss itself compares with the sampler."""

    def around(self, loss: Loss) -> Loss:
        """See :class:`Correction`."""
        return loss


@dataclass(frozen=True)
class WeightedCorrection(Correction):
    """A correction that is a weight: what the truncated and the masked one have in common."""

    level: Level = "token"
    """"token" takes each token's own ratio, "sequence" the product over the row's trained tokens."""

    def around(self, loss: Loss) -> Loss:
        """See :class:`Correction`."""
        return Corrected(loss, self)

    @abstractmethod
    def bounded(self, ratio: Float[Any, "*shape"]) -> Float[Any, "*shape"]:
        """Returns the weight that a ratio gives."""


@registering(Correction, "truncated")
@dataclass(frozen=True)
class Truncated(WeightedCorrection):
    """Truncated importance weights (TIS): multiply by ``sg(min(p_old / q, ratio_max))``."""

    ratio_max: float = 2.0
    """Greatest weight."""

    def __post_init__(self) -> None:
        """Check the bound."""
        require(
            self.ratio_max >= 1, "correction.ratio_max", "a ratio of at least 1", self.ratio_max
        )

    def bounded(self, ratio: Float[Any, "*shape"]) -> Float[Any, "*shape"]:
        """See :class:`WeightedCorrection`."""
        import jax.numpy as jnp

        return jnp.minimum(ratio, self.ratio_max)


@registering(Correction, "masked")
@dataclass(frozen=True)
class Masked(WeightedCorrection):
    """Masked importance weights: multiply by ``sg(p_old / q)``, and by 0 where it is outside of the bounds."""

    ratio_min: float = 0.0
    """Lowest weight that is no 0."""
    ratio_max: float = 3.0
    """Greatest weight."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        low, high = self.ratio_min, self.ratio_max
        require(0 <= low <= 1, "correction.ratio_min", "a ratio from 0 to 1", low)
        require(high >= 1, "correction.ratio_max", "a ratio of at least 1", high)

    def bounded(self, ratio: Float[Any, "*shape"]) -> Float[Any, "*shape"]:
        """See :class:`WeightedCorrection`."""
        import jax.numpy as jnp

        return jnp.where((ratio >= self.ratio_min) & (ratio <= self.ratio_max), ratio, 0)


@dataclass(frozen=True)
class Corrected(Loss):
    """A loss that compares with the policy before the update, times the weight of that policy against the sampler.

    Attributes:
        loss: any.
        correction: gives the weight.

    Example:
        >>> gradients(policy, batch, Corrected(Ppo(), Truncated("sequence", ratio_max=2.0)))
    """

    loss: Loss
    correction: WeightedCorrection

    @property
    def scales_with_advantages(self) -> bool:  # type: ignore[override]
        """As the loss says: the weight does not depend on advantages."""
        return self.loss.scales_with_advantages

    @property
    def whole_rows(self) -> bool:  # type: ignore[override]
        """As the loss says, and where the weight is the row's."""
        return self.loss.whole_rows or self.correction.level == "sequence"

    def ratio(self, logprobs: Float[Any, "*shape"], inputs: LossInputs) -> Float[Any, "*shape"]:
        """The ratio against the sampler that is bounded, of each token or of its row."""
        import jax.numpy as jnp
        from jax.lax import stop_gradient

        log_ratio = stop_gradient(logprobs) - inputs.logprobs
        if self.correction.level == "sequence":
            log_ratio = row_sums(log_ratio, inputs)
        return jnp.exp(log_ratio)

    def __call__(self, logprobs: Float[Any, "*shape"], inputs: LossInputs) -> Float[Any, "*shape"]:
        """See :class:`Loss`."""
        from jax.lax import stop_gradient

        weight = self.correction.bounded(self.ratio(logprobs, inputs))
        old = inputs._replace(logprobs=stop_gradient(logprobs))
        return weight * self.loss(logprobs, old)
