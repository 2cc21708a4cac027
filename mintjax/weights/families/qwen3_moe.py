"""Qwen3-MoE: Qwen3's attention, and a mixture of experts in every layer but those that are named dense."""

from collections.abc import Iterator

from mintjax.models.config import ModelConfig
from mintjax.models.expert_config import ExpertsConfig, RoutingConfig
from mintjax.weights.config_fields import (
    DECODER_ABSENT,
    DECODER_READ,
    DECODER_REQUIRED,
    decoder_config,
    window_problems,
)
from mintjax.weights.family import Family, Fields
from mintjax.weights.tensor_names import ATTENTION, EXPERTS, MLP, PACKED_EXPERTS, QK_NORM, TOP

# The number of experts goes by the first name on the hub, by the second where transformers saved it since version 5.
_NUMBER = ("num_experts", "num_local_experts")


def _config(fields: Fields, name: str) -> ModelConfig:
    experts = next(fields[key] for key in _NUMBER if fields.get(key) is not None)
    routing = RoutingConfig(
        "softmax", experts, fields["num_experts_per_tok"], bool(fields["norm_topk_prob"])
    )
    step, only = _step(fields), fields.get("mlp_only_layers") or ()
    dense = tuple(i for i in range(fields["num_hidden_layers"]) if i in only or (i + 1) % step)
    mixture = ExpertsConfig(routing, fields["moe_intermediate_size"], dense_layers=dense)
    return decoder_config(fields, name, qk_norm=True, experts=mixture)


def _step(fields: Fields) -> int:
    step = fields.get("decoder_sparse_step")
    return 1 if step is None else step


def _problems(fields: Fields) -> Iterator[str]:
    """What the tables of fields cannot tell."""
    yield from window_problems(fields)
    numbers = [fields[key] for key in _NUMBER if fields.get(key) is not None]
    if len(set(numbers)) != 1 or 0 in numbers:
        given = " and ".join(f"{key}={fields.get(key)!r}" for key in _NUMBER)
        yield f"{given} (only one number of experts, which either may give)"
    if _step(fields) < 1:
        yield f"decoder_sparse_step={_step(fields)} (only 1 or more)"
    only, layers = fields.get("mlp_only_layers") or (), fields["num_hidden_layers"]
    if not set(only) <= set(range(layers)):
        yield f"mlp_only_layers={only!r} (only layers from 0 to {layers - 1})"


FAMILY = Family(
    name="Qwen3-MoE",
    model_types=("qwen3_moe",),
    architectures=("Qwen3MoeForCausalLM",),
    required=DECODER_REQUIRED
    | {
        "num_key_value_heads",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
    },
    read=DECODER_READ | {*_NUMBER, "decoder_sparse_step", "mlp_only_layers"},
    absent=DECODER_ABSENT,
    config=_config,
    weights=ATTENTION | QK_NORM | MLP | EXPERTS,
    top=TOP,
    packed=PACKED_EXPERTS,
    problems=_problems,
)
