"""The clock, the rows and what the benchmarks hold themselves against; on a tiny model, a run each."""

import ctypes
import dataclasses
import json
import os
import resource
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from mintjax.bench import (
    clock,
    compiling,
    episodes,
    fresh_process,
    gradient_plans,
    limits,
    rollouts,
    sharing,
)
from mintjax.bench.clock import Ratio, Timed, interleaved, ratio
from mintjax.bench.models import random_batch, random_policy, tokens_of
from mintjax.bench.registry import BENCHMARKS
from mintjax.bench.rows import Row, exact_ratio, speed_up, time_ratio
from mintjax.bench.turns_plot import Point, draw, measure
from mintjax.cache import init_state
from mintjax.train.compiles import Compiles
from mintjax.train.gradients import lower_gradients
from mintjax.train.losses import Ppo
from mintjax.train.plan import Plan
from tests.tiny import CONFIG

PROMISED = {
    "segments_vs_packed_time",
    "segments_vs_packed_memory",
    "reverse_only_vs_packed_remat_time",
    "group_sharing_prefill",
    "group_sharing_decode",
    "group_sharing_train",
    "rollout_vs_reprefill_8",
    "rollout_vs_reprefill_16",
    "jitted_vs_hosted_episodes",
    "decode_share_of_bandwidth",
    "train_share_of_matmul",
    "memory_vs_length",
    "second_run_compile",
}
EPISODE = gradient_plans.EpisodeSize(CONFIG, tokens=128)
TINY = {
    "segments_vs_packed_time": EPISODE,
    "reverse_only_vs_packed_remat_time": EPISODE,
    "rollout_vs_reprefill_8": rollouts.RolloutSize(CONFIG, turns=2, rows=2),
    "jitted_vs_hosted_episodes": episodes.EpisodesSize(
        dataclasses.replace(CONFIG, vocab_size=99, num_layers=1, context=1024), 1, 2, 2, 4
    ),
    "group_sharing_train": sharing.GroupSize(CONFIG, group=2, prompt=64, completion=8),
    "group_sharing_decode": sharing.GroupSize(CONFIG, group=2, prompt=32, completion=8),
    "group_sharing_prefill": sharing.GroupSize(CONFIG, group=2, prompt=32, completion=8),
    "decode_share_of_bandwidth": limits.DecodeSize(CONFIG, (1, 2), 32, 4, summed=4096),
    "train_share_of_matmul": limits.StepSize(CONFIG, rows=2, tokens=128, side=32),
}
# A dot product's share of what XLA counts; norms, rotations and the softmax are the rest.
OPERATIONS_RTOL = 0.15
SLOPE_RTOL = 0.1


@pytest.mark.parametrize("count", [5, 9, 14, 25])
def test_the_interval_holds_the_median_nine_times_in_ten_and_no_narrower_one_does(count):
    rng = np.random.default_rng(count)
    held = narrower = 0
    trials = 4000
    for _ in range(trials):
        draws = rng.exponential(size=count)
        _, low, high = ratio(draws, np.ones(count))
        ordered = np.sort(draws)
        inside = ordered[(ordered > low) & (ordered < high)]
        held += low <= np.log(2) <= high
        narrower += inside[0] <= np.log(2) <= inside[-1]
    assert held >= 0.89 * trials
    assert narrower < 0.9 * trials


def test_ratios_are_of_runs_that_followed_each_other():
    # Both slow down tenfold halfway; the ratio of the two never changes.
    assert ratio([2, 2, 20, 20, 20], [1, 1, 10, 10, 10]) == Ratio(2, 2, 2)


def test_functions_are_run_in_turn_and_their_warm_up_is_not_timed(monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr(
        clock,
        "time",
        SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: 2 * now[0]),
    )

    def function(name, seconds):
        calls.append(name)
        now[0] += seconds if calls.count(name) > 1 else 1000.0

    times = interleaved(partial(function, "a", 1.0), partial(function, "b", 3.0), runs=2)
    assert calls == ["a", "b"] * 3
    assert times == (Timed((1.0, 1.0), (2.0, 2.0)), Timed((3.0, 3.0), (6.0, 6.0)))
    with pytest.raises(ValueError, match="runs: expected at least 1, got 0"):
        interleaved(runs=0)


