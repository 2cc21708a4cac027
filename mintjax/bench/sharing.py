"""A group's common prompt: run once for all of its episodes, against once for each."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from mintjax.bench.clock import interleaved
from mintjax.bench.models import SMALL, random_batch, random_policy, random_tokens
from mintjax.bench.rows import Benchmark, Figures, speed_up
from mintjax.cache import State, bucket, fork, init_state, take_rows
from mintjax.decoding import DecodeParams, decode
from mintjax.extension import extend
from mintjax.models.config import ModelConfig
from mintjax.policy import Policy
from mintjax.train.gradients import gradients
from mintjax.train.losses import Ppo
from mintjax.train.plan import Plan
from mintjax.types import Segment


@dataclass(frozen=True)
class GroupSize:
    """A model, the episodes of a group, the tokens of their prompt, and those that each then has room for."""

    model: ModelConfig
    group: int = 8
    prompt: int = 512
    completion: int = 64


def sharing_prefill(size: GroupSize, runs: int) -> Figures:
    """Prefilling the prompt in every row, over prefilling it once and copying its cache to the rows."""
    policy = random_policy(size.model)
    prompt = random_tokens(size.model, 1, size.prompt)
    capacity = bucket(size.prompt + size.completion)
    every = np.repeat(prompt, size.group, axis=0)

    def once() -> State:
        return take_rows(_prefilled(policy, prompt, capacity), np.zeros(size.group, np.int32))

    return speed_up(*interleaved(once, lambda: _prefilled(policy, every, capacity), runs=runs))


def sharing_decode(size: GroupSize, runs: int) -> Figures:
    """Sampling a group's completions from caches that each hold the prompt, over sampling from one copy of it."""
    policy = random_policy(size.model)
    prompt = random_tokens(size.model, 1, size.prompt)
    prefilled = _prefilled(policy, prompt, bucket(size.prompt + size.completion))
    keys = jax.random.split(jax.random.key(0), size.group)
    params = DecodeParams(
        np.float32(1),
        np.int32(0),
        np.float32(1),
        np.array([-1], np.int32),
        np.full(size.group, size.completion, np.int32),
    )

    def sampled(state: State) -> State:
        return decode(policy, state, keys, params, buffer=size.completion)[1]

    def shared() -> State:
        return sampled(fork(prefilled, size.group, bucket(size.completion)))

    def copied() -> State:
        return sampled(take_rows(prefilled, np.zeros(size.group, np.int32)))

    return speed_up(*interleaved(shared, copied, runs=runs))


def sharing_train(size: GroupSize, runs: int) -> Figures:
    """The gradient of a group with its prompt run in every row, over that with the prompt run once."""
    policy = random_policy(size.model)
    batch = random_batch(size.model, size.group, size.prompt + size.completion)
    batch.tokens[:, : size.prompt] = batch.tokens[0, : size.prompt]
    batch.mask[:, : size.prompt] = 0

    def gradient(share: bool) -> Callable[[], object]:
        plan = Plan("segments", segment=size.completion, share=share)
        return lambda: gradients(policy, batch, Ppo(), plan)[0]

    return speed_up(*interleaved(gradient(True), gradient(False), runs=runs))


def _prefilled(policy: Policy, prompts: np.ndarray, capacity: int) -> State:
    rows, length = prompts.shape
    segment = Segment(prompts, np.full(rows, length, np.int32))
    return extend(policy, segment, init_state(policy, rows, capacity), donate=True)


BENCHMARKS = (
    Benchmark(
        "group_sharing_prefill",
        "prompt of a group of 8, run for every episode / run once and its cache copied: time",
        sharing_prefill,
        GroupSize(SMALL),
    ),
    Benchmark(
        "group_sharing_decode",
        "64 tokens sampled in each of a group of 8, prompt held by every row / held once: time",
        sharing_decode,
        GroupSize(SMALL),
    ),
    Benchmark(
        "group_sharing_train",
        "gradient of a group of 8, prompt run for every episode / run once: time",
        sharing_train,
        GroupSize(SMALL),
    ),
)
