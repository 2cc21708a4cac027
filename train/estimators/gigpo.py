"""GiGPO: episodes compared within their group, and steps compared where the group met the same situation."""

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
    returns_to_go,
)


@register_advantage("gigpo")
@dataclass(frozen=True)
class Gigpo(Estimator):
    """Advantage of the episode in its group, plus weight times that of the step among steps of the same anchor.

    Feng et al., arXiv:2505.10978. The episode's is its return less the group's mean; the step's is its discounted return
    less the mean over all turns of the group, of whatever episode and place, whose ``Step.anchor`` is the same. A term
    whose comparison is of equals, or of one alone, adds nothing; where neither says anything the turn is not trained.

    Raises:
        ValueError: when called, where no turn of a group has an anchor.

    Example:
        >>> group_advantages(episodes, Gigpo(gamma=0.95, weight=1.0))
    """

    gamma: float = 0.95
    """What a reward is multiplied by for every turn that it is away, in the step's term."""
    weight: float = 1.0
    """What the step's term is multiplied by."""
    std: bool = False
    """Divide both terms by the sample deviation of what is compared, plus eps."""
    eps: float = 1e-6
    """Added to the deviations."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(0 <= self.gamma <= 1, "advantage.gamma", "from 0 to 1", self.gamma)
        require(self.weight >= 0, "advantage.weight", "at least 0", self.weight)
        require(self.eps > 0, "advantage.eps", "a positive number", self.eps)

    def __call__(self, rewards: Rewards) -> Float[np.ndarray, "G T"]:
        """See :class:`Estimator`."""
        if rewards.turns.any() and (rewards.anchors < 0).all():
            raise ValueError(
                f"advantage gigpo: no turn of group {rewards.group[0]} has an anchor, and it compares turns that share "
                f"one. Return Step(..., anchor=a name for the situation) from the environment, or take advantage.type "
                f"turn_returns."
            )
        episode = on_all_turns(self._compared(returns(rewards)), rewards)
        to_go = returns_to_go(rewards, self.gamma)
        step = np.full_like(to_go, np.nan)
        named = np.unique(rewards.anchors[rewards.anchors >= 0])
        for anchor in named if self.weight else []:
            here = rewards.anchors == anchor
            step[here] = self._compared(to_go[here])
        both = np.nan_to_num(episode) + self.weight * np.nan_to_num(step)
        return np.where(np.isnan(episode) & np.isnan(step), np.nan, both)

    def _compared(self, scores: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Scores less their mean, over their deviation where that is asked for."""
        less_mean = centred(scores)
        return less_mean / (deviation(less_mean) + self.eps) if self.std else less_mean
