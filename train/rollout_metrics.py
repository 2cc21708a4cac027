"""The figures of one batch of episodes, under the names that the field uses."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from mintjax.train.rollout_stats import RolloutStats
from mintjax.train.tool_calls import CALLS, FAILURES
from mintjax.types import Episode

_TIMED = (
    "decode_calls",
    "refills",
    "prefix_hits",
    "prefix_evictions",
    "slots_used",
    "held_bytes",
)


def rollout_metrics(
    episodes: Sequence[Episode], stats: RolloutStats, groups_in_flight: int | None
) -> dict[str, float]:
    """Figures of one batch of episodes.

    A figure that nothing in the batch speaks of is left out: ``reward`` where no episode has one, for instance. Turns are
    counted from 1. A completion is what was sampled in one turn, in tokens.

    Args:
        episodes: a batch, at least one.
        stats: what it cost.
        groups_in_flight: how many groups were sampled side by side at most; None where that is no fixed number, since rows
            refill.

    Returns:
        - ``reward``: mean over episodes of the sum of their turns' rewards; ``reward_std``: its sample deviation within a
          group, averaged over groups; ``frac_reward_zero_std``: fraction of groups whose rewards are all equal. In a game
          each seat of a group counts as one.
        - ``rewards/turn/mean`` and ``std``: over all turns that have a reward; ``rewards/turn_1/mean``, ...: by turn.
        - ``num_turns/mean``, ``max``; ``completions/mean_length``, ``min_length``, ``max_length``, ``clipped_ratio`` (the
          fraction of turns that did not end by themselves), ``mean_terminated_length`` (of those that did).
        - ``stop/<reason>``: fraction of the episodes that ended so; the sum is 1.
        - ``completions/parse_error_ratio``: fraction of turns with a tool call that cannot be read, where there is one.
        - ``tools/call_frequency``: tool calls an episode; ``tools/failure_frequency``: fraction of them that came to an
          error; both where there were any.
        - ``env/<name>``: the environment's own figures, over the turns that have them.
        - ``rollout/prefilled_tokens``, ``shared_tokens``, ``sampled_tokens``, ``cache_growths``, ``capacity``;
          ``groups_in_flight``; and ``cache_bytes``, what keys and values of the groups in flight took at most.
        - ``perf/rows_busy``, the share of rows that sampled a token over all steps of the decoder, ``perf/decode_calls``,
          ``refills``, ``prefix_hits``, ``prefix_evictions``, ``slots_used`` and ``held_bytes``, as `RolloutStats` has
          them: where rows refill, they depend on how fast environments answer.

    Example:
        >>> rollout_metrics(episodes, stats, groups_in_flight=8)["stop/finished"]
        1.0
    """
    return {
        **_reward_metrics(episodes),
        **_turn_metrics(episodes),
        **_environment_metrics(episodes),
        **_cost_metrics(stats),
        **(
            {}
            if groups_in_flight is None
            else {"rollout/groups_in_flight": float(groups_in_flight)}
        ),
    }


def _cost_metrics(stats: RolloutStats) -> dict[str, float]:
    """What the batch cost: what is the same in every run of it, and what depends on the time."""
    metrics = {"perf/rows_busy": stats.rows_busy}
    for name, value in stats._asdict().items():
        if name != "row_steps":
            metrics[f"{'perf' if name in _TIMED else 'rollout'}/{name}"] = float(value)
    return metrics


def _reward_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Rewards of episodes, groups and turns."""
    by_group: dict[tuple[int, int], list[float]] = {}
    for episode in episodes:
        if episode.reward is not None:
            by_group.setdefault((episode.group, episode.seat), []).append(episode.reward)
    metrics = {}
    if by_group:
        groups = list(by_group.values())
        metrics["reward"] = statistics.fmean(reward for group in groups for reward in group)
        metrics["frac_reward_zero_std"] = statistics.fmean(
            max(group) == min(group) for group in groups
        )
        deviations = [statistics.stdev(group) for group in groups if len(group) > 1]
        if deviations:
            metrics["reward_std"] = statistics.fmean(deviations)
    by_turn: dict[int, list[float]] = {}
    for episode in episodes:
        for k, turn in enumerate(episode.turns, 1):
            if turn.reward is not None:
                by_turn.setdefault(k, []).append(turn.reward)
    if by_turn:
        rewards = [reward for turn in by_turn.values() for reward in turn]
        metrics["rewards/turn/mean"] = statistics.fmean(rewards)
        metrics["rewards/turn/std"] = statistics.pstdev(rewards)
    for k, turn in sorted(by_turn.items()):
        metrics[f"rewards/turn_{k}/mean"] = statistics.fmean(turn)
    return metrics


def _turn_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """How many turns there were, how long, and how they and the episodes ended."""
    counts = [len(episode.turns) for episode in episodes]
    metrics = {"num_turns/mean": statistics.fmean(counts), "num_turns/max": float(max(counts))}
    turns = [turn for episode in episodes for turn in episode.turns]
    lengths = [int(turn.sampled.sum()) for turn in turns]
    if lengths:
        metrics["completions/mean_length"] = statistics.fmean(lengths)
        metrics["completions/min_length"] = float(min(lengths))
        metrics["completions/max_length"] = float(max(lengths))
        ended = [turn.decode_stop == "stop" for turn in turns]
        metrics["completions/clipped_ratio"] = 1 - statistics.fmean(ended)
        unread = statistics.fmean(turn.parse_error is not None for turn in turns)
        if unread:
            metrics["completions/parse_error_ratio"] = unread
        terminated = [length for length, by_itself in zip(lengths, ended, strict=True) if by_itself]
        if terminated:
            metrics["completions/mean_terminated_length"] = statistics.fmean(terminated)
    for reason, count in sorted(Counter(episode.stop_reason for episode in episodes).items()):
        metrics[f"stop/{reason}"] = count / len(episodes)
    return metrics


def _environment_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """What the environments measured, averaged over the turns that speak of it; tool calls are counted."""
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for turn in episode.turns:
            for name, value in turn.metrics.items():
                values.setdefault(name, []).append(value)
    calls, failures = (math.fsum(values.pop(name, ())) for name in (CALLS, FAILURES))
    metrics = {f"env/{name}": statistics.fmean(values[name]) for name in sorted(values)}
    if calls:
        metrics["tools/call_frequency"] = calls / len(episodes)
        metrics["tools/failure_frequency"] = failures / calls
    return metrics
