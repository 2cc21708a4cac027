from dataclasses import replace

import pytest

from mintjax.train.rollout_metrics import rollout_metrics
from mintjax.train.rollout_stats import RolloutStats, one_after_another

TOLERANCE = 1e-12
STATS = RolloutStats(
    prefilled_tokens=30,
    shared_tokens=10,
    sampled_tokens=20,
    cache_growths=1,
    capacity=128,
    cache_bytes=4096,
    row_steps=25,
    decode_calls=3,
    refills=2,
    prefix_hits=4,
    prefix_evictions=1,
    slots_used=5,
    held_bytes=512,
)


def test_figures_counted_by_hand(make_episode):
    episodes = [
        make_episode(
            [1.0, 0.5], samples=[4, 6], decode_stops=["stop", "length"], metrics={"exact": 1}
        ),
        make_episode([0.0], member=1, samples=[2], stop_reason="overflow", metrics={"exact": 0}),
        make_episode([1.0, None], group=1, samples=[3, 5], stop_reason="error"),
        make_episode([1.0], group=1, member=1, samples=[1]),
        make_episode([], group=1, member=2, stop_reason="error"),
    ]
    metrics = rollout_metrics(episodes, STATS, 2)
    assert metrics == pytest.approx(
        {
            "reward": (1.5 + 0 + 1 + 1) / 4,
            "reward_std": (1.5 / 2**0.5 + 0) / 2,
            "frac_reward_zero_std": 1 / 2,
            "rewards/turn/mean": (1 + 0.5 + 0 + 1 + 1) / 5,
            "rewards/turn/std": (0.8 / 5) ** 0.5,
            "rewards/turn_1/mean": 3 / 4,
            "rewards/turn_2/mean": 0.5,
            "num_turns/mean": 6 / 5,
            "num_turns/max": 2,
            "completions/mean_length": (4 + 6 + 2 + 3 + 5 + 1) / 6,
            "completions/min_length": 1,
            "completions/max_length": 6,
            "completions/clipped_ratio": 1 / 6,
            "completions/mean_terminated_length": (4 + 2 + 3 + 5 + 1) / 5,
            "stop/error": 2 / 5,
            "stop/finished": 2 / 5,
            "stop/overflow": 1 / 5,
            "env/exact": 2 / 3,
            "rollout/prefilled_tokens": 30,
            "rollout/shared_tokens": 10,
            "rollout/sampled_tokens": 20,
            "rollout/cache_growths": 1,
            "rollout/capacity": 128,
            "rollout/cache_bytes": 4096,
            "rollout/groups_in_flight": 2,
            "perf/rows_busy": 20 / 25,
            "perf/decode_calls": 3,
            "perf/refills": 2,
            "perf/prefix_hits": 4,
            "perf/prefix_evictions": 1,
            "perf/slots_used": 5,
            "perf/held_bytes": 512,
        },
        abs=TOLERANCE,
    )


def test_tool_calls_and_replies_that_cannot_be_read_are_counted(make_episode):
    def calls(made, failed):
        return {"tools/calls": made, "tools/failures": failed}

    episodes = [
        make_episode([None, None, 1.0], metrics=calls(2, 1)),
        make_episode([1.0], member=1),
        make_episode([None], member=2, metrics=calls(1, 1)),
    ]
    broken = replace(episodes[1].turns[0], parse_error="no JSON")
    metrics = rollout_metrics([*episodes[:1], replace(episodes[1], turns=(broken,)), *episodes[2:]], STATS, 1)  # fmt: skip
    assert metrics["tools/call_frequency"] == pytest.approx(7 / 3, abs=TOLERANCE)
    assert metrics["tools/failure_frequency"] == pytest.approx(4 / 7, abs=TOLERANCE)
    assert metrics["completions/parse_error_ratio"] == pytest.approx(1 / 5, abs=TOLERANCE)
    assert not [name for name in metrics if name.startswith("env/")]
    nothing = rollout_metrics(episodes[1:2], STATS, 1)
    assert not [name for name in nothing if "tools" in name or "parse" in name]


def test_seats_are_compared_apart(make_episode):
    won = [make_episode([1.0], member=0), make_episode([1.0], member=1)]
    lost = [replace(make_episode([-1.0], member=m), seat=1) for m in range(2)]
    metrics = rollout_metrics([*won, *lost], STATS, 1)
    assert (metrics["reward"], metrics["reward_std"], metrics["frac_reward_zero_std"]) == (0, 0, 1)


def test_figures_of_nothing_are_left_out(make_episode):
    episodes = [make_episode([], stop_reason="error"), make_episode([None], member=1)]
    metrics = rollout_metrics(episodes, STATS, 2)
    assert not [name for name in metrics if name.startswith(("reward", "frac_reward"))]
    nothing = rollout_metrics(episodes[:1], STATS, 2)
    assert not [name for name in nothing if name.startswith("completions/")]
    assert nothing["stop/error"] == 1
    never = rollout_metrics(episodes, STATS._replace(row_steps=0), None)
    assert never["perf/rows_busy"] == 0 and "rollout/groups_in_flight" not in never


def test_counts_add_up_and_the_largest_cache_tells():
    smaller = RolloutStats(1, 2, 3, 0, 64, 2048, 10, 1, 0, 0, 0, 7, 100)
    added = RolloutStats(31, 12, 23, 1, 128, 4096, 35, 4, 2, 4, 1, 7, 512)
    assert one_after_another([STATS, smaller]) == added
    assert one_after_another([smaller]) == smaller
