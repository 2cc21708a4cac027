"""Estimators of advantages, one a comparison; importing this package registers them."""

from mintjax.train.estimators.episodes import GroupMean, Grpo, MaxRl, Rloo
from mintjax.train.estimators.estimator import Estimator, Rewards, register_advantage
from mintjax.train.estimators.gigpo import Gigpo
from mintjax.train.estimators.reinforce_plus_plus import ReinforcePlusPlus
from mintjax.train.estimators.turns import GroupTurnMean, TurnReturns

__all__ = [
    "Estimator",
    "Gigpo",
    "GroupMean",
    "GroupTurnMean",
    "Grpo",
    "MaxRl",
    "ReinforcePlusPlus",
    "Rewards",
    "Rloo",
    "TurnReturns",
    "register_advantage",
]
