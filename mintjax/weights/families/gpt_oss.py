"""gpt-oss: every second layer's queries see a window, attention has sinks, and every layer is a mixture of experts."""

from collections.abc import Iterator

import numpy as np

from mintjax.models.config import ModelConfig
from mintjax.models.expert_config import ExpertsConfig, RoutingConfig
from mintjax.weights.config_fields import (
    DECODER_ABSENT,
    DECODER_READ,
    DECODER_REQUIRED,
    decoder_config,
    layer_type_problems,
    windows_of,
)
from mintjax.weights.family import Family, Fields
from mintjax.weights.rope_fields import read_rope
from mintjax.weights.stored import Stored
from mintjax.weights.tensor_names import ATTENTION, QKV_BIAS, TOP

# What repeats another field in OpenAI's own files.
_REPEATED = frozenset({"experts_per_token", "initial_context_length"})


def _config(fields: Fields, name: str) -> ModelConfig:
    routing = RoutingConfig(
        "chosen_softmax", fields["num_local_experts"], fields["num_experts_per_tok"]
    )
    return decoder_config(
        fields,
        name,
        biases=("q", "k", "v", "o"),
        sinks=True,
        windows=windows_of(fields["layer_types"], fields["sliding_window"]),
        experts=ExpertsConfig(
            routing, fields["intermediate_size"], activation="clamped_swiglu", bias=True
        ),
        rope=read_rope(fields, name),
    )


def _problems(fields: Fields) -> Iterator[str]:
    """What the tables of fields cannot tell."""
    yield from layer_type_problems(fields["layer_types"], fields["num_hidden_layers"])
    rope = fields.get("rope_parameters") or fields.get("rope_scaling")
    if not rope:
        # transformers takes a scaling of its own where a file gives none.
        yield "rope_parameters=None (only a rotary embedding that is given)"
        return
    repeated = {
        "experts_per_token": fields["num_experts_per_tok"],
        "initial_context_length": rope.get("original_max_position_embeddings"),
    }
    for key, value in repeated.items():
        if fields.get(key) not in (None, value):
            yield f"{key}={fields[key]!r} (only {value!r}, which another field says)"


def _gates(packed: np.ndarray) -> np.ndarray:
    return packed[..., ::2]


def _ups(packed: np.ndarray) -> np.ndarray:
    return packed[..., 1::2]


def _transposed(weight: np.ndarray) -> np.ndarray:
    return weight.swapaxes(1, 2)


# Experts' matrices are stored [in, out], gate and up projections in turns.
_EXPERTS = {
    "experts_gate": Stored("mlp.experts.gate_up_proj", lambda x: _transposed(_gates(x))),
    "experts_up": Stored("mlp.experts.gate_up_proj", lambda x: _transposed(_ups(x))),
    "experts_down": Stored("mlp.experts.down_proj", _transposed),
    "experts_gate_bias": Stored("mlp.experts.gate_up_proj_bias", _gates),
    "experts_up_bias": Stored("mlp.experts.gate_up_proj_bias", _ups),
    "experts_down_bias": Stored("mlp.experts.down_proj_bias"),
}

FAMILY = Family(
    name="gpt-oss",
    model_types=("gpt_oss",),
    architectures=("GptOssForCausalLM",),
    required=DECODER_REQUIRED
    | {
        "head_dim",
        "layer_types",
        "num_experts_per_tok",
        "num_key_value_heads",
        "num_local_experts",
        "sliding_window",
    },
    read=DECODER_READ | _REPEATED,
    absent=DECODER_ABSENT
    | {"attention_bias": (True,), "swiglu_alpha": (1.702,), "swiglu_limit": (7.0,)},
    config=_config,
    weights=ATTENTION
    | QKV_BIAS
    | {
        "o_bias": "self_attn.o_proj.bias",
        "sinks": "self_attn.sinks",
        "mlp_norm": "post_attention_layernorm.weight",
        "router": "mlp.router.weight",
        "router_bias": "mlp.router.bias",
    },
    top=TOP,
    packed=_EXPERTS,
    problems=_problems,
)
