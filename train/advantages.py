"""How much better a turn was than its group: rewards to advantages, on the host.

Two steps. An estimator compares the episodes of each group and gives every turn an advantage, or none. A normaliser then
divides, so that the loss itself can stay a plain sum over tokens. What it divides by is a number of each episode's own
times a count over the whole batch, so an episode's share is known before the batch is.

A turn gets no advantage, and no token of it is trained, where nothing can be said about it: it has no reward (None is not
0), or all rewards it is compared with are exactly equal. Leaving such turns out, instead of giving them 0, keeps them out
of KL and entropy terms and out of the normaliser's count.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from mintjax.types import Episode

GRPO_EPSILON = 1e-4
Value = TypeVar("Value")


class GroupRewards(NamedTuple):
    """The rewards of one group of G episodes with at most T turns.

    Attributes:
        rewards: one a turn; nan where a turn has none, or was not reached.
        turns: how many turns each episode has.
        failed: whether the environment failed, so that the episode's return is not known.
    """

    rewards: Float[np.ndarray, "G T"]
    turns: Int[np.ndarray, " G"]
    failed: Bool[np.ndarray, " G"]


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


def group_advantages(episodes: Sequence[Episode], estimator: str = "group_turn_mean") -> Advantages:
    """Compare the episodes of each group; in a game, those of each of its seats.

    Args:
        episodes: a batch; those of one group need not stand together.
        estimator: a name in `ESTIMATORS`.

    Returns:
        The advantages, not yet normalised.

    Raises:
        ValueError: where the name is unknown, or a group has a single episode: it has nothing to be compared with.

    Example:
        >>> advantages = group_advantages(episodes, "group_mean")
        >>> constant = [group for group, signal in advantages.signal.items() if not signal]
    """
    estimate = _named(ESTIMATORS, estimator, "advantage")
    values = [np.zeros(0)] * len(episodes)
    trained = [np.zeros(0, bool)] * len(episodes)
    signal: dict[int, bool] = {}
    compared = [(episode.group, episode.seat) for episode in episodes]
    for group, seat in sorted(set(compared)):
        places = [i for i, which in enumerate(compared) if which == (group, seat)]
        if len(places) == 1:
            raise ValueError(
                f"group {group}: expected at least 2 episodes, came 1, and an advantage compares "
                "episodes. Raise rollout.group_size."
            )
        rewards = _group_rewards([episodes[i] for i in places])
        estimates = estimate(rewards)
        signal[group] = signal.get(group, False) or not np.isnan(estimates).all()
        for place, row, turns in zip(places, estimates, rewards.turns, strict=True):
            trained[place] = ~np.isnan(row[:turns])
            values[place] = np.nan_to_num(row[:turns])
    return Advantages(tuple(values), tuple(trained), signal)


def normalise(
    advantages: Advantages,
    episodes: Sequence[Episode],
    normaliser: str = "batch_tokens",
    *,
    max_tokens: int,
) -> Advantages:
    """Divide the advantages, so that a sum over trained tokens is the mean one wants.

    Args:
        advantages: those of ``episodes``.
        episodes: the whole batch, however it is cut into micro-batches later.
        normaliser: a name in `NORMALISERS`.
        max_tokens: most tokens that one turn may sample; read by ``"max_tokens"`` alone.

    Returns:
        The divided advantages; ``trained`` and ``signal`` as they were.

    Raises:
        ValueError: where the name is unknown.

    Example:
        >>> advantages = normalise(group_advantages(episodes), episodes, max_tokens=64)
    """
    batch, own = divisors(advantages, episodes, normaliser, max_tokens=max_tokens)
    return divide(advantages, [batch * divisor for divisor in own])


class Divisors(NamedTuple):
    """What a normaliser divides by: an episode's advantages by ``batch * own[i]``.

    Attributes:
        batch: a count over all episodes, at least 1.
        own: one number an episode, at least 1, that does not depend on the others.
    """

    batch: float
    own: list[float]


def divisors(
    advantages: Advantages,
    episodes: Sequence[Episode],
    normaliser: str = "batch_tokens",
    *,
    max_tokens: int,
) -> Divisors:
    """What `normalise` divides by, in its two factors.

    Args:
        advantages: those of ``episodes``.
        episodes: a batch; of a part of one, ``own`` is right and ``batch`` counts that part.
        normaliser: a name in `NORMALISERS`.
        max_tokens: most tokens that one turn may sample; read by ``"max_tokens"`` alone.

    Returns:
        The factors.

    Raises:
        ValueError: where the name is unknown.

    Example:
        >>> batch, own = divisors(advantages, episodes, "episode_tokens", max_tokens=64)
    """
    count = _named(NORMALISERS, normaliser, "normaliser")
    tokens = [
        np.array([turn.sampled.sum() for turn in episode.turns], int) * trained
        for episode, trained in zip(episodes, advantages.trained, strict=True)
    ]
    batch, own = count(tokens, max_tokens)
    return Divisors(float(max(1, batch)), [float(max(1, divisor)) for divisor in own])


def divide(advantages: Advantages, by: Sequence[float]) -> Advantages:
    """The advantages of each episode divided by its number; ``trained`` and ``signal`` as they were.

    Example:
        >>> shares = divide(advantages, divisors(advantages, episodes, max_tokens=64).own)
    """
    pairs = zip(advantages.values, by, strict=True)
    return advantages._replace(values=tuple(value / divisor for value, divisor in pairs))


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


def group_mean(group: GroupRewards) -> Float[np.ndarray, "G T"]:
    """Return of the episode less the group's mean, on all its turns (Dr.GRPO, arXiv 2503.20783).

    Args:
        group: the rewards of one group.

    Returns:
        An advantage a turn, nan where there is none.

    Example:
        >>> group_mean(GroupRewards(np.array([[1.0], [0.0]]), np.array([1, 1]), np.zeros(2, bool)))
        array([[ 0.5], [-0.5]])
    """
    return _on_all_turns(_centred(_returns(group)), group)


def grpo(group: GroupRewards) -> Float[np.ndarray, "G T"]:
    """As `group_mean`, divided by the group's sample deviation plus 1e-4 (GRPO, arXiv 2402.03300).

    The division gives nearly constant groups the weight of the others: `group_mean` does not.

    Args:
        group: the rewards of one group.

    Returns:
        An advantage a turn, nan where there is none.

    Example:
        >>> grpo(GroupRewards(np.array([[1.0], [0.0]]), np.array([1, 1]), np.zeros(2, bool)))[0, 0]
        0.707006...
    """
    centred = _centred(_returns(group))
    freedom = max(1, np.count_nonzero(~np.isnan(centred)) - 1)
    deviation = np.sqrt(np.nansum(centred**2) / freedom)
    return _on_all_turns(centred / (deviation + GRPO_EPSILON), group)


def rloo(group: GroupRewards) -> Float[np.ndarray, "G T"]:
    """Return of the episode less the mean of the *other* episodes, on all its turns (RLOO, arXiv 2402.14740).

    Args:
        group: the rewards of one group.

    Returns:
        An advantage a turn, nan where there is none.

    Example:
        >>> rloo(GroupRewards(np.array([[1.0], [0.0]]), np.array([1, 1]), np.zeros(2, bool)))
        array([[ 1.], [-1.]])
    """
    centred = _centred(_returns(group))
    known = np.count_nonzero(~np.isnan(centred))
    return _on_all_turns(centred * known / max(1, known - 1), group)


def group_turn_mean(group: GroupRewards) -> Float[np.ndarray, "G T"]:
    """Reward of the turn less the group's mean for that turn: Dr.GRPO's baseline, turn by turn.

    It takes the turns as tasks of their own: no turn is credited with a later one's reward.

    Args:
        group: the rewards of one group.

    Returns:
        An advantage a turn, nan where there is none.

    Example:
        >>> rewards = np.array([[1.0, 0.0], [0.0, 0.0]])
        >>> group_turn_mean(GroupRewards(rewards, np.array([2, 2]), np.zeros(2, bool)))
        array([[ 0.5,  nan], [-0.5,  nan]])
    """
    return _centred(group.rewards)


def turn_returns(group: GroupRewards) -> Float[np.ndarray, "G T"]:
    """Sum of the rewards from the turn on, less the group's mean for that turn (as in GTPO, arXiv 2511.14846).

    Nothing is discounted. Episodes that ended before a turn have no part in its mean.

    Args:
        group: the rewards of one group.

    Returns:
        An advantage a turn, nan where there is none.

    Example:
        >>> rewards = np.array([[0.0, 1.0], [0.0, 0.0]])
        >>> turn_returns(GroupRewards(rewards, np.array([2, 2]), np.zeros(2, bool)))
        array([[ 0.5,  0.5], [-0.5, -0.5]])
    """
    to_go = [[_total(row[k:]) for k in range(len(row))] for row in group.rewards]
    return _centred(np.where(group.failed[:, None], np.nan, to_go))


ESTIMATORS: dict[str, Callable[[GroupRewards], Float[np.ndarray, "G T"]]] = {
    "group_mean": group_mean,
    "grpo": grpo,
    "rloo": rloo,
    "group_turn_mean": group_turn_mean,
    "turn_returns": turn_returns,
}


def _batch_tokens(tokens: list[np.ndarray], max_tokens: int) -> tuple[int, list[int]]:
    """Divide by all trained tokens of the batch: every token counts alike (DAPO, arXiv 2503.14476)."""
    return sum(int(counts.sum()) for counts in tokens), [1] * len(tokens)


def _episode_tokens(tokens: list[np.ndarray], max_tokens: int) -> tuple[int, list[int]]:
    """Divide by trained episodes and by the episode's own tokens: every episode counts alike (GRPO)."""
    return sum(bool(counts.any()) for counts in tokens), [int(counts.sum()) for counts in tokens]


