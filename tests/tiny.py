"""A tiny random policy, and random batches for it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from mintjax.adapters import LoraConfig, init_adapter
from mintjax.bench.models import character_tokenizer
from mintjax.cache import State
from mintjax.extension import extend
from mintjax.models.config import ModelConfig, RopeConfig
from mintjax.models.dense import weight_shapes
from mintjax.models.expert_config import ExpertsConfig, RoutingConfig
from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.types import Segment

CONFIG = ModelConfig(
    name="tiny",
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    context=512,
    qk_norm=True,
    tied_head=False,
    rope=RopeConfig(theta=1000.0),
)

EXPERTS = ExpertsConfig(RoutingConfig("softmax", 8, 3, normalise=True), 32)


def tiny_policy(
    dtype: Any = jnp.float32,
    *,
    config: ModelConfig = CONFIG,
    lora: LoraConfig | None = None,
    seed: int = 0,
) -> Policy:
    """A policy whose adapter already does something, so that no gradient is zero by construction."""
    lora = lora or LoraConfig(rank=3, alpha=6.0, train_unembed=True)
    rng = np.random.default_rng(seed)

    # Drawn by numpy, since compiling dozens of draws takes longer than most tests; and in one precision whatever the
    # dtype, so that policies of two precisions are the same model.
    def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        x = rng.standard_normal(leaf.shape).astype(np.float32)
        return 1 + 0.1 * x if x.ndim == 1 else x * leaf.shape[-1] ** -0.5

    base = jax.tree.map(draw, weight_shapes(config))
    adapter = jax.tree.map(
        draw, jax.eval_shape(partial(init_adapter, config, lora), jax.random.key(0))
    )
    master = jnp.promote_types(dtype, jnp.float32)
    return Policy(
        config,
        lora,
        jax.tree.map(lambda x: jnp.asarray(x, dtype), base),
        jax.tree.map(lambda x: jnp.asarray(0.3 * x, master), adapter),
        jnp.int32(0),
    )


def random_batch(lengths: list[int], size: int, *, seed: int = 0, dtype: Any = np.float32) -> Batch:
    """Rows of random tokens of which random runs are trained, with random advantages and sampler log probabilities."""
    rng = np.random.default_rng(seed)
    shape = (len(lengths), size)
    column = np.arange(size)
    real = column < np.asarray(lengths)[:, None]
    runs = np.repeat(rng.random((shape[0], size // 5 + 1)) < 0.5, 5, axis=1)[:, :size]
    mask = (real & runs & (column > 0)).astype(dtype)

    def masked(x: np.ndarray) -> np.ndarray:
        return np.where(mask > 0, x, 0).astype(dtype)

    return Batch(
        tokens=np.where(real, rng.integers(0, CONFIG.vocab_size, shape), 0).astype(np.int32),
        length=np.asarray(lengths, np.int32),
        mask=mask,
        advantages=masked(rng.standard_normal(shape)),
        logprobs=masked(-4 + 0.5 * rng.standard_normal(shape)),
        weights=masked(rng.random(shape)),
        temperature=np.asarray(0.8, dtype),
    )


def fed(policy: Policy, state: State, batch: Batch, turns: list[np.ndarray]) -> State:
    """A state after the rest of a batch's rows, in turns of at most so many tokens a row."""
    place = np.where(batch.length > 0, np.asarray(state.position), 0)
    for most in turns:
        length = np.clip(batch.length - place, 0, most).astype(np.int32)
        tokens = np.zeros((len(place), 64), np.int32)
        for row, count in enumerate(length):
            tokens[row, :count] = batch.tokens[row, place[row] : place[row] + count]
        state = extend(policy, Segment(tokens, length), state)
        place += length
    assert (place == batch.length).all()
    return state


def relative_difference(got: Any, want: Any) -> float:
    """The largest over the leaves of two trees of ‖got - want‖ / ‖want‖."""
    differences = jax.tree.map(
        lambda a, b: float(
            np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(np.asarray(b))
        ),
        got,
        want,
    )
    return max(jax.tree.leaves(differences))


def tiny_tokenizer() -> Tokenizer:
    """A vocabulary of single ASCII characters and ChatML's control tokens; a random policy hits digits and stops."""
    return character_tokenizer()
