"""Sampling as a host sees it: Python lists out, string stops, and errors instead of flags."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int, Key

from mintjax.cache import State, check_overflow, reserve, truncate
from mintjax.decoding import DecodeParams, decode
from mintjax.extension import extend
from mintjax.policy import Policy
from mintjax.types import Segment

_CHUNK = 16  # tokens sampled between two looks for a stop string


class Generated(NamedTuple):
    """What :func:`generate` sampled, a list entry a row.

    Attributes:
        tokens: int32 ids, the stop token or the token that completed a stop string included.
        logprobs: float32, of the temperature-scaled distribution.
        stops: ``"stop"`` where a stop token or a stop string ended the row, ``"length"`` where ``max_tokens`` did.
        state: the state after exactly these tokens.
    """

    tokens: list[np.ndarray]
    logprobs: list[np.ndarray]
    stops: list[Literal["stop", "length"]]
    state: State


def rewind(
    policy: Policy, state: State, length: Int[ArrayLike, " B"], last: Int[ArrayLike, " B"]
) -> State:
    """Shortens rows to ``length`` tokens and restores the hidden state at their new end.

    Args:
        policy: the policy that filled the state.
        state: any state.
        length: tokens to keep, at least 1 in each row that gets shorter; other rows are left as they are.
        last: the last token that each row keeps, which is fed again.

    Returns:
        The shorter state, ready to sample from or to extend.

    Example:
        >>> state = rewind(policy, state, jnp.array([10]), jnp.array([stream[9]]))
    """
    shorter = jnp.asarray(length) < state.length
    state = truncate(state, jnp.where(shorter, jnp.asarray(length) - 1, state.length))
    again = Segment(jnp.asarray(last, jnp.int32)[:, None], shorter.astype(jnp.int32))
    return extend(policy, again, state, donate=False)


def generate(
    policy: Policy,
    state: State,
    keys: Key[Array, " B"],
    params: DecodeParams,
    *,
    buffer: int,
    stop_strings: Sequence[str] = (),
    decode_text: Callable[[Sequence[int]], str] | None = None,
    donate: bool = False,
) -> Generated:
    """Samples every row until a stop token, a stop string or ``max_tokens``.

    With stop strings the rows are decoded a few tokens at a time; a row whose text contains one is rolled back to the
    token that completes it. The tokens and their randomness are those of one undivided call.

    Args:
        policy: the model.
        state: the prompts, extended. It is grown here where it lacks room for ``max_tokens``.
        keys: one typed key a row.
        params: how to sample.
        buffer: static size of the result; at least every ``max_tokens``.
        stop_strings: texts that end a row.
        decode_text: ids to text; needed with stop strings.
        donate: reuse the memory of ``state``, which can then not be used again.

    Returns:
        What was sampled, and the state after it.

    Raises:
        ContextOverflowError: if prompt and ``max_tokens`` exceed the model's context.
        ValueError: if stop strings come without ``decode_text``, or a row that is to move has no hidden state.

    Example:
        >>> out = generate(policy, state, keys, params, buffer=64, stop_strings=["User:"], decode_text=tok.decode)
    """
    if stop_strings and decode_text is None:
        raise ValueError("decode_text: needed with stop_strings; pass the tokenizer's decode")
    budget = np.asarray(params.max_tokens).copy()
    known = ~np.isnan(np.asarray(state.hidden[:, 0]))
    if not known[budget > 0].all():
        raise ValueError(
            f"state: rows {np.flatnonzero((budget > 0) & ~known).tolist()} have no hidden state to sample from; extend "
            f"them with at least one token, or use rewind instead of truncate"
        )
    check_overflow(policy.config, state)
    state = reserve(policy.config, state, budget)
    tokens: list[list[int]] = [[] for _ in budget]
    logprobs: list[list[float]] = [[] for _ in budget]
    stops: list[Literal["stop", "length"]] = ["length"] * len(budget)
    step = min(_CHUNK, buffer) if stop_strings else buffer
    while budget.any():
        start = np.asarray(state.length)
        chunk = params._replace(max_tokens=np.minimum(budget, step).astype(np.int32))
        sample, state = decode(policy, state, keys, chunk, buffer=step, donate=donate)
        donate = True  # what decode returned belongs to this function
        drawn, scores, counts, stopped = (np.asarray(x) for x in sample)
        keep = counts.copy()
        for row in np.flatnonzero(budget):
            count = int(counts[row])
            earlier = len(tokens[row])
            tokens[row] += drawn[row, :count].tolist()
            logprobs[row] += scores[row, :count].tolist()
            budget[row] -= count
            ended = bool(stopped[row])
            if decode_text is not None:
                end = _end_of_stop(tokens[row], earlier, stop_strings, decode_text)
                if end is not None:
                    ended, keep[row] = True, end - earlier
                    del tokens[row][end:], logprobs[row][end:]
            if ended:
                stops[row], budget[row] = "stop", 0
        if (keep < counts).any():
            last = np.asarray([row[-1] if row else 0 for row in tokens], np.int32)
            state = rewind(policy, state, start + keep, last)
    return Generated(
        [np.asarray(row, np.int32) for row in tokens],
        [np.asarray(row, np.float32) for row in logprobs],
        stops,
        state,
    )


def _end_of_stop(
    ids: list[int],
    earlier: int,
    stop_strings: Sequence[str],
    decode_text: Callable[[Sequence[int]], str],
) -> int | None:
    """How many tokens to keep so that the last one completes the first stop string, if there is one."""

    def complete(count: int) -> bool:
        text = decode_text(ids[:count])
        return any(stop in text for stop in stop_strings)

    if not complete(len(ids)):
        return None
    return next(count for count in range(earlier + 1, len(ids) + 1) if complete(count))
