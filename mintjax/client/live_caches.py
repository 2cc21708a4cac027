"""Conversations whose caches are still alive, found again by the ids of a prompt."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from mintjax.attention import BLOCK
from mintjax.cache import State, bucket, init_state, reserve, take_rows, truncate
from mintjax.extension import TopLogprobs, extend, forward, forward_top
from mintjax.held_caches import HeldCaches
from mintjax.policy import Policy
from mintjax.renderers import to_segment
from mintjax.types import SamplingStats

_SEGMENT = 512  # a longer prompt runs in pieces, so that segments have few sizes
_CAPACITY = (
    4 * BLOCK
)  # the least capacity, so that the turns of a short conversation share one compiled program


@dataclass(frozen=True, eq=False)
class Conversation:
    """One row's cache and the ids that are in it.

    Attributes:
        ids: every token of the cache.
        sampled: true on tokens that the policy emitted.
        state: one row, of exactly these tokens.
        ends: the hidden state at the end of each prompt so far, by length, to sample from there again.
    """

    ids: Int32[np.ndarray, " n"]
    sampled: Bool[np.ndarray, " n"]
    state: State
    ends: dict[int, Float[np.ndarray, "1 D"]] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Memory of the cache."""
        return self.state.cache_bytes

    def after(self, state: State) -> "Conversation":
        """The same with a state that has gone on; what it went on by is for :meth:`LiveCaches.keep`."""
        return replace(self, state=state)


class Scored(NamedTuple):
    """A prompt's log probabilities, nan at the first token, and, if asked for, the likeliest tokens at each place."""

    logprobs: Float[Array | np.ndarray, " n"]
    top: TopLogprobs | None


class LiveCaches:
    """The caches of the conversations that one policy had, within a bound of memory.

    A prompt takes the conversation with which it shares the most ids, and only the rest is run. Where the conversation
    goes past the shared ids, the prompt rolls back a copy of it. The least recently used one goes first when memory
    runs out.

    Example:
        >>> caches = LiveCaches(policy, limit=2**30)
        >>> conversation = caches.open(ids, room=64)
    """

    def __init__(self, policy: Policy, limit: int) -> None:
        """Start with no conversation; ``limit`` is in bytes."""
        self._policy = policy
        self._held: HeldCaches[Conversation] = HeldCaches(limit)
        self._prefilled = self._reused = self._sampled = self._diverged = 0

    @property
    def stats(self) -> SamplingStats:
        """What was done so far, and what is held."""
        return SamplingStats(
            prefilled=self._prefilled,
            reused=self._reused,
            sampled=self._sampled,
            diverged=self._diverged,
            evicted=self._held.evicted,
            entries=len(self._held),
            cache_bytes=self._held.bytes,
            cache_bytes_limit=self._held.limit,
        )

    def open(self, ids: Int32[np.ndarray, " n"], room: int) -> Conversation:
        """Runs what is new of a prompt.

        Args:
            ids: the whole prompt, at least one token.
            room: tokens that the state must have room for after it.

        Returns:
            A conversation of exactly these ids, with a hidden state to sample from. Its memory is its own, to be
            reused.

        Raises:
            ContextOverflowError: where the model's context is too small.
        """
        match = self._held.find(ids)
        if match is None:
            found = Conversation(ids[:0], np.zeros(0, bool), self._empty(len(ids) + room))
        else:
            found, shared = match.value, match.shared
            if shared == len(found.ids):
                self._held.take(found)
            else:
                if shared < len(ids) and found.sampled[shared]:
                    self._diverged += 1
                found = _cut(found, shared, len(ids))
        state = self._reserved(found.state, len(ids) - len(found.ids) + room)
        return self._run(replace(found, state=state), ids)

    def score(self, ids: Int32[np.ndarray, " n"], room: int, k: int) -> tuple[Conversation, Scored]:
        """Runs a whole prompt from its start, and scores every token of it.

        Args:
            ids: the prompt.
            room: tokens that the state must have room for after it.
            k: how many likeliest tokens to return at each place, from 0.

        Returns:
            The conversation, as :meth:`open` has it, and the scores.

        Raises:
            ContextOverflowError: where the model's context is too small.
        """
        state = self._reserved(self._empty(len(ids) + room), len(ids) + room)
        parts = []
        for start in range(0, len(ids), _SEGMENT):
            segment = to_segment([ids[start : start + _SEGMENT]])
            if k:
                logprobs, top, state = forward_top(self._policy, segment, state, k=k)
            else:
                (logprobs, state), top = forward(self._policy, segment, state), None
            parts.append(Scored(logprobs, top))
        self._prefilled += len(ids)
        joined = jax.tree.map(lambda *x: np.concatenate(x, 1)[0, : len(ids)], *parts)
        ends = {len(ids): np.array(state.hidden)}
        return Conversation(ids, np.zeros(len(ids), bool), state, ends), joined

    def keep(self, conversation: Conversation, sampled: Int32[np.ndarray, " m"]) -> None:
        """Holds a conversation whose state has gone on by a sample.

        Conversations that are the start of it go, since it serves their prompts too.

        Args:
            conversation: the prompt, with the state after the sample.
            sampled: the ids of the sample, possibly none.
        """
        self._sampled += len(sampled)
        new = replace(
            conversation,
            ids=np.concatenate([conversation.ids, sampled]),
            sampled=np.concatenate([conversation.sampled, np.ones(len(sampled), bool)]),
        )
        match = self._held.find(new.ids)
        if match is not None and match.shared == len(new.ids):
            return
        for start in self._held.starts(new.ids):
            self._held.take(start)
        self._held.hold(new)

    def _run(self, known: Conversation, ids: Int32[np.ndarray, " n"]) -> Conversation:
        """Feed what a conversation lacks of a prompt."""
        state, start = known.state, len(known.ids)
        for place in range(start, len(ids), _SEGMENT):
            segment = to_segment([ids[place : place + _SEGMENT]])
            state = extend(self._policy, segment, state, donate=True)
        self._prefilled += len(ids) - start
        self._reused += start
        sampled = np.concatenate([known.sampled, np.zeros(len(ids) - start, bool)])
        ends = {**known.ends, len(ids): np.array(state.hidden)}
        return Conversation(ids, sampled, state, ends)

    def _empty(self, tokens: int) -> State:
        """A state of one row for so many tokens, or for the whole context where that is less."""
        context = -(-self._policy.config.context // BLOCK) * BLOCK
        return init_state(self._policy, 1, min(context, bucket(max(tokens, _CAPACITY))))

    def _reserved(self, state: State, tokens: int) -> State:
        """The state with room for so many more tokens."""
        return reserve(self._policy.config, state, tokens)


def _cut(conversation: Conversation, shared: int, wanted: int) -> Conversation:
    """A copy of a conversation's start: ``shared`` tokens, or one less where the last must be fed again."""
    end = conversation.ends.get(shared)
    length = shared if shared < wanted or end is not None else shared - 1
    state = truncate(take_rows(conversation.state, [0]), np.array([length], np.int32))
    if length == wanted:
        state = state.replace(hidden=jnp.asarray(end))
    ends = {size: hidden for size, hidden in conversation.ends.items() if size <= length}
    return Conversation(conversation.ids[:length], conversation.sampled[:length], state, ends)
