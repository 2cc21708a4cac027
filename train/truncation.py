"""What an episode's length does to its reward: episodes that a limit cut, and those that come near one.

To be cut is not to fail: what an environment pays for half an answer says little about the answer. So such episodes can be
left out, or lengths made to cost something before they are cut (DAPO, arXiv:2503.14476, "overlong filtering" and "soft
overlong punishment").
"""

from collections.abc import Sequence
from dataclasses import replace

from mintjax.train.config_rollout import TruncationConfig
from mintjax.types import Episode


def truncated(episode: Episode, options: TruncationConfig) -> bool:
    """Whether a limit ended an episode: by its stop reason, or because its last reply was cut.

    Example:
        >>> truncated(episode, TruncationConfig(reasons=("max_turns",)))
        False
    """
    cut = bool(episode.turns) and episode.turns[-1].decode_stop != "stop"
    return cut or episode.stop_reason in options.reasons


def masked(episode: Episode, options: TruncationConfig) -> bool:
    """Whether an episode is left out because a limit ended it.

    Example:
        >>> masked(episode, TruncationConfig(episodes="train"))
        False
    """
    return options.episodes == "mask" and truncated(episode, options)


def overlong_penalty(tokens: int, options: TruncationConfig) -> float:
    """What is taken off an episode's reward for its sampled tokens, from 0 to 1.

    Args:
        tokens: how many were sampled, in all its turns.
        options: budget and cache.

    Returns:
        0 up to ``budget - cache``, 1 beyond ``budget``, and in proportion between.

    Example:
        >>> [overlong_penalty(n, TruncationConfig(budget=100, cache=20)) for n in (80, 90, 100, 101)]
        [0.0, 0.5, 1.0, 1.0]
    """
    if not options.budget or tokens <= options.budget - options.cache:
        return 0.0
    return 1.0 if tokens > options.budget else 1 - (options.budget - tokens) / options.cache


def shaped(episodes: Sequence[Episode], options: TruncationConfig) -> list[Episode]:
    """Episodes with the rewards that they are compared by.

    Args:
        episodes: as they were sampled.
        options: what becomes of the truncated and the long.

    Returns:
        The same episodes, in order. One that is masked has no reward on any turn. A penalty is taken off the last turn
        that has a reward; an episode without one stays so.

    Example:
        >>> group_advantages(shaped(episodes, config.truncation), config.advantage)
    """
    return [_shaped(episode, options) for episode in episodes]


def truncation_metrics(episodes: Sequence[Episode], options: TruncationConfig) -> dict[str, float]:
    """Figures of a batch's lengths.

    Args:
        episodes: as they were sampled, at least one.
        options: what is truncated, and what length costs.

    Returns:
        ``truncation/episodes``, the fraction that a limit ended; and with a budget ``truncation/penalty_mean``, over all
        episodes. The metrics of rewards are of what the environment gave, without the penalty.

    Example:
        >>> truncation_metrics(episodes, config.truncation)["truncation/episodes"]
        0.25
    """
    count = len(episodes)
    metrics = {"truncation/episodes": sum(truncated(x, options) for x in episodes) / count}
    if options.budget:
        penalties = [overlong_penalty(int(x.sampled.sum()), options) for x in episodes]
        metrics["truncation/penalty_mean"] = sum(penalties) / count
    return metrics


def _shaped(episode: Episode, options: TruncationConfig) -> Episode:
    turns = list(episode.turns)
    if masked(episode, options):
        return replace(episode, turns=tuple(replace(turn, reward=None) for turn in turns))
    penalty = overlong_penalty(int(episode.sampled.sum()), options)
    paid = [k for k, turn in enumerate(turns) if turn.reward is not None]
    if not penalty or not paid:
        return episode
    last = turns[paid[-1]]
    assert last.reward is not None  # it was chosen for that
    turns[paid[-1]] = replace(last, reward=last.reward - penalty)
    return replace(episode, turns=tuple(turns))
