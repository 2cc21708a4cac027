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
        norm: mean of the weights of its norms.
        ropes: rotary embeddings that its logits are compared with.
        tied: whether its head is the embedding.
        refused: fields of config.json that must be refused, each with a value.
    """

    config: Any
    model: Any
    sizes: Mapping[str, Any] = MappingProxyType({})
    norm: float = 1
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
    "gemma3": TinyFamily(
        transformers.Gemma3TextConfig,
        transformers.Gemma3ForCausalLM,
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 10,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        norm=0,
        ropes=("local and linear",),
        tied=True,
        refused={
            "attention_bias": True,
            "hidden_activation": "gelu",
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "use_bidirectional_attention": True,
            "layer_types": ["chunked_attention"] * 2,
        },
    ),
    "deepseek_v3": TinyFamily(
        transformers.DeepseekV3Config,
        transformers.DeepseekV3ForCausalLM,
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 20,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 10,
            "moe_intermediate_size": 24,
            "n_shared_experts": 2,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "first_k_dense_replace": 1,
        },
        ropes=("default", "deepseek yarn"),
        refused={
            "attention_bias": True,
            "scoring_func": "softmax",
            "topk_method": "greedy",
            "moe_layer_freq": 2,
            "qk_head_dim": 19,
            "num_key_value_heads": 2,
            "first_k_dense_replace": 3,
        },
    ),
    "qwen3_moe": TinyFamily(
        transformers.Qwen3MoeConfig,
        transformers.Qwen3MoeForCausalLM,
        {
            "head_dim": 16,
            "moe_intermediate_size": 24,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            # Experts under a further layer, whose keys and values carry gradients to them; and a dense one.
            "mlp_only_layers": [1],
        },
        ropes=("yarn",),
        refused={
            "attention_bias": True,
            "use_sliding_window": True,
            "num_experts": 4,
            "mlp_only_layers": [2],
        },
    ),
    "gpt_oss": TinyFamily(
        transformers.GptOssConfig,
        transformers.GptOssForCausalLM,
        {
            "head_dim": 16,
            "intermediate_size": 20,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        ropes=("yarn, not truncated",),
        refused={
            "attention_bias": False,
            "experts_per_token": 2,
            "quantization_config": {"quant_method": "bitsandbytes"},
            "swiglu_limit": 3.0,
            "layer_types": ["chunked_attention"] * 2,
        },
    ),
}
