"""How much better a turn was than what it is compared with: rewards to advantages, on the host.

Two steps. An estimator (`mintjax.train.estimators`) compares the episodes of each group, or of the whole batch, and gives
every turn an advantage, or none. A normaliser (`mintjax.train.normalisers`) then divides, so that the loss itself can stay
a plain sum over tokens.

A turn gets no advantage, and no token of it is trained, where nothing can be said about it: it has no reward (None is not
0), or all rewards it is compared with are exactly equal. Leaving such turns out, instead of giving them 0, keeps them out
of KL and entropy terms and out of the normaliser's count.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from mintjax.train.estimators import Estimator, GroupTurnMean, Rewards
from mintjax.types import Episode


class Advantages(NamedTuple):
    """Advantages of a batch, in the order of its episodes.

    Attributes:
        values: float64 ``[turns]`` for each episode; 0 where a turn has no advantage.
        trained: bool ``[turns]`` for each episode; whether the turn has one.
        signal: for each group, by its index in the batch, whether any of its turns has one.
    """

    values: tuple[Float[np.ndarray, " T"], ...]
    trained: tuple[Bool[np.ndarray, " T"], ...]
    signal: dict[int, bool]


def group_advantages(
    episodes: Sequence[Episode], estimator: Estimator = GroupTurnMean()
) -> Advantages:
    """Compare the episodes of each group, in a game those of each of its seats; or all, where the estimator does.

    Args:
        episodes: a batch; those of one group need not stand together.
        estimator: how.

    Returns:
        The advantages, not yet normalised.

    Raises:
        ValueError: where a group has a single episode: it has nothing to be compared with; or where the estimator cannot
            take these rewards.

    Example:
        >>> advantages = group_advantages(episodes, GroupMean())
        >>> constant = [group for group, signal in advantages.signal.items() if not signal]
    """
    values = [np.zeros(0)] * len(episodes)
    trained = [np.zeros(0, bool)] * len(episodes)
    seats: dict[tuple[int, int], list[int]] = {}
    for place, episode in enumerate(episodes):
        seats.setdefault((episode.group, episode.seat), []).append(place)
    for (group, _), members in seats.items():
        if len(members) == 1:
            raise ValueError(
                f"group {group}: expected at least 2 episodes, came 1, and an advantage compares "
                "episodes. Raise rollout.group_size."
            )
    whole = [list(range(len(episodes)))] if episodes else []
    for compared in whole if estimator.whole_batch else seats.values():
        rewards = _rewards([episodes[i] for i in compared])
        for place, row, turns in zip(compared, estimator(rewards), rewards.turns, strict=True):
            trained[place] = ~np.isnan(row[:turns])
            values[place] = np.nan_to_num(row[:turns])
    signal: dict[int, bool] = dict.fromkeys(sorted({group for group, _ in seats}), False)
    for episode, turns in zip(episodes, trained, strict=True):
        signal[episode.group] |= bool(turns.any())
    return Advantages(tuple(values), tuple(trained), signal)


def advantage_metrics(advantages: Advantages) -> dict[str, float]:
    """Figures of a batch's advantages.

    Args:
        advantages: best before they are normalised.

    Returns:
        ``groups/zero_signal``, a count; ``advantage/mean``, ``std`` and ``abs_mean`` over trained turns, where there are any.

    Example:
        >>> advantage_metrics(advantages)["groups/zero_signal"]
        0.0
    """
    metrics = {
        "groups/zero_signal": float(sum(not signal for signal in advantages.signal.values()))
    }
    pairs = zip(advantages.values, advantages.trained, strict=True)
    values = np.concatenate([np.zeros(0), *(value[trained] for value, trained in pairs)])
    if values.size:
        metrics["advantage/mean"] = float(values.mean())
        metrics["advantage/std"] = float(values.std())
        metrics["advantage/abs_mean"] = float(np.abs(values).mean())
    return metrics


def _rewards(episodes: Sequence[Episode]) -> Rewards:
    """Lay the rewards of episodes out as a table."""
    turns = np.array([len(episode.turns) for episode in episodes])
    shape = len(episodes), turns.max()
    rewards, tokens = np.full(shape, np.nan), np.zeros(shape, int)
    anchors, numbers = np.full(shape, -1), {}
    for i, episode in enumerate(episodes):
        for k, turn in enumerate(episode.turns):
            rewards[i, k] = np.nan if turn.reward is None else turn.reward
            tokens[i, k] = turn.sampled.sum()
            if turn.anchor is not None:
                anchors[i, k] = numbers.setdefault(turn.anchor, len(numbers))
    failed = np.array([episode.error is not None for episode in episodes])
    # The seats of a game are as good as groups of their own.
    seats = 1 + max(episode.seat for episode in episodes)
    group = np.array([episode.group * seats + episode.seat for episode in episodes])
    return Rewards(rewards, turns, failed, tokens, anchors, group)
