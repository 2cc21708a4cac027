"""Advantages of whole episodes: the return of one against those of its group, the same on all its turns."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mintjax.train.config_checks import require
from mintjax.train.estimators.estimator import (
    Estimator,
    Rewards,
    centred,
    deviation,
    on_all_turns,
    register_advantage,
    returns,
)


@register_advantage("group_mean")
@dataclass(frozen=True)
class GroupMean(Estimator):
    """Return of the episode less the group's mean (Dr.GRPO, arXiv:2503.20783).

    Example:
        >>> group_advantages(episodes, GroupMean())  # returns 1 and 0: 0.5 and -0.5
    """

    def __call__(self, rewards: Rewards) -> Float[np.ndarray, "G T"]:
        """See :class:`Estimator`."""
        return on_all_turns(centred(returns(rewards)), rewards)


@register_advantage("grpo")
@dataclass(frozen=True)
class Grpo(Estimator):
    """As group_mean, divided by the group's sample deviation plus eps (GRPO, arXiv:2402.03300).

    The division gives nearly constant groups the weight of the others: group_mean does not.

    Example:
        >>> group_advantages(episodes, Grpo())  # returns 1 and 0: 0.707 and -0.707
    """

    eps: float = 1e-4
    """Added to the deviation."""

    def __post_init__(self) -> None:
        """Check the range."""
        require(self.eps > 0, "advantage.eps", "a positive number", self.eps)

    def __call__(self, rewards: Rewards) -> Float[np.ndarray, "G T"]:
        """See :class:`Estimator`."""
        less_mean = centred(returns(rewards))
        return on_all_turns(less_mean / (deviation(less_mean) + self.eps), rewards)


@register_advantage("rloo")
@dataclass(frozen=True)
class Rloo(Estimator):
    """Return of the episode less the mean of the *other* episodes (RLOO, arXiv:2402.14740).

    Example:
        >>> group_advantages(episodes, Rloo())  # returns 1 and 0: 1 and -1
    """

    def __call__(self, rewards: Rewards) -> Float[np.ndarray, "G T"]:
        """See :class:`Estimator`."""
        less_mean = centred(returns(rewards))
        known = np.count_nonzero(~np.isnan(less_mean))
        return on_all_turns(less_mean * known / max(1, known - 1), rewards)


@register_advantage("maxrl")
@dataclass(frozen=True)
class MaxRl(Estimator):
    """Return of the episode less the group's mean, divided by that mean (MaxRL).

    Of rewards that are 0 or 1 this is the maximum-likelihood weight of a success: the rarer, the greater.

    Raises:
        ValueError: when called, for a negative return: a mean below 0 would turn the sign around.

    Example:
        >>> group_advantages(episodes, MaxRl())  # returns 1, 0, 0, 0: 3, -1, -1, -1
    """

    def __call__(self, rewards: Rewards) -> Float[np.ndarray, "G T"]:
        """See :class:`Estimator`."""
        scores = returns(rewards)
        if (scores < 0).any():
            raise ValueError(
                f"advantage maxrl: expected returns of at least 0 in group {rewards.group[0]}, came "
                f"{np.nanmin(scores)}, and it divides by the group's mean. Shift the rewards, or take "
                f"advantage.type group_mean."
            )
        less_mean = centred(scores)
        known = scores[~np.isnan(less_mean)]
        return on_all_turns(less_mean / known.mean() if known.size else less_mean, rewards)
