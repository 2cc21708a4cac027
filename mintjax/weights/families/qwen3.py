"""Qwen3, dense: queries and keys are normed head by head."""

from functools import partial

from mintjax.weights.config_fields import (
    DECODER_ABSENT,
    DECODER_READ,
    DECODER_REQUIRED,
    decoder_config,
    window_problems,
)
from mintjax.weights.family import Family
from mintjax.weights.tensor_names import ATTENTION, MLP, QK_NORM, TOP

FAMILY = Family(
    name="Qwen3",
    model_types=("qwen3",),
    architectures=("Qwen3ForCausalLM",),
    required=DECODER_REQUIRED | {"head_dim", "num_key_value_heads"},
    read=DECODER_READ,
    absent=DECODER_ABSENT,
    config=partial(decoder_config, qk_norm=True),
    weights=ATTENTION | QK_NORM | MLP,
    top=TOP,
    problems=window_problems,
)