def _max_tokens(tokens: list[np.ndarray], max_tokens: int) -> tuple[int, list[int]]:
    """Divide by trained turns times the most tokens a turn may have: no bias by length (Dr.GRPO)."""
    return sum(int(np.count_nonzero(counts)) for counts in tokens), [max_tokens] * len(tokens)


# Each takes the trained tokens of every turn and max_tokens, and returns the factors of `Divisors`; 0 stands for 1.
NORMALISERS: dict[str, Callable[[list[np.ndarray], int], tuple[int, list[int]]]] = {
    "batch_tokens": _batch_tokens,
    "episode_tokens": _episode_tokens,
    "max_tokens": _max_tokens,
}


def _named(table: dict[str, Value], name: str, field: str) -> Value:
    """Look a name up, or name those there are."""
    if name not in table:
        raise ValueError(f"{field}: expected one of {', '.join(table)}; came {name!r}.")
    return table[name]


def _group_rewards(episodes: Sequence[Episode]) -> GroupRewards:
    """Lay the rewards of a group out as a table."""
    turns = np.array([len(episode.turns) for episode in episodes])
    rewards = np.full((len(episodes), turns.max()), np.nan)
    for row, episode in zip(rewards, episodes, strict=True):
        given = [turn.reward for turn in episode.turns]
        row[: len(given)] = [np.nan if reward is None else reward for reward in given]
    failed = np.array([episode.error is not None for episode in episodes])
    return GroupRewards(rewards, turns, failed)


