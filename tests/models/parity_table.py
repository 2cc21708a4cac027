"""The figures of docs/models.md. `python -m tests.models.parity_table` measures and prints them."""

import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from mintjax.train.gradients import gradients
from mintjax.train.losses import CrossEntropy
from tests.models.loaded import load_tiny, sharing_batch
from tests.models.tiny_families import TINY_FAMILIES
from tests.models.torch_lora import lora_gradient
from tests.tiny import relative_difference
from tests.transformers_models import logits, random_tokens


def parity(kind: str) -> tuple[float, float]:
    """The largest difference of logits over a family's rotary embeddings; and the worst gradient's, relative."""
    found = []
    for rope in TINY_FAMILIES[kind].ropes:
        with tempfile.TemporaryDirectory() as folder:
            loaded = load_tiny(kind, Path(folder), rope)
        tokens = random_tokens(loaded.model)
        ours = loaded.policy.base_only().logits(jnp.asarray(tokens))
        found.append(float(np.abs(ours - logits(loaded.model, tokens)).max()))
    batch = sharing_batch()
    grads, _ = gradients(loaded.policy, batch, CrossEntropy())
    reference = lora_gradient(loaded.model, loaded.family, loaded.policy, batch)
    return max(found), relative_difference(grads, reference)


if __name__ == "__main__":
    for kind in TINY_FAMILIES:
        print(f"| {kind} | {' | '.join(f'{figure:.0e}' for figure in parity(kind))} |", flush=True)
