"""Rollouts of several turns: over a cache that is carried on, against prompts that are run again whole every turn."""

from dataclasses import dataclass

import jax
import numpy as np

from mintjax.bench.clock import interleaved
from mintjax.bench.models import (
    FIRST,
    OBSERVED,
    SAMPLED,
    SMALL,
    random_policy,
    random_tokens,
    tokens_of,
)
from mintjax.bench.rows import Benchmark, Figures, speed_up
from mintjax.cache import State, bucket, init_state
from mintjax.decoding import DecodeParams
from mintjax.extension import extend
from mintjax.generation import generate
from mintjax.models.config import ModelConfig
from mintjax.policy import Policy
from mintjax.types import Segment

Turns = list[np.ndarray]  # ids of each turn, [B, n]


@dataclass(frozen=True)
class RolloutSize:
    """A model, and how many conversations of how many turns; a turn brings 32 tokens, the first 64, and samples 16."""

    model: ModelConfig
    turns: int
    rows: int = 4


def rollout_time(size: RolloutSize, runs: int) -> Figures:
    """Rollouts over prompts that are run again, over those of a carried cache: tokens a second, many times over."""
    policy, news = random_policy(size.model), observations(size)
    ours, other = interleaved(
        lambda: carried(policy, news), lambda: run_again(policy, news), runs=runs
    )
    sampled = size.rows * size.turns * SAMPLED
    return speed_up(
        ours,
        other,
        ours_tokens_a_second=sampled / ours.seconds,
        other_tokens_a_second=sampled / other.seconds,
    )


def observations(size: RolloutSize) -> Turns:
    """What the environment says in each turn, to all rows."""
    tokens = random_tokens(size.model, size.rows, FIRST + (size.turns - 1) * OBSERVED)
    return np.split(tokens, range(FIRST, tokens.shape[1], OBSERVED), axis=1)


def carried(policy: Policy, news: Turns) -> Turns:
    """Samples every turn's reply, each token run once.

    Example:
        >>> replies = carried(policy, observations(size))
    """
    state = init_state(policy, len(news[0]), bucket(tokens_of(len(news))))
    replies = []
    for new in news:
        reply, state = _reply(policy, new, new.shape[1], state)
        replies.append(reply)
    return replies


def run_again(policy: Policy, news: Turns) -> Turns:
    """Samples every turn's reply, over the whole conversation so far, padded so that few lengths are compiled for.

    Example:
        >>> replies = run_again(policy, observations(size))
    """
    said, replies = np.empty((len(news[0]), 0), np.int32), []
    for new in news:
        said = np.concatenate([said, new], axis=1)
        length = said.shape[1]
        padded = np.pad(said, ((0, 0), (0, bucket(length) - length)))
        empty = init_state(policy, len(said), bucket(length + SAMPLED))
        reply, _ = _reply(policy, padded, length, empty)
        replies.append(reply)
        said = np.concatenate([said, reply], axis=1)
    return replies


def _reply(
    policy: Policy, tokens: np.ndarray, length: int, state: State
) -> tuple[np.ndarray, State]:
    """Feeds tokens of which the first ``length`` are real, and samples; nothing ends a reply early."""
    rows = len(tokens)
    state = extend(policy, Segment(tokens, np.full(rows, length, np.int32)), state, donate=True)
    params = DecodeParams(
        temperature=np.float32(1),
        top_k=np.int32(-1),
        top_p=np.float32(1),
        stop_tokens=np.array([-1], np.int32),
        max_tokens=np.full(rows, SAMPLED, np.int32),
    )
    keys = jax.random.split(jax.random.key(0), rows)
    generated = generate(policy, state, keys, params, buffer=SAMPLED, donate=True)
    return np.stack(generated.tokens), generated.state


BENCHMARKS = tuple(
    Benchmark(
        f"rollout_vs_reprefill_{turns}",
        f"{turns} turns of 4 conversations, prompts run again every turn / carried cache: time",
        rollout_time,
        RolloutSize(SMALL, turns),
    )
    for turns in (8, 16)
)
