"""Gradients of one long episode: the segment scan and its backward half alone, against packed rows."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from mintjax.bench.clock import interleaved
from mintjax.bench.fresh_process import Peak, in_fresh_process, peak_memory
from mintjax.bench.models import SMALL, SMOLLM2, WIDE_HEAD, random_batch, random_policy
from mintjax.bench.rows import Benchmark, Figures, exact_ratio, time_ratio
from mintjax.cache import State, bucket, init_state
from mintjax.extension import extend
from mintjax.models.config import ModelConfig
from mintjax.models.dense import weight_shapes
from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.train.gradients import gradients, lower_gradients
from mintjax.train.losses import Ppo
from mintjax.train.plan import Plan
from mintjax.types import Segment

PACKED = Plan("packed")
PACKED_REMAT = Plan("packed", remat=True)
_MIB = 2**20


@dataclass(frozen=True)
class EpisodeSize:
    """A model, the tokens of an episode, the tokens of a segment, and whether those are rematerialised."""

    model: ModelConfig
    tokens: int
    segment: int = 128
    remat: bool = False


def segments_time(size: EpisodeSize, runs: int) -> Figures:
    """The segment scan over a packed row that is rematerialised, in time."""
    policy, batch = _setting(size)
    ours = _gradient(policy, batch, _scan(size))
    return time_ratio(*interleaved(ours, _gradient(policy, batch, PACKED_REMAT), runs=runs))


def segments_memory(size: EpisodeSize, runs: int) -> Figures:
    """The same two in the compiler's temporary memory; beside it each one's peak in a process of its own."""
    del runs  # neither figure varies from run to run
    policy, batch = _setting(size)
    ours, other = _scan(size), PACKED_REMAT
    peaks = [in_fresh_process(peak_of_plan, size, plan) for plan in (ours, other)]
    return exact_ratio(
        temporary(policy, batch, ours) / _MIB,
        temporary(policy, batch, other) / _MIB,
        "MiB",
        packed_without_remat=temporary(policy, batch, PACKED) / _MIB,
        **_peaks(*peaks),
    )


def reverse_only_time(other: Plan, size: EpisodeSize, runs: int) -> Figures:
    """The backward walk over the cache that sampling left, over a packed row, in time; their memory beside it."""
    policy, batch = _setting(size)
    plan, state = Plan("reverse_only", size.segment), _sampled_state(policy, batch, size.segment)
    times = interleaved(
        _gradient(policy, batch, plan, state), _gradient(policy, batch, other), runs=runs
    )
    handed = sum(x.nbytes for x in jax.tree.leaves(state))
    return time_ratio(
        *times,
        ours_mib=(temporary(policy, batch, plan, state) + handed) / _MIB,
        other_mib=temporary(policy, batch, other) / _MIB,
    )


def memory_vs_length(size: EpisodeSize, runs: int) -> Figures:
    """Bytes that each further token costs the segment scan, over those of its cache, the gradient of that and a slope."""
    del runs
    policy, plan = random_policy(size.model), _scan(size)
    lengths = (size.tokens, 2 * size.tokens)
    held = [temporary(policy, random_batch(size.model, 1, n), plan) for n in lengths]
    measured = (held[1] - held[0]) / (lengths[1] - lengths[0])
    mib = [bytes_held / _MIB for bytes_held in held]
    return exact_ratio(
        measured, bytes_of_a_token(size.model), "B a token", lengths=lengths, mib=mib
    )


def long_episode(size: EpisodeSize, runs: int) -> Figures:
    """One gradient of a very long episode: the process's peak, over weights and what its tokens must take."""
    del runs  # one call takes minutes
    seconds, held = in_fresh_process(_long_call, size)
    if held is None:
        raise RuntimeError("peak memory: only Linux tells it; run this benchmark there")
    weights = sum(4 * math.prod(leaf.shape) for leaf in jax.tree.leaves(weight_shapes(size.model)))
    expected = weights + size.tokens * bytes_of_a_token(size.model)
    return exact_ratio(
        held.peak / _MIB, expected / _MIB, "MiB", resting_mib=held.resting / _MIB, seconds=seconds
    )


def bytes_of_a_token(config: ModelConfig) -> int:
    """Bytes of a float32 cache and its float32 gradient, and of one slope (:mod:`mintjax.scoring`), of a token.

    Example:
        >>> bytes_of_a_token(SMALL)
        9216
    """
    cached = config.num_layers * sum(heads * size for heads, size in config.cached)
    return 4 * (2 * cached + config.hidden_size)


