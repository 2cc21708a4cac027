"""What a second start of the same program compiles, when the first one's programs were kept on the disk."""

import statistics
import tempfile
from dataclasses import dataclass

import jax

from mintjax.bench.clock import ratio
from mintjax.bench.fresh_process import in_fresh_process
from mintjax.bench.models import SMALL, random_batch, random_policy, tokens_of
from mintjax.bench.rollouts import RolloutSize, carried, observations
from mintjax.bench.rows import Benchmark, Figures
from mintjax.models.config import ModelConfig
from mintjax.train.compiles import Compiles, counted_compiles
from mintjax.train.gradients import gradients
from mintjax.train.losses import Ppo
from mintjax.train.plan import Plan

_PAIRS = 3  # each pair takes two starts of a process


@dataclass(frozen=True)
class StartSize:
    """A model, and the turns of the conversations that are sampled and trained on."""

    model: ModelConfig
    turns: int = 4


def second_run(size: StartSize, runs: int) -> Figures:
    """Seconds of compiling in the second start over those in the first, both in processes of their own."""
    firsts, seconds = [], []
    for _ in range(min(runs, _PAIRS)):
        with tempfile.TemporaryDirectory() as directory:
            firsts.append(in_fresh_process(compiles_of_start, size, directory))
            seconds.append(in_fresh_process(compiles_of_start, size, directory))
    first, second = ([start.seconds for start in starts] for starts in (firsts, seconds))
    return Figures(
        statistics.median(second),
        statistics.median(first),
        ratio(second, first),
        "s",
        {
            "runs": len(firsts),
            "programs": seconds[-1].programs,
            "first_misses": firsts[-1].misses,
            "second_misses": max(start.misses for start in seconds),
        },
    )


def compiles_of_start(size: StartSize, directory: str) -> Compiles:
    """What this process compiles to sample and to train, with programs kept in a directory."""
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    with counted_compiles() as compiles:
        policy = random_policy(size.model)
        carried(policy, observations(RolloutSize(size.model, size.turns)))
        batch = random_batch(size.model, 4, tokens_of(size.turns))
        for plan in (Plan("packed"), Plan("segments")):
            jax.block_until_ready(gradients(policy, batch, Ppo(), plan)[0])
    return compiles


BENCHMARKS = (
    Benchmark(
        "second_run_compile",
        "compiling a rollout and two gradients, with the programs that an earlier start kept / without",
        second_run,
        StartSize(SMALL),
    ),
)
