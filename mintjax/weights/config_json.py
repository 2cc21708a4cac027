"""Hugging Face's ``config.json`` becomes a ModelConfig, or is refused by the field that forbids it.

Every field is read, known to leave the logits alone, or required to have the one value under which the
feature that it controls is absent. Any other field is an error: a feature that is ignored gives wrong
logits without a sound.
"""

from collections.abc import Mapping
from typing import Any

from mintjax.models.config import ModelConfig
from mintjax.weights.config_fields import refuse_features, require_fields
from mintjax.weights.families import family_of


def model_config(config: Mapping[str, Any], name: str) -> ModelConfig:
    """Reads the configuration of a model of any family.

    Args:
        config: what ``config.json`` holds, of any age: ``rope_parameters`` as well as ``rope_theta``
            and ``rope_scaling``.
        name: what the policy is called by.

    Returns:
        The decoder's description.

    Raises:
        ValueError: for an architecture that no family reads, for a missing field, and for every field
            whose feature is not implemented, with its value.

    Example:
        >>> model_config(json.loads(Path("model/config.json").read_text()), "model")  # doctest: +SKIP
    """
    family = family_of(config, name)
    require_fields(family, config, name)
    refuse_features(family, config, name)
    return family.config(config, name)
