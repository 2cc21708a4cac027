"""What benchmarks share: a model of some size with random weights, and a clock that pairs two functions."""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from mintjax.adapters import LoraConfig
from mintjax.models.config import ModelConfig
from mintjax.policy import Policy
from tests.tiny import tiny_policy

CONFIG = ModelConfig(
    name="bench",
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=768,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    context=4096,
    tied_head=False,
)


def bench_policy() -> Policy:
    """Four layers of width 256 in float32."""
    return tiny_policy(jnp.float32, config=CONFIG, lora=LoraConfig(rank=8, alpha=16.0))


def paired(
    first: Callable[[], Any], second: Callable[[], Any], *, runs: int = 5
) -> dict[str, float]:
    """Times two functions in turn, A B A B, after a run of each that compiles: medians, in seconds, and the ratio A/B."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for function in (first, second):
        jax.block_until_ready(function())
    for _ in range(runs):
        for function, times in zip((first, second), seconds, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(function())
            times.append(time.perf_counter() - start)
    a, b = map(statistics.median, seconds)
    ratio = statistics.median(x / y for x, y in zip(*seconds, strict=True))
    return {"first_s": round(a, 4), "second_s": round(b, 4), "ratio": round(ratio, 3)}


def report(name: str, **figures: Any) -> None:
    """Prints the benchmark's line."""
    print(json.dumps({"bench": name, "jax": jax.__version__, **figures}))