def _returns(group: GroupRewards) -> Float[np.ndarray, " G"]:
    """Sum the rewards of each episode; nan where it has none, or where a failure hides the rest."""
    return np.where(group.failed, np.nan, [_total(row) for row in group.rewards])


def _total(rewards: Float[np.ndarray, " T"]) -> float:
    """Sum the rewards that are there; nan where none is.

    Rounded once, at the end: the same rewards in another order must not differ by a rounding.
    """
    known = rewards[~np.isnan(rewards)]
    return math.fsum(known) if known.size else math.nan


def _centred(scores: Float[np.ndarray, "G ..."]) -> Float[np.ndarray, "G ..."]:
    """Subtract the mean over the group; nan where a score is missing or all that there are are equal.

    The spread is compared exactly: the deviation of equal floats need not be 0.
    """
    known = ~np.isnan(scores)
    spread = np.where(known, scores, -np.inf).max(0) > np.where(known, scores, np.inf).min(0)
    mean = np.nan_to_num(scores).sum(0) / np.maximum(1, known.sum(0))
    return np.where(known & spread, scores - mean, np.nan)


def _on_all_turns(values: Float[np.ndarray, " G"], group: GroupRewards) -> Float[np.ndarray, "G T"]:
    """Give each episode's value to all the turns that it has."""
    reached = np.arange(group.rewards.shape[1]) < group.turns[:, None]
    return np.where(reached, values[:, None], np.nan)
