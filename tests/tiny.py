"""A tiny random policy, and random batches for it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mintjax.adapters import LoraConfig, init_adapter
from mintjax.models.config import ModelConfig, RopeConfig
from mintjax.models.dense import init_weights
from mintjax.policy import Policy
from mintjax.train.batches import Batch

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


def tiny_policy(dtype: Any = jnp.float32, *, lora: LoraConfig | None = None, seed: int = 0) -> Policy:
    """A policy whose adapter already does something, so that no gradient is zero by construction."""
    lora = lora or LoraConfig(rank=3, alpha=6.0, train_unembed=True)
    key, noise_key = jax.random.split(jax.random.key(seed))

    # Drawn in float32 whatever the dtype, so that policies of two precisions are the same model.
    def make(key, noise_key):
        base = init_weights(CONFIG, key)
        adapter = init_adapter(CONFIG, lora, key)
        leaves, tree = jax.tree.flatten(adapter)
        keys = jax.random.split(noise_key, len(leaves))
        noisy = [x + 0.1 * jax.random.normal(k, x.shape, x.dtype) for x, k in zip(leaves, keys, strict=True)]
        return base, jax.tree.unflatten(tree, noisy)

    base, adapter = jax.jit(make)(key, noise_key)
    master = jnp.promote_types(dtype, jnp.float32)
    return Policy(
        CONFIG,
        lora,
        jax.tree.map(lambda x: x.astype(dtype), base),
        jax.tree.map(lambda x: x.astype(master), adapter),
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


def relative_difference(got: Any, want: Any) -> float:
    """The largest over the leaves of two trees of ‖got − want‖ / ‖want‖."""
    differences = jax.tree.map(
        lambda a, b: float(np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(np.asarray(b))), got, want
    )
    return max(jax.tree.leaves(differences))
