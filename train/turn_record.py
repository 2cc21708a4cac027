"""A turn as it is recorded, wherever it was played."""

from typing import Literal

import numpy as np
from jaxtyping import Float32, Int32

from mintjax.renderers import Parsed
from mintjax.types import Message, Turn


def record_turn(
    put: Int32[np.ndarray, " n"],
    ids: Int32[np.ndarray, " m"],
    logprobs: Float32[np.ndarray, " m"],
    *,
    messages: tuple[Message, ...],
    parsed: Parsed,
    temperature: float,
    decode_stop: Literal["stop", "length", "overflow"],
) -> Turn:
    """A turn of which the environment has said nothing yet.

    Args:
        put: what the renderer wrote before the reply. An opening may hold assistant messages, but those are the
            environment's: only the reply was sampled.
        ids: the reply.
        logprobs: of its tokens.
        messages: what ``put`` says.
        parsed: what the reply says.
        temperature: it was sampled at.
        decode_stop: how sampling ended.

    Returns:
        The turn, without a reward.

    Example:
        >>> record_turn(news.ids, reply.ids, reply.logprobs, messages=said, parsed=parsed, temperature=1.0, decode_stop="stop")
    """
    return Turn(
        tokens=np.concatenate([put, ids]),
        sampled=np.arange(len(put) + len(ids)) >= len(put),
        logprobs=np.concatenate([np.full(len(put), np.nan, np.float32), logprobs]),
        temperature=temperature,
        messages=(*messages, parsed.message),
        reward=None,
        decode_stop=decode_stop,
        metrics={},
        parse_error=unread(parsed),
    )


def unread(parsed: Parsed) -> str | None:
    """Why tool calls in a reply cannot be read; None where all can. A call of an unknown tool can be read.

    Example:
        >>> unread(renderer.parse(ids))
    """
    errors = [x.error for x in parsed.attempts if x.status in ("malformed", "unclosed")]
    return "; ".join(errors) or None
