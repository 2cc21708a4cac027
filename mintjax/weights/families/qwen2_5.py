"""Qwen2.5, dense, and Qwen2: queries, keys and values have a bias."""

from functools import partial

from mintjax.weights.config_fields import (
    DECODER_ABSENT,
    DECODER_READ,
    DECODER_REQUIRED,
    decoder_config,
    window_problems,
)
from mintjax.weights.family import Family
from mintjax.weights.tensor_names import ATTENTION, MLP, QKV_BIAS, TOP

FAMILY = Family(
    name="Qwen2.5",
    model_types=("qwen2",),
    architectures=("Qwen2ForCausalLM",),
    required=DECODER_REQUIRED,
    read=DECODER_READ,
    absent=DECODER_ABSENT,
    config=partial(decoder_config, biases=("q", "k", "v")),
    weights=ATTENTION | QKV_BIAS | MLP,
    top=TOP,
    problems=window_problems,
)
