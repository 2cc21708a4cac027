"""The rotary embedding in ``config.json``, in either of its spellings."""

from collections.abc import Mapping
from typing import Any

from mintjax.models.config import RopeConfig
from mintjax.models.rope import yarn_attention_factor

_ROPE_FIELDS = {
    "default": set(),
    "linear": {"factor"},
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


def read_rope(config: Mapping[str, Any], name: str) -> RopeConfig:
    """Reads the rotary embedding of a ``config.json`` of any age; absent values are those of transformers.

    Args:
        config: has ``rope_parameters``, or ``rope_theta`` and ``rope_scaling``, or none of them.
        name: what the policy is called by.

    Returns:
        Its kind and numbers.

    Raises:
        ValueError: for a kind or a number of it that is not implemented or missing, named.

    Example:
        >>> read_rope({"rope_theta": 1e6}, "model").theta
        1000000.0
    """
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
    needed = {
        "linear": ("factor",),
        "llama3": (
            "original_max_position_embeddings",
            "factor",
            "low_freq_factor",
            "high_freq_factor",
        ),
        "yarn": ("original_max_position_embeddings",),
    }[kind]
    missing = [key for key in needed if key not in fields]
    if missing:
        raise ValueError(f"{name}: {kind} rotary embedding lacks {', '.join(missing)}")
    if kind == "linear":
        return RopeConfig(kind, theta, fields["factor"])
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
