"""A tiny model of a family in transformers and here, with an adapter that does something, and a batch for it."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mintjax import load_policy
from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.weights.families import family_of
from mintjax.weights.family import Family
from tests.models.tiny_families import TINY_FAMILIES
from tests.tiny import random_batch
from tests.transformers_models import saved, tiny_model

# Two prompts, each of two rows, one of them empty.
LENGTHS, SIZE, SHARED = [72, 61, 50, 0], 72, (34, 21)


class Loaded(NamedTuple):
    """A model in transformers, and the policy loaded from what it saved.

    Attributes:
        model: transformers' model.
        policy: the same weights here, with an adapter that changes something.
        family: the names of its tensors.
    """

    model: Any
    policy: Policy
    family: Family


def load_tiny(kind: str, directory: Path, rope: str | None = None) -> Loaded:
    """A tiny model of a family, saved in a directory and loaded from it; with the last of its rotary embeddings."""
    tiny = TINY_FAMILIES[kind]
    model = tiny_model(kind, rope=rope or tiny.ropes[-1], tied=tiny.tied)
    policy = load_policy(saved(model, directory), rank=3, alpha=6, train_unembed=True)
    policy = policy.replace(adapter=filled_adapter(policy.adapter))
    fields = json.loads((directory / "config.json").read_text())
    return Loaded(model, policy, family_of(fields, kind))


def filled_adapter(adapter: Any) -> Any:
    """An adapter that changes something."""
    rng = np.random.default_rng(1)

    def filled(pair: Any) -> Any:
        b = 0.3 * rng.standard_normal(pair["b"].shape).astype(np.float32)
        return pair | {"b": jnp.asarray(b * pair["b"].shape[-1] ** -0.5)}

    return jax.tree.map(filled, adapter, is_leaf=lambda x: "b" in x)


def sharing_batch() -> Batch:
    """Rows of which two and two begin alike, with trained tokens on both sides of where they part."""
    batch = random_batch(LENGTHS, SIZE)
    for first, shared in zip((0, 2), SHARED, strict=True):
        batch.tokens[first + 1, :shared] = batch.tokens[first, :shared]
        batch.mask[first, [3, shared]] = 1
        batch.weights[first, [3, shared]] = 0.7
    return batch
