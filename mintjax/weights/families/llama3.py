"""Llama 3.x, and what has its form: SmolLM2, Llama 2."""

from mintjax.weights.config_fields import (
    DECODER_ABSENT,
    DECODER_READ,
    DECODER_REQUIRED,
    decoder_config,
    window_problems,
)
from mintjax.weights.family import Family
from mintjax.weights.tensor_names import ATTENTION, MLP, TOP

FAMILY = Family(
    name="Llama 3",
    model_types=("llama",),
    architectures=("LlamaForCausalLM", "LLaMAForCausalLM"),
    required=DECODER_REQUIRED,
    read=DECODER_READ,
    absent=DECODER_ABSENT,
    config=decoder_config,
    weights=ATTENTION | MLP,
    top=TOP,
    problems=window_problems,
)
