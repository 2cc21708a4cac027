"""What a run's checkpoints mean nothing without, and what has to fit together before it starts."""

import hashlib
from typing import Any

import numpy as np

from mintjax.policy import Policy
from mintjax.renderers.tokenizer import adapt


def check_vocabulary(model: str, policy: Policy, tokenizer: Any) -> None:
    """Refuses ids that the model has no embedding for: a gather would clamp them in silence.

    Args:
        model: its name, for the message.
        policy: the model.
        tokenizer: the one that conversations are rendered with.

    Raises:
        ValueError: where the tokenizer has more ids.

    Example:
        >>> check_vocabulary("smollm2-135m-instruct", policy, tokenizer)
    """
    tokens, rows = adapt(tokenizer).size, policy.config.vocab_size
    if tokens > rows:
        raise ValueError(
            f"tokenizer: it has {tokens} tokens, and the model {model} embeddings for {rows}; use the "
            f"tokenizer that belongs to the model"
        )


def origin_of(model: str, renderer: str, policy: Policy, tokenizer: Any) -> dict[str, str]:
    """What a checkpoint of an adapter means nothing without, as texts to compare.

    Args:
        model: name of the base model.
        renderer: name of the chat format.
        policy: the model.
        tokenizer: its tokenizer.

    Example:
        >>> origin_of("smollm2-135m-instruct", "smollm2", policy, tokenizer)["renderer"]
        'smollm2'
    """
    weights = hashlib.sha256()
    for part in (policy.base["norm"], policy.base["embed"][:16]):
        weights.update(np.asarray(part).tobytes())
    return {
        "base": model,
        "base_config": repr(policy.config),
        "base_weights": weights.hexdigest(),
        "renderer": renderer,
        "tokenizer": adapt(tokenizer).fingerprint,
    }
