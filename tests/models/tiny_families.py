"""What the tests of model families have to know of each: one entry a family."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import transformers


class TinyFamily(NamedTuple):
    """How transformers makes a tiny model of a family, and what of it is tried here.

    Attributes:
        config: transformers' configuration class.
        model: its model class.
        sizes: arguments of the configuration beside those of `tests.transformers_models.tiny_model`, or in their place.
        ropes: rotary embeddings that its logits are compared with.
        tied: whether its head is the embedding.
        refused: fields of config.json that must be refused, each with a value.
    """

    config: Any
    model: Any
    sizes: Mapping[str, Any] = MappingProxyType({})
    ropes: tuple[str, ...] = ("default", "llama3", "yarn")
    tied: bool = False
    refused: Mapping[str, Any] = MappingProxyType({})


TINY_FAMILIES = {
    "llama": TinyFamily(
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        {"head_dim": 12},
        refused={"attention_bias": True, "mlp_bias": True, "sliding_window": 16},
    ),
    "qwen2": TinyFamily(
        transformers.Qwen2Config,
        transformers.Qwen2ForCausalLM,
        ropes=("yarn",),
        tied=True,
        refused={"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2},
    ),
    "qwen3": TinyFamily(
        transformers.Qwen3Config,
        transformers.Qwen3ForCausalLM,
        # Heads that do not add up to the hidden size.
        {"head_dim": 16},
        tied=True,
        refused={"attention_bias": True, "use_sliding_window": True},
    ),
}