def test_a_time_ratio_is_ours_over_the_other_and_a_speed_up_the_other_over_ours():
    ours, other = Timed((1.0, 1.0), (4.0, 4.0)), Timed((2.0, 2.0), (2.0, 2.0))
    assert time_ratio(ours, other).ratio.median == 0.5
    assert time_ratio(ours, other).details["cpu_ratio"] == 2.0
    assert speed_up(ours, other).ratio.median == 2.0
    assert speed_up(ours, other).details["cpu_ratio"] == 0.5
    assert exact_ratio(1.0, 4.0, "MiB").ratio == Ratio(0.25, 0.25, 0.25)


def test_a_row_is_one_line_of_json():
    row = Row("x", 1 / 3, 2.0, 1 / 6, (0.1, 0.2), "s", {"lengths": (1, 2), "peak": None})
    assert row.as_json() == (
        '{"name": "x", "ours": 0.33333, "other": 2.0, "ratio": 0.16667, "spread": [0.1, 0.2], '
        '"unit": "s", "lengths": [1, 2], "peak": null}'
    )


def test_the_promised_names_are_there_and_those_that_take_minutes_are_asked_for():
    assert {name for name, benchmark in BENCHMARKS.items() if not benchmark.by_name} >= PROMISED
    assert all(name == benchmark.name for name, benchmark in BENCHMARKS.items())
    assert BENCHMARKS["long_episode_memory"].by_name


# Of each theme the one that compiles least; the others are of the wide matrix.
QUICK = {"segments_vs_packed_time", "rollout_vs_reprefill_8", "group_sharing_prefill"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.wide] * (name not in QUICK)) for name in TINY]
)
def test_a_benchmark_measures(name):
    row = BENCHMARKS[name].run(1, TINY[name])
    assert row.ours > 0 and row.other > 0
    assert row.spread == (row.ratio, row.ratio)
    fields = json.loads(row.as_json())
    assert fields["runs"] == 1
    assert fields["size"]["model"] == "tiny"
    assert fields["jax"] == jax.__version__


def test_both_rollouts_sample_the_same_tokens():
    policy = random_policy(CONFIG)
    news = rollouts.observations(rollouts.RolloutSize(CONFIG, turns=3, rows=2))
    assert sum(new.shape[1] for new in news) + 3 * 16 == tokens_of(3)
    ours, other = rollouts.carried(policy, news), rollouts.run_again(policy, news)
    np.testing.assert_array_equal(ours, other)
    assert len(np.unique(ours)) > 10


def test_the_scan_costs_its_cache_gradient_and_a_slope_a_token():
    row = BENCHMARKS["memory_vs_length"].run(1, dataclasses.replace(EPISODE, tokens=512))
    state = init_state(random_policy(CONFIG), 1, 64)
    cache = sum(x.nbytes for x in jax.tree.leaves(state.buffers)) / 64
    assert row.other == 2 * cache + 4 * CONFIG.hidden_size
    assert abs(row.ratio - 1) < SLOPE_RTOL


def test_memory_is_the_compilers_and_the_processes(monkeypatch):
    monkeypatch.setattr(gradient_plans, "in_fresh_process", lambda function, *a: function(*a))
    long = dataclasses.replace(EPISODE, tokens=1024)
    row = BENCHMARKS["segments_vs_packed_memory"].run(1, long)
    assert row.ratio < 1 and row.other < row.details["packed_without_remat"]
    assert row.details["peak_mib"] >= row.details["resting_mib"] > 0
    monkeypatch.setattr(gradient_plans, "peak_memory", lambda _: None)
    row = BENCHMARKS["segments_vs_packed_memory"].run(1, long)
    assert "peak_mib" not in row.details
    with pytest.raises(RuntimeError, match="only Linux tells it"):
        BENCHMARKS["long_episode_memory"].run(1, EPISODE)


def test_a_long_episode_is_held_against_weights_cache_and_gradient(monkeypatch):
    monkeypatch.setattr(gradient_plans, "in_fresh_process", lambda function, *a: function(*a))
    row = BENCHMARKS["long_episode_memory"].run(1, EPISODE)
    weights = sum(x.nbytes for x in jax.tree.leaves(random_policy(CONFIG).base))
    assert row.other * 2**20 == weights + 128 * gradient_plans.bytes_of_a_token(CONFIG)
    assert row.details["seconds"] > 0


