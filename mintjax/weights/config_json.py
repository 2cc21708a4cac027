"""Hugging Face's ``config.json`` becomes a ModelConfig, or is refused by the field that forbids it.

Every field is read, known to leave the logits alone, or required to have the one value under which the
feature that it controls is absent. Any other field is an error: a feature that is ignored gives wrong
logits without a sound.
"""

from collections.abc import Mapping
from typing import Any

from mintjax.models.config import ModelConfig, RopeConfig
from mintjax.models.rope import yarn_attention_factor

MODEL_TYPES = ("llama", "qwen3")

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "rms_norm_eps",
)

_READ = {
    *_REQUIRED,
    "model_type",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
}

# Values under which the feature is absent; None is always one.
_ABSENT: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "hidden_act": ("silu",),
    "use_sliding_window": (False,),
    "pretraining_tp": (1,),
    "partial_rotary_factor": (1, 1.0),
    "rope_interleaved": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
}

# How it was made, how it is trained or called, and what its tokens mean: nothing that the logits depend on.
_HARMLESS = {
    "_attn_implementation",
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "max_window_layers",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "task_specific_params",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
}

_ROPE_FIELDS = {
    "default": set(),
    "llama3": {
        "factor",
        "original_max_position_embeddings",
        "low_freq_factor",
        "high_freq_factor",
    },
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}


def model_config(config: Mapping[str, Any], name: str) -> ModelConfig:
    """Reads a Llama or Qwen3 configuration.

    Args:
        config: what ``config.json`` holds, of any age: ``rope_parameters`` as well as ``rope_theta``
            and ``rope_scaling``.
        name: what the policy is called by.

    Returns:
        The decoder's description.

    Raises:
        ValueError: for a missing field, and for every field whose feature is not implemented, with
            its value.

    Example:
        >>> model_config(json.loads(Path("model/config.json").read_text()), "model")  # doctest: +SKIP
    """
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise ValueError(
            f"{name}: model_type: expected one of {MODEL_TYPES}, got {kind!r}; this architecture is "
            "not implemented"
        )
    required = (*_REQUIRED, "head_dim", "num_key_value_heads") if kind == "qwen3" else _REQUIRED
    missing = [key for key in required if config.get(key) is None]
    if missing:
        raise ValueError(f"{name}: config.json lacks {', '.join(missing)}; add what the model has")
    _refuse_features(config, name)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    kv_heads = config.get("num_key_value_heads")
    kv_heads = heads if kv_heads is None else kv_heads
    head_dim = config.get("head_dim")
    if head_dim is None and hidden % heads:
        raise ValueError(
            f"{name}: hidden_size {hidden} is no multiple of num_attention_heads {heads}; "
            "give head_dim"
        )
    if heads % kv_heads:
        raise ValueError(
            f"{name}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )
    return ModelConfig(
        name=name,
        vocab_size=config["vocab_size"],
        hidden_size=hidden,
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads if head_dim is None else head_dim,
        context=config["max_position_embeddings"],
        norm_eps=config["rms_norm_eps"],
        qk_norm=kind == "qwen3",
        tied_head=bool(config.get("tie_word_embeddings")),
        rope=_rope(config, name),
    )


def _refuse_features(config: Mapping[str, Any], name: str) -> None:
    """Raises for every field that may change the logits in a way that the decoder does not know."""
    problems = []
    for key, value in config.items():
        if value is None or key in _READ or key in _HARMLESS:
            continue
        if key in _ABSENT:
            if value not in _ABSENT[key]:
                problems.append(f"{key}={value!r} (only {_ABSENT[key][0]!r})")
        elif key == "layer_types":
            if set(value) - {"full_attention"}:
                problems.append(f"{key}={value!r} (only 'full_attention')")
        elif key == "sliding_window":
            # Qwen3 keeps a window that its use_sliding_window switches off.
            if config.get("use_sliding_window") is not False:
                problems.append(f"{key}={value!r} (only None)")
        else:
            problems.append(f"{key}={value!r} (unknown)")
    if problems:
        raise ValueError(
            f"{name}: config.json asks for what the decoder does not implement: "
            f"{'; '.join(problems)}. An unknown field is refused, since it may change the model; "
            "delete it if it does not"
        )


def _rope(config: Mapping[str, Any], name: str) -> RopeConfig:
    """Reads either spelling of the rotary embedding; absent values are those of transformers."""
    new, old = config.get("rope_parameters"), config.get("rope_scaling")
    if new and old:
        raise ValueError(f"{name}: rope_parameters and rope_scaling are both given; delete one")
    fields = {key: value for key, value in (new or old or {}).items() if value is not None}
    theta = fields.pop("rope_theta", config.get("rope_theta") or 10000.0)
    kinds = {fields.pop(key) for key in ("rope_type", "type") if key in fields} or {"default"}
    kind = kinds.pop()
    if kinds or kind not in _ROPE_FIELDS:
        raise ValueError(
            f"{name}: rope_type: expected one of {tuple(_ROPE_FIELDS)}, got "
            f"{', '.join(map(repr, [kind, *kinds]))}; this kind of scaling is not implemented"
        )
    if fields.get("partial_rotary_factor") in (1, 1.0):
        del fields["partial_rotary_factor"]
    unknown = {key: fields[key] for key in fields.keys() - _ROPE_FIELDS[kind]}
    if unknown:
        raise ValueError(f"{name}: {kind} rotary embedding does not implement {unknown}")
    if kind == "default":
        return RopeConfig(theta=theta)
    needed = ["original_max_position_embeddings"]
    needed += ["factor", "low_freq_factor", "high_freq_factor"] if kind == "llama3" else []
    missing = [key for key in needed if key not in fields]
    if missing:
        raise ValueError(f"{name}: {kind} rotary embedding lacks {', '.join(missing)}")
    original = fields["original_max_position_embeddings"]
    factor = fields.get("factor", config["max_position_embeddings"] / original)
    if kind == "llama3":
        low, high = fields["low_freq_factor"], fields["high_freq_factor"]
        return RopeConfig(kind, theta, factor, original, low_freq_factor=low, high_freq_factor=high)
    attention_factor = fields.get("attention_factor")
    mscale, mscale_all_dim = fields.get("mscale"), fields.get("mscale_all_dim")
    if attention_factor is None and mscale and mscale_all_dim:
        attention_factor = yarn_attention_factor(factor, mscale) / yarn_attention_factor(
            factor, mscale_all_dim
        )
    return RopeConfig(
        kind,
        theta,
        factor,
        original,
        # Zero stands for the default, as in transformers.
        beta_fast=fields.get("beta_fast") or RopeConfig.beta_fast,
        beta_slow=fields.get("beta_slow") or RopeConfig.beta_slow,
        attention_factor=attention_factor,
        truncate=fields.get("truncate", RopeConfig.truncate),
    )
