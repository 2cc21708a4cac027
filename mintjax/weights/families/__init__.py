"""Model families, one a file: which checkpoints each reads, and how."""

from collections.abc import Mapping
from typing import Any

from mintjax.weights.families import (
    deepseek_v3,
    gemma3,
    gpt_oss,
    kimi_k2,
    llama3,
    qwen2_5,
    qwen3,
    qwen3_moe,
)
from mintjax.weights.family import Family

FAMILIES: tuple[Family, ...] = (
    llama3.FAMILY,
    qwen2_5.FAMILY,
    qwen3.FAMILY,
    gemma3.FAMILY,
    gemma3.MULTIMODAL,
    qwen3_moe.FAMILY,
    gpt_oss.FAMILY,
    deepseek_v3.FAMILY,
    kimi_k2.FAMILY,
)


def family_of(fields: Mapping[str, Any], name: str) -> Family:
    """The family that reads a ``config.json``.

    Args:
        fields: what ``config.json`` holds.
        name: what the policy is called by.

    Returns:
        The family of its ``model_type``.

    Raises:
        ValueError: for a ``model_type`` or an architecture that no family reads, with those that are read.

    Example:
        >>> family_of({"model_type": "qwen3"}, "model").name
        'Qwen3'
    """
    kind = fields.get("model_type")
    family = next((family for family in FAMILIES if kind in family.model_types), None)
    if family is None:
        known = tuple(kind for family in FAMILIES for kind in family.model_types)
        raise ValueError(
            f"{name}: model_type: expected one of {known}, got {kind!r}; this architecture is not implemented"
        )
    given = fields.get("architectures") or family.architectures
    if not set(given) & set(family.architectures):
        raise ValueError(
            f"{name}: architectures: {family.name} is read from {family.architectures}, got {given}; this architecture "
            f"is not implemented, and others are of {', '.join(other.name for other in FAMILIES)}"
        )
    return family
