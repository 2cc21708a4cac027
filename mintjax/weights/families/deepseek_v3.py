"""DeepSeek-V3, V3.1 and R1: latent attention, and after the first layers a mixture of experts chosen by groups."""

import re
from collections.abc import Iterator

from mintjax.models.config import ModelConfig
from mintjax.models.expert_config import ExpertsConfig, RoutingConfig
from mintjax.models.latent_config import LatentConfig
from mintjax.models.rope import yarn_attention_factor
from mintjax.weights.config_fields import (
    DECODER_ABSENT,
    DECODER_READ,
    DECODER_REQUIRED,
    decoder_config,
    window_problems,
)
from mintjax.weights.family import Family, Fields
from mintjax.weights.rope_fields import read_rope
from mintjax.weights.tensor_names import (
    CORRECTED_ROUTER,
    EXPERTS,
    LATENT_ATTENTION,
    MLP,
    PACKED_EXPERTS,
    SHARED_EXPERTS,
    TOP,
)


def _config(fields: Fields, name: str) -> ModelConfig:
    latent = LatentConfig(
        fields.get("q_lora_rank"),
        fields["kv_lora_rank"],
        fields["qk_nope_head_dim"],
        fields["qk_rope_head_dim"],
        fields["v_head_dim"],
        interleaved=fields.get("rope_interleave") is not False,
    )
    routing = RoutingConfig(
        "sigmoid",
        fields["n_routed_experts"],
        fields["num_experts_per_tok"],
        bool(fields["norm_topk_prob"]),
        fields["n_group"],
        fields["topk_group"],
        float(fields["routed_scaling_factor"]),
    )
    width = fields["moe_intermediate_size"]
    experts = ExpertsConfig(
        routing,
        width,
        shared_size=width * (fields.get("n_shared_experts") or 0),
        dense_layers=tuple(range(fields["first_k_dense_replace"])),
    )
    # Attention divides by the root of the numbers it multiplies; the model was trained with that of its keys' own.
    scale = (latent.cached / (latent.key_dim + latent.rope_dim)) ** 0.5
    return decoder_config(
        fields,
        name,
        num_kv_heads=1,
        head_dim=latent.rope_dim,
        latent=latent,
        experts=experts,
        query_scale=scale * _temperature(fields, name),
    )


def _temperature(fields: Fields, name: str) -> float:
    """What yarn sharpens attention by, beside the factor on cos and sin."""
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    stretched = read_rope(fields, name)
    if stretched.kind != "yarn" or not rope.get("mscale_all_dim"):
        return 1.0
    return yarn_attention_factor(stretched.factor, rope["mscale_all_dim"]) ** 2


def _problems(fields: Fields) -> Iterator[str]:
    """What the tables of fields cannot tell."""
    yield from window_problems(fields)
    whole = fields["qk_nope_head_dim"] + fields["qk_rope_head_dim"]
    if fields.get("qk_head_dim") not in (None, whole):
        yield f"qk_head_dim={fields['qk_head_dim']} (only {whole}, qk_nope_head_dim and qk_rope_head_dim)"
    heads = fields["num_attention_heads"]
    if fields.get("num_key_value_heads") not in (None, heads):
        yield f"num_key_value_heads={fields['num_key_value_heads']} (only {heads}, num_attention_heads)"
    dense, layers = fields["first_k_dense_replace"], fields["num_hidden_layers"]
    if not 0 <= dense <= layers:
        yield f"first_k_dense_replace={dense} (only 0 to {layers}, num_hidden_layers)"


def _beyond(config: ModelConfig, tensor: str) -> bool:
    """Whether a tensor is of the layers after the last, which predict a second token in training."""
    layer = re.match(r"model\.layers\.(\d+)\.", tensor)
    return layer is not None and int(layer[1]) >= config.num_layers


FAMILY = Family(
    name="DeepSeek-V3",
    model_types=("deepseek_v3",),
    architectures=("DeepseekV3ForCausalLM",),
    required=DECODER_REQUIRED
    | {
        "first_k_dense_replace",
        "kv_lora_rank",
        "moe_intermediate_size",
        "n_group",
        "n_routed_experts",
        "norm_topk_prob",
        "num_experts_per_tok",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "routed_scaling_factor",
        "topk_group",
        "v_head_dim",
    },
    read=DECODER_READ
    | {"n_shared_experts", "q_lora_rank", "qk_head_dim", "rope_interleave"}
    # How it was trained and where its code lies.
    | {"aux_loss_alpha", "auto_map", "ep_size", "num_nextn_predict_layers", "seq_aux"},
    absent=DECODER_ABSENT
    | {"moe_layer_freq": (1,), "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)},
    config=_config,
    weights=LATENT_ATTENTION | MLP | EXPERTS | CORRECTED_ROUTER | SHARED_EXPERTS,
    top=TOP,
    packed=PACKED_EXPERTS,
    problems=_problems,
    unused=_beyond,
)
