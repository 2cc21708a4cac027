"""Advantages of turns: each against the same turn of the group's other episodes."""

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


@register_advantage("group_turn_mean")
@dataclass(frozen=True)
class GroupTurnMean(Estimator):
    """Reward of the turn less the group's mean for that turn: Dr.GRPO's baseline, turn by turn.

    It takes the turns as tasks of their own: no turn is credited with a later one's reward.

    Example:
        >>> group_advantages(episodes, GroupTurnMean())  # rewards [1, 0] and [0, 0]: [0.5, none] and [-0.5, none]
    """

    def __call__(self, rewards: Rewards) -> Float[np.ndarray, "G T"]:
        """See :class:`Estimator`."""
        return centred(rewards.rewards)


@register_advantage("turn_returns")
@dataclass(frozen=True)
class TurnReturns(Estimator):
    """Sum of the rewards from the turn on, less the group's mean for that turn (as in GTPO, arXiv:2511.14846).

    Episodes that ended before a turn have no part in its mean.

    Example:
        >>> group_advantages(episodes, TurnReturns())  # rewards [0, 1] and [0, 0]: [0.5, 0.5] and [-0.5, -0.5]
    """

    gamma: float = 1.0
    """What a reward is multiplied by for every turn that it is away."""

    def __post_init__(self) -> None:
        """Check the range."""
        require(0 <= self.gamma <= 1, "advantage.gamma", "from 0 to 1", self.gamma)

    def __call__(self, rewards: Rewards) -> Float[np.ndarray, "G T"]:
        """See :class:`Estimator`."""
        return centred(returns_to_go(rewards, self.gamma))
