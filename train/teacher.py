"""The teacher that a run names, in memory."""

from typing import Any

from mintjax.loading import load_policy, load_tokenizer
from mintjax.policy import Policy
from mintjax.renderers.tokenizer import adapt
from mintjax.train.config import TrainConfig


def load_teacher(config: TrainConfig, tokenizer: Any) -> Policy | None:
    """The policy that ``config.teacher`` names.

    Args:
        config: the run.
        tokenizer: the policy's.

    Returns:
        The teacher, without an adapter; None where none is named.

    Raises:
        ValueError: where its tokenizer is another one: the ids that were sampled would mean other text to it.

    Example:
        >>> teacher = load_teacher(config, load_tokenizer(config.model.name))
    """
    name = config.teacher.model
    if name is None:
        return None
    if adapt(load_tokenizer(name)).fingerprint != adapt(tokenizer).fingerprint:
        raise ValueError(
            f"teacher.model: {name} has another tokenizer than {config.model.name}, so the ids that the policy samples "
            f"mean other text to it; take a teacher of the same family"
        )
    return load_policy(name, rank=1, dtype=config.teacher.dtype).base_only()
