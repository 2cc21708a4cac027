"""All benchmarks, by name, in the order that they run in."""

from mintjax.bench import compiling, episodes, gradient_plans, limits, rollouts, sharing
from mintjax.bench.rows import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for theme in (gradient_plans, rollouts, episodes, sharing, limits, compiling)
    for benchmark in theme.BENCHMARKS
}
