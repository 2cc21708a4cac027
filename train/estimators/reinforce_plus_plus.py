"""REINFORCE++: returns whitened over all trained tokens of the batch."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mintjax.train.config_checks import require
from mintjax.train.estimators.estimator import (
    Estimator,
    Rewards,
    centred,
    register_advantage,
    returns_to_go,
)


@register_advantage("reinforce_plus_plus")
@dataclass(frozen=True)
class ReinforcePlusPlus(Estimator):
    """Sum of the rewards from the turn on, less its mean over the batch's tokens, divided by their deviation.

    Hu et al., arXiv:2501.03262. A turn counts by its sampled tokens, in mean and deviation alike. With
    ``group_baseline``, the paper's "REINFORCE++-baseline", the group's mean for the turn is taken off before.
    What has no advantage is not counted: turns without a reward, and with ``group_baseline`` those whose group is of one
    mind.

    Example:
        >>> group_advantages(episodes, ReinforcePlusPlus())  # one group, as long turns, returns 1 and 0: 1 and -1
    """

    gamma: float = 1.0
    """What a reward is multiplied by for every turn that it is away."""
    group_baseline: bool = False
    """Subtract the group's mean before the batch is whitened."""
    eps: float = 1e-8
    """Added to the deviation."""
    whole_batch = True

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(0 <= self.gamma <= 1, "advantage.gamma", "from 0 to 1", self.gamma)
        require(self.eps > 0, "advantage.eps", "a positive number", self.eps)

    def __call__(self, rewards: Rewards) -> Float[np.ndarray, "G T"]:
        """See :class:`Estimator`."""
        scores = returns_to_go(rewards, self.gamma)
        if self.group_baseline:
            for group in np.unique(rewards.group):
                rows = rewards.group == group
                scores[rows] = centred(scores[rows])
        known = ~np.isnan(scores)
        if not known.any() or scores[known].max() == scores[known].min():
            return np.full_like(scores, np.nan)
        weight = np.where(known, rewards.tokens, 0) / max(1, rewards.tokens[known].sum())
        less_mean = scores - np.sum(weight * np.where(known, scores, 0))
        variance = np.sum(weight * np.where(known, less_mean, 0) ** 2)
        return less_mean / (np.sqrt(variance) + self.eps)
