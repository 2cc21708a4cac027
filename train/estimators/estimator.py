"""What an estimator of advantages is: it sees the rewards of the episodes that it compares, and gives each turn a number."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mintjax.train.config_kinds import Kind, Kinds, registering


class Rewards(NamedTuple):
    """The rewards of G episodes, with at most T turns, that are compared with each other.

    Attributes:
        rewards: one a turn; nan where a turn has none, or was not reached.
        turns: how many turns each episode has.
        failed: whether the environment failed, so that the episode's return is not known.
        tokens: how many tokens were sampled in each turn.
        anchors: a number for the situation of each turn, equal where the environment named it alike; -1 where it named
            none.
        group: the group of each episode, in a game that of its seat; one and the same but for an estimator over the whole
            batch.
    """

    rewards: Float[np.ndarray, "G T"]
    turns: Int[np.ndarray, " G"]
    failed: Bool[np.ndarray, " G"]
    tokens: Int[np.ndarray, "G T"]
    anchors: Int[np.ndarray, "G T"]
    group: Int[np.ndarray, " G"]


class Estimator(Kinds, ABC):
    """How episodes are compared. A frozen dataclass, which is the section ``advantage`` of a configuration.

    Attributes:
        whole_batch: whether it sees the whole batch at once, instead of one group after another. The plan
            ``"reverse_only"``, which takes a group's gradient before the next one is sampled, refuses it then.
    """

    whole_batch: ClassVar[bool] = False

    @classmethod
    def default_choice_name(cls) -> str:
        """Return the kind that an ``advantage`` without ``type`` is."""
        return "group_turn_mean"

    @abstractmethod
    def __call__(self, rewards: Rewards) -> Float[np.ndarray, "G T"]:
        """Returns an advantage a turn, nan where there is none: no token of that turn is trained then."""


def register_advantage(name: str) -> Callable[[Kind], Kind]:
    """Return a class decorator that makes a frozen dataclass the estimator called ``name``.

    Args:
        name: what ``advantage.type`` says in a YAML file.

    Raises:
        TypeError: if the class is not derived from `Estimator`.
        ValueError: if the name is taken by another class.

    Example:
        >>> @register_advantage("best_of_group")
        ... @dataclass(frozen=True)
        ... class BestOfGroup(Estimator):
        ...     def __call__(self, rewards):
        ...         total = returns(rewards)
        ...         return on_all_turns(np.where(total == np.nanmax(total), 1.0, np.nan), rewards)
    """
    return registering(Estimator, name)


def returns(rewards: Rewards) -> Float[np.ndarray, " G"]:
    """The sum of each episode's rewards; nan where it has none, or where a failure hides the rest.

    Example:
        >>> returns(rewards)
        array([1. , nan])
    """
    return np.where(rewards.failed, np.nan, [total(row) for row in rewards.rewards])


def returns_to_go(rewards: Rewards, gamma: float = 1.0) -> Float[np.ndarray, "G T"]:
    """The sum of the rewards from each turn on, each discounted by the turns that it is away.

    Args:
        rewards: of any episodes.
        gamma: what a reward is multiplied by for every turn between.

    Returns:
        A number a turn; nan where no reward follows, or where a failure hides the rest.

    Example:
        >>> returns_to_go(rewards, gamma=0.5)
        array([[1.5, 1. ]])
    """
    discounts = gamma ** np.arange(rewards.rewards.shape[1])
    to_go = [
        [total(row[k:] * discounts[: len(row) - k]) for k in range(len(row))]
        for row in rewards.rewards
    ]
    return np.where(rewards.failed[:, None], np.nan, np.reshape(to_go, rewards.rewards.shape))


def total(rewards: Float[np.ndarray, " T"]) -> float:
    """The sum of the rewards that are there; nan where none is.

    Rounded once, at the end: the same rewards in another order must not differ by a rounding.

    Example:
        >>> total(np.array([0.1, np.nan, 0.2]))
        0.30000000000000004
    """
    known = rewards[~np.isnan(rewards)]
    return math.fsum(known) if known.size else math.nan


def centred(scores: Float[np.ndarray, "G ..."]) -> Float[np.ndarray, "G ..."]:
    """Scores less their mean over the episodes; nan where a score is missing or all that there are are equal.

    The spread is compared exactly: the deviation of equal floats need not be 0.

    Example:
        >>> centred(np.array([[1.0, 2.0], [0.0, 2.0]]))
        array([[ 0.5,  nan], [-0.5,  nan]])
    """
    known = ~np.isnan(scores)
    spread = np.where(known, scores, -np.inf).max(0) > np.where(known, scores, np.inf).min(0)
    mean = np.nan_to_num(scores).sum(0) / np.maximum(1, known.sum(0))
    return np.where(known & spread, scores - mean, np.nan)


def deviation(less_mean: Float[np.ndarray, "..."]) -> float:
    """The sample deviation of scores less their mean, over those that are there; 0 where there are none.

    Example:
        >>> deviation(np.array([0.5, -0.5, np.nan]))
        0.7071067811865476
    """
    freedom = max(1, np.count_nonzero(~np.isnan(less_mean)) - 1)
    return float(np.sqrt(np.nansum(less_mean**2) / freedom))


def on_all_turns(values: Float[np.ndarray, " G"], rewards: Rewards) -> Float[np.ndarray, "G T"]:
    """Each episode's value on all the turns that it has; nan on those that it has not.

    Example:
        >>> on_all_turns(np.array([1.0, 2.0]), rewards)
        array([[ 1.,  1.], [ 2., nan]])
    """
    reached = np.arange(rewards.rewards.shape[1]) < rewards.turns[:, None]
    return np.where(reached, values[:, None], np.nan)
