"""How near the machine's limits: decoding to the rate of reading memory, a training step to that of a matrix product."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from mintjax.adapters import layer_adapter
from mintjax.bench.clock import Ratio, Timed, interleaved, ratio
from mintjax.bench.models import SMOLLM2, random_batch, random_policy
from mintjax.bench.rows import Benchmark, Figures
from mintjax.cache import State, bucket, init_state
from mintjax.decoding import DecodeParams, decode
from mintjax.models.config import ModelConfig
from mintjax.models.counts import layer_numbers, met_by_a_token
from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.train.gradients import gradients
from mintjax.train.losses import Ppo
from mintjax.train.optimizer import init_train_state, make_optimizer, update


@dataclass(frozen=True)
class DecodeSize:
    """A model, the batches to decode, the tokens in each row's cache before, tokens to sample, and bytes to sum."""

    model: ModelConfig
    rows: tuple[int, ...] = (1, 8)
    context: int = 512
    sampled: int = 16
    summed: int = 2**30


@dataclass(frozen=True)
class StepSize:
    """A model, the rows and tokens of a training step, and the side of the square matrices to multiply."""

    model: ModelConfig
    rows: int = 8
    tokens: int = 128
    side: int = 4096


def decode_share(size: DecodeSize, runs: int) -> Figures:
    """Bytes that decoding must read a second, over those that XLA sums a second; of the batches the least share."""
    policy = random_policy(size.model)
    numbers = jnp.ones(size.summed // 4, jnp.float32)
    total = jax.jit(jnp.sum)
    found = []
    for rows in size.rows:
        decoded, summed = interleaved(
            _decoding(policy, size, rows), lambda: total(numbers), runs=runs
        )
        needed = size.sampled * bytes_of_step(policy, rows, size.context + size.sampled // 2)
        found.append(_share(needed, decoded, size.summed, summed))
    shares = {f"share_at_{rows}": share for rows, (*_, share) in zip(size.rows, found, strict=True)}
    ours, other, share = min(found, key=lambda figures: figures[2].median)
    return Figures(ours / 1e9, other / 1e9, share, "GB/s", shares | {"runs": runs})


def step_share(size: StepSize, runs: int) -> Figures:
    """Operations a second that a training step cannot do without, over those of a large matrix product."""
    policy = random_policy(size.model)
    batch = random_batch(size.model, size.rows, size.tokens)
    start = init_train_state(policy, make_optimizer(1e-4))
    square = jnp.ones((size.side, size.side), jnp.float32)
    product = jax.jit(jnp.matmul)

    def step() -> object:
        return update(start, gradients(policy, batch, Ppo())[0]).policy.adapter

    stepped, multiplied = interleaved(step, lambda: product(square, square), runs=runs)
    needed = operations_of_step(policy, batch)
    ours, other, share = _share(needed, stepped, 2 * size.side**3, multiplied)
    speed = size.rows * size.tokens / stepped.seconds
    details = {"runs": runs, "tokens_a_second": speed}
    return Figures(ours / 1e9, other / 1e9, share, "GFLOP/s", details)


def bytes_of_step(policy: Policy, rows: int, length: int) -> int:
    """Bytes that a decoding step must read: each weight once, and the cache of every row up to its length.

    Example:
        >>> bytes_of_step(policy, rows=8, length=512)
    """
    config, base = policy.config, policy.base
    read = base if config.tied_head else {k: v for k, v in base.items() if k != "embed"}
    weights = sum(x.nbytes for x in jax.tree.leaves((read, policy.adapter)))
    width = base["embed"].dtype.itemsize
    cache = config.num_layers * sum(heads * size for heads, size in config.cached)
    return weights + rows * length * cache * width


def operations_of_step(policy: Policy, batch: Batch) -> int:
    """Additions and multiplications of a gradient with a frozen base, nothing run twice.

    A weight takes two a token forwards and two backwards, for its input alone; an adapter's number four backwards, since
    it has a gradient too. Of experts a token meets a few. The head runs at trained positions. Causal attention takes
    twice as many backwards as forwards.

    Example:
        >>> operations_of_step(policy, batch)
    """
    config = policy.config
    tokens, trained = int(batch.length.sum()), int(batch.mask.sum())
    layers = range(config.num_layers)
    frozen = sum(layer_numbers(config, layer) for layer in layers)
    adapted = sum(x.size for x in jax.tree.leaves((policy.adapter or {}).get("unembed")))
    adapted += sum(
        met_by_a_token(config, layer, x.shape)
        for layer in layers
        for x in jax.tree.leaves(layer_adapter(policy.adapter, layer))
    )
    seen = sum(int(n) * (int(n) + 1) // 2 for n in batch.length)
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * seen
    head = config.vocab_size * config.hidden_size
    return 4 * frozen * tokens + 6 * adapted * tokens + 4 * head * trained + 3 * attention


def _decoding(policy: Policy, size: DecodeSize, rows: int) -> Callable[[], State]:
    """A function that samples after the same number of tokens at every call, in the same memory."""
    state = init_state(policy, rows, bucket(size.context + size.sampled))
    # Any numbers do, since a step takes as long whatever they are; but untouched zeros may all be one page of memory.
    state = jax.tree.map(partial(jnp.full_like, fill_value=0.01), state)
    state = state.replace(overflow=jnp.zeros(rows, bool))
    keys = jax.random.split(jax.random.key(0), rows)
    params = DecodeParams(
        temperature=jnp.float32(1),
        top_k=jnp.int32(-1),
        top_p=jnp.float32(1),
        stop_tokens=jnp.array([-1], jnp.int32),
        max_tokens=np.full(rows, size.sampled, np.int32),
    )

    def run() -> State:
        nonlocal state
        back = state.replace(length=jnp.full(rows, size.context, jnp.int32))
        _, state = decode(policy, back, keys, params, buffer=size.sampled, donate=True)
        return state

    return run


def _share(needed: int, ours: Timed, done: int, other: Timed) -> tuple[float, float, Ratio]:
    """Both rates a second, and the share that the first is of the second."""
    rates = [[amount / t for t in times.wall] for amount, times in ((needed, ours), (done, other))]
    return needed / ours.seconds, done / other.seconds, ratio(*rates)


BENCHMARKS = (
    Benchmark(
        "decode_share_of_bandwidth",
        "decoding 1 and 8 rows after 512 tokens: bytes that must be read a second / XLA's sum of 1 GiB",
        decode_share,
        DecodeSize(SMOLLM2),
    ),
    Benchmark(
        "train_share_of_matmul",
        "training step of 8 rows of 128 tokens: operations it needs a second / a large matrix product's",
        step_share,
        StepSize(SMOLLM2),
    ),
)