def temporary(policy: Policy, batch: Batch, plan: Plan, state: State | None = None) -> int:
    """The compiler's temporary memory for a gradient, in bytes.

    Example:
        >>> temporary(policy, batch, Plan("segments"))
    """
    compiled = lower_gradients(policy, batch, Ppo(), plan, state).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None  # the compilers of CPU, GPU and TPU all give it
    return analysis.temp_size_in_bytes


def peak_of_plan(size: EpisodeSize, plan: Plan) -> Peak | None:
    """The peak of this process in the second gradient that it takes."""
    policy, batch = _setting(size)
    gradient = _gradient(policy, batch, plan)
    jax.block_until_ready(gradient())
    return peak_memory(gradient)


def _scan(size: EpisodeSize) -> Plan:
    return Plan("segments", size.segment, remat=size.remat)


def _setting(size: EpisodeSize) -> tuple[Policy, Batch]:
    return random_policy(size.model), random_batch(size.model, 1, size.tokens)


def _gradient(
    policy: Policy, batch: Batch, plan: Plan, state: State | None = None
) -> Callable[[], Any]:
    return lambda: gradients(policy, batch, Ppo(), plan, state)[0]


def _sampled_state(policy: Policy, batch: Batch, segment: int) -> State:
    """The cache that sampling an episode leaves."""
    rows, size = batch.tokens.shape
    state = init_state(policy, rows, bucket(size))
    for start in range(0, size, segment):
        tokens = batch.tokens[:, start : start + segment]
        length = np.full(rows, tokens.shape[1], np.int32)
        state = extend(policy, Segment(tokens, length), state, donate=True)
    return state


def _long_call(size: EpisodeSize) -> tuple[float, Peak | None]:
    """Seconds and peak of one gradient, compiled by an episode of one segment: the number of segments is traced."""
    policy, batch = _setting(size)
    plan = _scan(size)
    short = batch._replace(length=np.full_like(batch.length, size.segment))
    jax.block_until_ready(_gradient(policy, short, plan)())
    start = time.perf_counter()
    held = peak_memory(_gradient(policy, batch, plan))
    return time.perf_counter() - start, held


def _peaks(ours: Peak | None, other: Peak | None) -> dict[str, float]:
    if ours is None or other is None:
        return {}
    return {
        "peak_mib": ours.peak / _MIB,
        "other_peak_mib": other.peak / _MIB,
        "resting_mib": ours.resting / _MIB,
        "other_resting_mib": other.resting / _MIB,
    }


_SIZES = {
    "": EpisodeSize(SMALL, 2048, 256),
    "_8192": EpisodeSize(SMALL, 8192, 256),
    "_smollm2": EpisodeSize(SMOLLM2, 2048, 256, remat=True),
    "_smollm2_8192": EpisodeSize(SMOLLM2, 8192),
}
_PLANS = "segment scan / packed row with remat"

BENCHMARKS = (
    *(
        Benchmark(
            f"segments_vs_packed_{what}{suffix}",
            f"gradient of {size.tokens:,} tokens, {size.model.name}, {_PLANS}: {what}",
            measure,
            size,
            by_name=suffix != "",
        )
        for suffix, size in _SIZES.items()
        for what, measure in (("time", segments_time), ("memory", segments_memory))
    ),
    Benchmark(
        "reverse_only_vs_packed_remat_time",
        "gradient of 2,048 fresh tokens, backward walk over its cache / packed row with remat: time",
        partial(reverse_only_time, PACKED_REMAT),
        _SIZES[""],
    ),
    Benchmark(
        "reverse_only_vs_packed_time",
        "gradient of 2,048 fresh tokens, backward walk over its cache / packed row: time",
        partial(reverse_only_time, PACKED),
        _SIZES[""],
    ),
    Benchmark(
        "memory_vs_length",
        "memory that a further token costs the segment scan / its cache, gradient and slope by arithmetic",
        memory_vs_length,
        _SIZES[""],
    ),
    Benchmark(
        "long_episode_memory",
        "gradient of 32,768 tokens by the segment scan: peak of the process / weights and what tokens take",
        long_episode,
        EpisodeSize(WIDE_HEAD, 32_768),
        by_name=True,
    ),
)
