"""Requests to sample, held against what the model can do."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mintjax.client.errors import RequestFailedError
from mintjax.decoding import padded_stops
from mintjax.models.config import ModelConfig
from mintjax.types import ModelInput, SamplingParams


def prompt_ids(prompt: ModelInput, config: ModelConfig) -> np.ndarray:
    """The ids of a prompt that a model can run.

    Raises:
        RequestFailedError: where there is none, one is outside of the vocabulary, or the context is too small.
    """
    ids = np.asarray(prompt.to_ints(), np.int64)
    if not ids.size:
        raise RequestFailedError(
            "prompt: expected at least one token, got none; render a message or start with BOS"
        )
    check_vocabulary("prompt", ids, config)
    if ids.size > config.context:
        raise RequestFailedError(
            f"prompt: {ids.size} tokens do not fit {config.name}'s context of {config.context}; shorten it"
        )
    return ids.astype(np.int32)


def check_vocabulary(name: str, ids: np.ndarray, config: ModelConfig) -> None:
    """Refuses ids that the model has no embedding for.

    Raises:
        RequestFailedError: naming the first one.
    """
    outside = (ids < 0) | (ids >= config.vocab_size)
    if outside.any():
        place = int(np.flatnonzero(outside)[0])
        raise RequestFailedError(
            f"{name}: expected ids from 0 to {config.vocab_size - 1}, the vocabulary of {config.name}, got "
            f"{ids.reshape(-1)[place]} at place {place}; encode with this model's tokenizer"
        )


def checked_max_tokens(params: SamplingParams, prompt: int, config: ModelConfig) -> int:
    """How many tokens to sample at most, after the other parameters were checked.

    Raises:
        RequestFailedError: for a value that cannot be, or more tokens than the context has room for.
    """
    room = config.context - prompt
    max_tokens = room if params.max_tokens is None else params.max_tokens
    checks = [
        ("temperature", params.temperature, params.temperature >= 0, "0 or more"),
        ("top_k", params.top_k, params.top_k >= 1 or params.top_k == -1, "-1 (off) or at least 1"),
        ("top_p", params.top_p, 0 < params.top_p <= 1, "above 0 and at most 1 (off)"),
        ("max_tokens", max_tokens, max_tokens >= 1 or params.max_tokens is None, "at least 1"),
    ]
    for name, value, right, expected in checks:
        if not right:
            raise RequestFailedError(f"sampling_params.{name}: expected {expected}, got {value}")
    if max_tokens > room or room < 1:
        raise RequestFailedError(
            f"sampling_params.max_tokens: {max_tokens} after a prompt of {prompt} tokens exceed the context of "
            f"{config.context} that {config.name} has; ask for at most {room}, or shorten the prompt"
        )
    return max_tokens


def stops(params: SamplingParams, ends: Sequence[int]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Stop tokens and stop texts of a request.

    Args:
        params: the request.
        ends: tokens that end a text, for a request that names no stop.

    Raises:
        RequestFailedError: for an empty text, or a list that mixes texts and ids.
    """
    stop = params.stop
    if stop is None:
        return padded_stops(ends), ()
    listed: list[Any] = [stop] if isinstance(stop, str) else list(stop)
    if all(isinstance(x, str) and x for x in listed):
        return padded_stops(()), tuple(listed)
    if all(isinstance(x, int | np.integer) and x >= 0 for x in listed):
        return padded_stops(listed), ()
    raise RequestFailedError(
        f"sampling_params.stop: expected a text, texts, or token ids, none empty or negative, got {stop!r}; name the "
        f"ids of all stops or the texts of all"
    )
