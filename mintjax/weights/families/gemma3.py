"""Gemma 3, text: norms on both sides, scaled embeddings, and layers whose queries see a window.

Of the multimodal checkpoints, ``model_type`` ``gemma3``, the text part is read.
"""

from collections.abc import Iterator

from mintjax.models.config import ModelConfig, RopeConfig
from mintjax.weights.config_fields import (
    DECODER_ABSENT,
    DECODER_READ,
    DECODER_REQUIRED,
    FULL,
    SLIDING,
    decoder_config,
    layer_type_problems,
    refuse_features,
    require_fields,
    windows_of,
)
from mintjax.weights.family import Family, Fields
from mintjax.weights.rope_fields import read_rope
from mintjax.weights.tensor_names import ATTENTION, MLP, QK_NORM, TOP


def _layer_types(fields: Fields) -> list[str]:
    """The kind of each layer: listed, or by the pattern of older files, in which every sixth is full."""
    listed = fields.get("layer_types")
    if listed is not None:
        return list(listed)
    pattern = fields.get("sliding_window_pattern") or fields.get("_sliding_window_pattern") or 6
    return [SLIDING if (i + 1) % pattern else FULL for i in range(fields["num_hidden_layers"])]


def _problems(fields: Fields) -> Iterator[str]:
    yield from layer_type_problems(_layer_types(fields), fields["num_hidden_layers"])


def _ropes(fields: Fields, name: str) -> tuple[RopeConfig, RopeConfig]:
    """The rotary embedding of full layers and that of layers with a window; absent values are transformers'."""
    new, old = fields.get("rope_parameters") or {}, fields.get("rope_scaling") or {}
    if new and old:
        raise ValueError(f"{name}: rope_parameters and rope_scaling are both given; delete one")
    if unknown := sorted(new.keys() - {FULL, SLIDING}):
        raise ValueError(
            f"{name}: rope_parameters: expected {FULL!r} and {SLIDING!r}, got {unknown}"
        )
    full = {"rope_theta": fields.get("rope_theta") or 1e6} | (new.get(FULL) or old)
    sliding = {"rope_theta": fields.get("rope_local_base_freq") or 1e4} | (new.get(SLIDING) or {})
    shared = {"max_position_embeddings": fields["max_position_embeddings"]}
    return (
        read_rope(shared | {"rope_parameters": full}, name),
        read_rope(shared | {"rope_parameters": sliding}, name),
    )


def _config(fields: Fields, name: str) -> ModelConfig:
    rope, window_rope = _ropes(fields, name)
    return decoder_config(
        fields,
        name,
        qk_norm=True,
        tied_head=fields.get("tie_word_embeddings") is not False,
        rope=rope,
        window_rope=window_rope,
        windows=windows_of(_layer_types(fields), fields["sliding_window"]),
        query_scale=(fields["head_dim"] / fields["query_pre_attn_scalar"]) ** 0.5,
        activation="gelu_tanh",
        norm_offset=1.0,
        post_norms=True,
        embed_scale=fields["hidden_size"] ** 0.5,
    )


# What the text part of the published multimodal files leaves out where it is this, as transformers has it.
_TEXT = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
}


def _text_config(fields: Fields, name: str) -> ModelConfig:
    """The description of the text part, whose fields are checked as those of a file of its own."""
    tied = {"tie_word_embeddings": fields.get("tie_word_embeddings")}
    text = _TEXT | fields["text_config"] | tied
    kind = text.get("model_type", "gemma3_text")
    if kind not in FAMILY.model_types:
        raise ValueError(f"{name}: text_config.model_type: expected 'gemma3_text', got {kind!r}")
    require_fields(FAMILY, text, f"{name}: text_config")
    refuse_features(FAMILY, text, f"{name}: text_config")
    return _config(text, name)


FAMILY = Family(
    name="Gemma 3",
    model_types=("gemma3_text",),
    architectures=("Gemma3ForCausalLM",),
    required=DECODER_REQUIRED
    | {"head_dim", "num_key_value_heads", "sliding_window", "query_pre_attn_scalar"},
    read=DECODER_READ
    | {"rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"},
    absent={key: DECODER_ABSENT[key] for key in DECODER_ABSENT.keys() - {"hidden_act"}}
    | {
        "hidden_activation": ("gelu_pytorch_tanh",),
        "attn_logit_softcapping": (None,),
        "final_logit_softcapping": (None,),
        "use_bidirectional_attention": (False,),
    },
    config=_config,
    weights=ATTENTION
    | QK_NORM
    | MLP
    | {
        "attn_post_norm": "post_attention_layernorm.weight",
        "mlp_norm": "pre_feedforward_layernorm.weight",
        "mlp_post_norm": "post_feedforward_layernorm.weight",
    },
    top=TOP,
    problems=_problems,
)

MULTIMODAL = Family(
    name="Gemma 3 with images",
    model_types=("gemma3",),
    architectures=("Gemma3ForConditionalGeneration",),
    required=frozenset({"text_config"}),
    # What images become, which text does not see.
    read=frozenset(
        {
            "model_type",
            "tie_word_embeddings",
            "vision_config",
            "mm_tokens_per_image",
            "boi_token_index",
            "eoi_token_index",
            "image_token_index",
        }
    ),
    absent={},
    config=_text_config,
    weights=FAMILY.weights,
    top={key: f"language_model.{name}" for key, name in FAMILY.top.items()},
    layer=f"language_model.{FAMILY.layer}",
    unused=lambda _, tensor: tensor.startswith(("vision_tower.", "multi_modal_projector.")),
)
