"""Sampling as a host sees it: Python lists out, string stops, and errors instead of flags."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


@dataclass
class Draft:
    """A reply that is being sampled.

    Attributes:
        left: tokens that may still be sampled; 0 once it has ended.
        tokens: ids so far.
        logprobs: of each, under the temperature-scaled distribution.
        stop: how it ended: ``"stop"`` by a stop token or a stop string, else ``"length"``.
    """

    left: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop: Literal["stop", "length"] = "length"


class Generated(NamedTuple):
    """What :func:`generate` sampled, a list entry a row.

    Attributes:
        tokens: int32 ids, the stop token or the token that completed a stop string included.
        logprobs: float32, of the temperature-scaled distribution.
        stops: ``"stop"`` where a stop token or a stop string ended the row, ``"length"`` where ``max_tokens`` did.
        state: the state after exactly these tokens.
        steps: how many the decoder made; in each, all rows together are run once.
    """

    tokens: list[np.ndarray]
    logprobs: list[np.ndarray]
    stops: list[Literal["stop", "length"]]
    state: State
    steps: int


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
    budget = np.asarray(params.max_tokens)
    known = ~np.isnan(np.asarray(state.hidden[:, 0]))
    if not known[budget > 0].all():
        raise ValueError(
            f"state: rows {np.flatnonzero((budget > 0) & ~known).tolist()} have no hidden state to sample from; extend "
            f"them with at least one token, or use rewind instead of truncate"
        )
    check_overflow(policy.config, state)
    state = reserve(policy.config, state, budget)
    drafts = [Draft(int(left)) for left in budget]
    steps = 0
    while any(draft.left for draft in drafts):
        made, state = draw(
            policy, state, keys, params, drafts,
            buffer=buffer, stop_strings=stop_strings, decode_text=decode_text, donate=donate,
        )  # fmt: skip
        donate = True  # what decode returned belongs to this function
        steps += made
    return Generated(
        [np.asarray(draft.tokens, np.int32) for draft in drafts],
        [np.asarray(draft.logprobs, np.float32) for draft in drafts],
        [draft.stop for draft in drafts],
        state,
        steps,
    )


def draw(
    policy: Policy,
    state: State,
    keys: Key[Array, " B"],
    params: DecodeParams,
    drafts: Sequence[Draft],
    *,
    buffer: int,
    least: int = 1,
    stop_strings: Sequence[str] = (),
    decode_text: Callable[[Sequence[int]], str] | None = None,
    donate: bool = False,
) -> tuple[int, State]:
    """Samples another piece of every row's reply; what is drawn does not depend on where pieces end.

    Args:
        policy: the model.
        state: rows that their drafts' tokens are in, with room for what is left of them.
        keys: one typed key a row, the same for every piece of a reply.
        params: how to sample; ``max_tokens`` is not read.
        drafts: one a row; they are written to. A row with nothing left does not move.
        buffer: most tokens of the piece; static. With stop strings it is at most 16.
        least: the piece ends as soon as fewer rows than this are sampling.
        stop_strings: texts that end a row, which is rolled back to the token that completes one.
        decode_text: ids to text; needed with stop strings.
        donate: reuse the memory of ``state``, which can then not be used again.

    Returns:
        How many steps the decoder made, and the state after the piece.

    Example:
        >>> drafts = [Draft(left=64) for _ in range(8)]
        >>> steps, state = draw(policy, state, keys, params, drafts, buffer=16, least=7)
    """
    step = min(_CHUNK, buffer) if stop_strings else buffer
    left = np.array([draft.left for draft in drafts])
    start = np.asarray(state.length) if stop_strings else None  # read before it is donated
    piece = params._replace(max_tokens=np.minimum(left, step).astype(np.int32))
    sample, state = decode(policy, state, keys, piece, buffer=step, least=least, donate=donate)
    drawn, scores, counts, stopped = (np.asarray(x) for x in sample)
    keep = counts.copy()
    for row in np.flatnonzero(left).tolist():
        draft, count = drafts[row], int(counts[row])
        earlier = len(draft.tokens)
        draft.tokens += drawn[row, :count].tolist()
        draft.logprobs += scores[row, :count].tolist()
        draft.left -= count
        ended = bool(stopped[row])
        if decode_text is not None:
            end = _end_of_stop(draft.tokens, earlier, stop_strings, decode_text)
            if end is not None:
                ended, keep[row] = True, end - earlier
                del draft.tokens[end:], draft.logprobs[end:]
        if ended:
            draft.stop, draft.left = "stop", 0
    if start is not None and (keep < counts).any():
        last = np.asarray([draft.tokens[-1] if draft.tokens else 0 for draft in drafts], np.int32)
        state = rewind(policy, state, start + keep, last)
    return int(counts.max()), state


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
