"""Fields of ``config.json`` that several families share: what they mean, and that nothing else is asked for."""

from collections.abc import Iterator, Sequence
from typing import Any

from mintjax.models.config import ModelConfig
from mintjax.weights.family import Family, Fields
from mintjax.weights.rope_fields import read_rope
from mintjax.weights.scaled import scaled_problems

DECODER_REQUIRED = frozenset(
    {
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
        "rms_norm_eps",
    }
)

DECODER_READ = frozenset(
    {
        "model_type",
        "num_key_value_heads",
        "head_dim",
        "tie_word_embeddings",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "layer_types",
        "sliding_window",
    }
)

DECODER_ABSENT: dict[str, tuple[Any, ...]] = {
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
HARMLESS = frozenset(
    {
        "_attn_implementation",
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "cache_implementation",
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
        "output_router_logits",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "router_aux_loss_coef",
        "task_specific_params",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unk_token_id",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    }
)


def require_fields(family: Family, fields: Fields, name: str) -> None:
    """Raises ValueError for what is missing.

    Example:
        >>> require_fields(family, {"model_type": "llama"}, "model")  # doctest: +SKIP
    """
    missing = [key for key in sorted(family.required) if fields.get(key) is None]
    if missing:
        raise ValueError(f"{name}: config.json lacks {', '.join(missing)}; add what the model has")


def refuse_features(family: Family, fields: Fields, name: str) -> None:
    """Raises ValueError for every field that may change the logits in a way that the decoder does not know.

    Example:
        >>> refuse_features(family, {"num_local_experts": 8}, "model")  # doctest: +SKIP
    """
    problems = []
    understood = family.required | family.read | HARMLESS
    for key, value in fields.items():
        if value is None or key in understood:
            continue
        if key == "quantization_config":
            problems += scaled_problems(value)
            continue
        if key not in family.absent:
            problems.append(f"{key}={value!r} (unknown)")
        elif value not in family.absent[key]:
            problems.append(f"{key}={value!r} (only {family.absent[key][0]!r})")
    problems += family.problems(fields)
    if problems:
        raise ValueError(
            f"{name}: config.json asks for what the decoder does not implement: "
            f"{'; '.join(problems)}. An unknown field is refused, since it may change the model; "
            "delete it if it does not"
        )


def window_problems(fields: Fields) -> Iterator[str]:
    """What a decoder without sliding windows has to refuse.

    Example:
        >>> list(window_problems({"sliding_window": 4096}))
        ['sliding_window=4096 (only None)']
    """
    types = fields.get("layer_types")
    if types is not None and set(types) - {"full_attention"}:
        yield f"layer_types={types!r} (only 'full_attention')"
    window = fields.get("sliding_window")
    # Qwen's configurations keep a window that their use_sliding_window switches off.
    if window is not None and fields.get("use_sliding_window") is not False:
        yield f"sliding_window={window!r} (only None)"


FULL, SLIDING = "full_attention", "sliding_attention"


def layer_type_problems(types: Sequence[str], layers: int) -> Iterator[str]:
    """What a decoder some of whose layers have a window has to refuse.

    Example:
        >>> list(layer_type_problems(["sliding_attention", "full_attention"], 2))
        []
    """
    if set(types) - {FULL, SLIDING} or len(types) != layers:
        yield f"layer_types={types!r} (only {FULL!r} and {SLIDING!r}, one for each layer)"


def windows_of(types: Sequence[str], window: int) -> tuple[int | None, ...]:
    """The window of each layer of a kind that has one.

    Example:
        >>> windows_of(["sliding_attention", "full_attention"], 128)
        (128, None)
    """
    return tuple(window if kind == SLIDING else None for kind in types)


def decoder_config(fields: Fields, name: str, **features: Any) -> ModelConfig:
    """The description of a decoder with grouped-query attention and a gated MLP.

    Args:
        fields: of which :data:`DECODER_REQUIRED` and :data:`DECODER_READ` are read.
        name: what the policy is called by.
        **features: further attributes of ``ModelConfig``, which those read here give way to.

    Returns:
        The decoder's description.

    Raises:
        ValueError: for heads that do not fit, and as :func:`read_rope`.

    Example:
        >>> decoder_config(fields, "model", qk_norm=True)  # doctest: +SKIP
    """
    heads, hidden = fields["num_attention_heads"], fields["hidden_size"]
    kv_heads = fields.get("num_key_value_heads")
    kv_heads = heads if kv_heads is None else kv_heads
    head_dim = fields.get("head_dim")
    if head_dim is None and hidden % heads:
        raise ValueError(
            f"{name}: hidden_size {hidden} is no multiple of num_attention_heads {heads}; "
            "give head_dim"
        )
    if heads % kv_heads:
        raise ValueError(
            f"{name}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )
    described = {
        "vocab_size": fields["vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": fields["intermediate_size"],
        "num_layers": fields["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": hidden // heads if head_dim is None else head_dim,
        "context": fields["max_position_embeddings"],
        "norm_eps": fields["rms_norm_eps"],
        "tied_head": bool(fields.get("tie_word_embeddings")),
    }
    if "rope" not in features:
        features["rope"] = read_rope(fields, name)
    return ModelConfig(name=name, **described | features)
