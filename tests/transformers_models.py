"""Tiny random models made by transformers, and what it says of them: the reference of the parity tests."""

from pathlib import Path

import numpy as np
import torch

from tests.models.tiny_families import TINY_FAMILIES

ORIGINAL_CONTEXT, FACTOR = 32, 4.0
CONTEXT = int(ORIGINAL_CONTEXT * FACTOR)

ROPE = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": FACTOR},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": FACTOR,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL_CONTEXT,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": FACTOR,
        "original_max_position_embeddings": ORIGINAL_CONTEXT,
    },
    "yarn, not truncated": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": FACTOR,
        "original_max_position_embeddings": ORIGINAL_CONTEXT,
        "truncate": False,
    },
    "deepseek yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": FACTOR,
        "original_max_position_embeddings": ORIGINAL_CONTEXT,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "local and linear": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": FACTOR},
    },
}


def tiny_model(kind: str, *, rope: str | dict = "default", tied: bool = False, seed: int = 0):
    """A two-layer model of a family with every parameter drawn, norms included."""
    family = TINY_FAMILIES[kind]
    sizes = {
        "vocab_size": 96,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
        "rope_parameters": dict(ROPE[rope] if isinstance(rope, str) else rope),
        **family.sizes,
    }
    model = family.model(family.config(**sizes))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            draw = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_((0 if name.endswith("bias") else family.norm) + 0.3 * draw)
            else:
                parameter.copy_(draw * parameter.shape[-1] ** -0.5)
    return model.eval()


def saved(model, directory: Path) -> Path:
    """The model in a directory, as its users would find it."""
    model.save_pretrained(directory)
    return directory


def logits(model, tokens: np.ndarray) -> np.ndarray:
    """transformers' own logits, ``[B, N, V]``."""
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


def random_tokens(model, rows: int = 2, length: int = CONTEXT) -> np.ndarray:
    """Rows that fill the context, so that most of their positions are past the original one."""
    return np.random.default_rng(0).integers(0, model.config.vocab_size, (rows, length))