def test_peak_memory_is_what_a_call_holds_at_most():
    size = 2**26
    held = fresh_process.peak_memory(lambda: np.ones(size, np.uint8).sum())
    assert held is not None
    assert held.peak - held.resting > 0.9 * size
    again = fresh_process.peak_memory(lambda: None)
    assert again is not None
    assert again.peak - again.resting < 0.1 * size


def test_a_fresh_process_is_another_one():
    assert fresh_process.in_fresh_process(os.getpid) != os.getpid()


def test_a_start_compiles_all_and_keeps_it(tmp_path):
    size = compiling.StartSize(CONFIG, turns=1)
    start = fresh_process.in_fresh_process(compiling.compiles_of_start, size, str(tmp_path))
    assert start.misses == start.programs > 0 and start.seconds > 0
    assert len(list(tmp_path.glob("*-cache"))) == start.misses


def test_second_starts_are_held_against_first_ones(monkeypatch):
    firsts = [Compiles(10, 10, seconds) for seconds in (4.0, 8.0, 6.0)]
    seconds = [Compiles(10, misses, 1.0) for misses in (0, 2, 0)]
    starts = [start for pair in zip(firsts, seconds, strict=True) for start in pair]
    places = []

    def in_fresh_process(function, size, directory):
        places.append(directory)
        return starts[len(places) - 1]

    monkeypatch.setattr(compiling, "in_fresh_process", in_fresh_process)
    row = BENCHMARKS["second_run_compile"].run(9)
    assert (row.ours, row.other, row.ratio) == (1.0, 6.0, 1 / 6)
    assert (row.details["first_misses"], row.details["second_misses"]) == (10, 2)
    assert places[::2] == places[1::2] and len(set(places)) == row.details["runs"] == 3


def test_operations_are_those_that_xla_counts():
    config = dataclasses.replace(
        CONFIG, num_layers=3, hidden_size=128, intermediate_size=256, vocab_size=256, head_dim=16
    )
    policy, batch = random_policy(config), random_batch(config, 2, 128)
    analysis = lower_gradients(policy, batch, Ppo(), Plan("packed")).cost_analysis()
    assert analysis is not None
    counted = limits.operations_of_step(policy, batch)
    np.testing.assert_allclose(counted, analysis["flops"], rtol=OPERATIONS_RTOL)


@pytest.mark.parametrize("tied", [False, True])
def test_a_decoding_step_reads_each_weight_that_it_needs_and_the_cache(tied):
    policy = random_policy(dataclasses.replace(CONFIG, tied_head=tied))
    state = init_state(policy, 3, 64)
    cache = sum(x.nbytes for x in jax.tree.leaves(state.buffers))
    weights = sum(x.nbytes for x in jax.tree.leaves((policy.base, policy.adapter)))
    unread = 0 if tied else policy.base["embed"].nbytes
    assert limits.bytes_of_step(policy, rows=3, length=64) == weights - unread + cache


def test_the_plot_has_both_kinds_of_cost(tmp_path):
    point = measure(1, runs=1, model=CONFIG)
    assert point.turns == 1 and min(point) > 0
    draw([point, Point(2, 128, 2.0, 4.0, 10.0, 20.0, 40.0)], tmp_path / "turns.svg")
    text = (tmp_path / "turns.svg").read_text()
    assert "<svg" in text


def held_after_freeing(returned: bool) -> int:
    """Bytes that this process holds once it has freed 64 MiB below a block that it keeps."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [libc.malloc(2**16) for _ in range(2**10)]
    for block in blocks:
        ctypes.memset(block, 1, 2**16)
    libc.malloc(2**16)
    for block in blocks:
        libc.free(block)
    if returned:
        fresh_process.return_freed_memory()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="for glibc alone",
)
def test_what_libc_holds_back_is_returned_when_asked():
    held, left = (
        fresh_process.in_fresh_process(held_after_freeing, returned) for returned in (False, True)
    )
    assert held - left > 2**25
