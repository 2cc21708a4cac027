"""Conversations that come and go in the rows of one cache: the policy's side of a batch whose rows refill.

Every program has one shape for the whole run: the decoder runs all rows, a piece of a reply at a time; rows with news are
extended a few at a time; a prompt is run alone, and its cache copied into the row of each conversation that begins with it.
What is run for a conversation has shapes that its own tokens decide, so its neighbours change nothing of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Int32, Key

from mintjax.cache import (
    ContextOverflowError,
    State,
    bucket,
    grow,
    init_state,
    take_rows,
    truncate,
)
from mintjax.extension import extend
from mintjax.generation import Draft, draw
from mintjax.held_caches import HeldCaches
from mintjax.policy import Policy
from mintjax.renderers import AnyRenderer, to_segment
from mintjax.renderers.segments import bucket as segment_size
from mintjax.row_extension import extend_rows, put_row
from mintjax.train.rollout_stats import RolloutStats
from mintjax.train.sampler import Reply, Sampling, decode_params, named_stop

_PIECE = 16  # tokens that are sampled between two looks at the environments
_EDGE = 128  # prompts run in pieces of so many tokens, and share whole pieces: others would round otherwise
_SEGMENT = 512  # longer news run in pieces


@dataclass(frozen=True, eq=False)
class Prompt:
    """What a conversation begins with, and its cache.

    Attributes:
        ids: its tokens.
        state: one row, of exactly these tokens.
    """

    ids: Int32[np.ndarray, " n"]
    state: State

    @property
    def bytes(self) -> int:
        """Memory of the cache."""
        return self.state.cache_bytes


class RowPool:
    """Rows of one carried state, each with a conversation of its own; a row never sees its history again.

    Attributes:
        few: rows that are extended together; and how many replies may end before the decoder returns, so that few wait.

    Example:
        >>> pool = RowPool(policy, get_renderer("smollm2", tokenizer), 8, Sampling(max_tokens=32), prefixes=3)
        >>> pool.begin(0, [1, 2, 3])
        >>> while not (ended := pool.draw(keys)):
        ...     pass
        >>> pool.reply(0).ids
    """

    def __init__(
        self, policy: Policy, renderer: AnyRenderer, rows: int, sampling: Sampling, *, prefixes: int
    ) -> None:
        """Start without a conversation.

        Args:
            policy: samples every token.
            renderer: bound to a tokenizer, says where replies end.
            rows: how many conversations there are at a time.
            sampling: how replies are sampled.
            prefixes: prompts whose caches are held, as many as fit into the memory of so many rows.
        """
        self._policy, self._renderer, self._sampling = policy, renderer, sampling
        self.few = max(1, rows // 8)
        self._prefixes = prefixes
        self._state: State | None = None
        self._held: HeldCaches[Prompt] = HeldCaches(0)
        self._lengths = np.zeros(rows, np.int64)
        self._budgets = np.zeros(rows, np.int64)
        self._drafts = [Draft(0) for _ in range(rows)]
        self._prompts: list[Prompt | None] = [None] * rows
        self._stats = RolloutStats(0, 0, 0, 0, 0, 0)

    @property
    def stats(self) -> RolloutStats:
        """What was done so far; how much is held outside of the rows is told by who holds it."""
        if self._state is None:
            return self._stats
        return self._stats._replace(
            capacity=self._state.capacity,
            cache_bytes=self._state.cache_bytes,
            prefix_evictions=self._held.evicted,
        )

    @property
    def prompt_bytes(self) -> int:
        """What the caches of prompts take now."""
        return self._held.bytes

    @property
    def live(self) -> int:
        """Rows whose reply goes on."""
        return sum(draft.left > 0 for draft in self._drafts)

    def room(self, row: int | None, news: Sequence[int]) -> int:
        """How many tokens a row, or a new conversation, can sample after ``news``; below 1 where it does not hold them."""
        held = 0 if row is None else int(self._lengths[row])
        return self._sampling.most(self._policy.config) - held - len(news)

    def begin(self, row: int, ids: Sequence[int]) -> None:
        """Begins a conversation in a row, in the place of the one that was there, and its first reply.

        Args:
            row: which; its reply has ended.
            ids: the prompt, with `room`.

        Raises:
            ContextOverflowError: where ``ids`` has no `room`.

        Example:
            >>> pool.begin(3, prompt)
        """
        refilled = self._prompts[row] is not None
        self._lengths[row] = 0
        state = self._with_room({row: ids})
        prompt = self._prompt(np.asarray(ids, np.int32), state.capacity)
        self._state = put_row(state, np.int32(row), prompt.state)
        self._prompts[row] = prompt
        self._stats = self._stats._replace(refills=self._stats.refills + refilled)
        self._expect({row: ids})

    def feed(self, news: Mapping[int, Sequence[int]]) -> None:
        """Extends some rows' conversations, and begins their next replies.

        Args:
            news: ids by row, with `room`.

        Raises:
            ContextOverflowError: where some have no `room`.

        Example:
            >>> pool.feed({3: news})
        """
        state = self._with_room(news)
        left = {row: np.asarray(ids, np.int32) for row, ids in news.items()}
        while left:
            by_size: dict[int, list[int]] = {}
            for row, ids in left.items():
                by_size.setdefault(segment_size(min(len(ids), _SEGMENT)), []).append(row)
            for size, rows in by_size.items():
                for first in range(0, len(rows), self.few):
                    state = self._extend(state, rows[first : first + self.few], left, size)
            left = {row: ids[_SEGMENT:] for row, ids in left.items() if len(ids) > _SEGMENT}
        self._state = state
        fed = sum(map(len, news.values()))
        self._stats = self._stats._replace(prefilled_tokens=self._stats.prefilled_tokens + fed)
        self._expect(news)

    def draw(self, keys: Key[Array, " B"]) -> list[int]:
        """Samples another piece of all replies that go on.

        Args:
            keys: one typed key a row, the same until its reply has ended.

        Returns:
            The rows whose reply has ended in this piece.

        Example:
            >>> for row in pool.draw(keys):
            ...     print(pool.reply(row).stop)
        """
        assert self._state is not None  # a reply goes on
        live = [row for row, draft in enumerate(self._drafts) if draft.left]
        before = sum(len(draft.tokens) for draft in self._drafts)
        tokenizer = self._renderer.tokenizer
        steps, self._state = draw(
            self._policy,
            self._state,
            keys,
            decode_params(self._renderer, self._sampling, self._budgets),
            self._drafts,
            buffer=_PIECE,
            least=max(1, len(live) - self.few + 1),
            stop_strings=self._renderer.stop_strings,
            decode_text=tokenizer.decode if tokenizer is not None else None,
            donate=True,
        )
        sampled = sum(len(draft.tokens) for draft in self._drafts) - before
        stats = self._stats
        self._stats = stats._replace(
            sampled_tokens=stats.sampled_tokens + sampled,
            row_steps=stats.row_steps + steps * len(self._drafts),
            decode_calls=stats.decode_calls + 1,
        )
        ended = [row for row in live if not self._drafts[row].left]
        for row in ended:
            self._lengths[row] += len(self._drafts[row].tokens)
        return ended

    def reply(self, row: int) -> Reply:
        """The reply of a row that has ended."""
        draft = self._drafts[row]
        stop = named_stop(draft.stop, int(self._budgets[row]), self._sampling)
        return Reply(
            np.asarray(draft.tokens, np.int32), np.asarray(draft.logprobs, np.float32), stop
        )

    def copy_out(self, row: int) -> tuple[State, Prompt]:
        """A copy of a row's cache, as a state of one row, and the prompt that it begins with."""
        prompt = self._prompts[row]
        assert self._state is not None and prompt is not None  # a conversation has begun there
        return take_rows(self._state, [row]), prompt

    def empty(self) -> State:
        """A state of one row that holds nothing, of the rows' capacity."""
        assert self._state is not None  # a conversation has begun
        return init_state(self._policy, 1, self._state.capacity)

    def _expect(self, news: Mapping[int, Sequence[int]]) -> None:
        """A reply after each row's news."""
        for row, ids in news.items():
            self._budgets[row] = min(self.room(row, ids), self._sampling.max_tokens)
            self._lengths[row] += len(ids)
            self._drafts[row] = Draft(int(self._budgets[row]))

    def _with_room(self, news: Mapping[int, Sequence[int]]) -> State:
        """The rows' state with room for what some get and for their replies."""
        config, most, need = self._policy.config, self._sampling.max_tokens, 0
        for row, ids in news.items():
            if (room := self.room(row, ids)) < 1:
                raise ContextOverflowError(
                    f"a conversation has at most {self._sampling.most(config)} tokens (the context of {config.name}, or "
                    f"rollout.max_episode_tokens); row {row} holds {self._lengths[row]}, and "
                    f"{len(ids)} more leave none to sample. Ask for `room` first"
                )
            need = max(need, int(self._lengths[row]) + len(ids) + min(room, most))
        if self._state is None:
            wanted = bucket(max(need, self._sampling.capacity))
            state = init_state(self._policy, len(self._drafts), min(wanted, config.context))
        elif need > self._state.capacity:
            state = grow(self._state, min(bucket(need), config.context))
            growths = self._stats.cache_growths + 1
            self._stats = self._stats._replace(cache_growths=growths)
        else:
            return self._state
        self._held.limit = self._prefixes * state.cache_bytes // len(self._drafts)
        return state

    def _extend(
        self, state: State, rows: list[int], news: Mapping[int, np.ndarray], size: int
    ) -> State:
        """The state after a piece of some rows' news."""
        none = self.few - len(rows)
        segment = to_segment([*(news[row][:_SEGMENT] for row in rows), *[()] * none], size)
        places = np.array([*rows, *[len(self._drafts)] * none], np.int32)
        return extend_rows(self._policy, segment, state, places)

    def _prompt(self, ids: Int32[np.ndarray, " n"], capacity: int) -> Prompt:
        """A prompt with its cache, of which only what no other prompt began with is run."""
        found, start = self._held.find(ids), 0
        if found is not None:
            whole = found.shared == len(ids) == len(found.value.ids)
            # The last token must be run: its hidden state is kept of whole prompts alone.
            start = len(ids) if whole else min(found.shared, len(ids) - 1) // _EDGE * _EDGE
        stats = self._stats
        self._stats = stats._replace(
            prefilled_tokens=stats.prefilled_tokens + len(ids) - start,
            shared_tokens=stats.shared_tokens + start,
            prefix_hits=stats.prefix_hits + (start > 0),
        )
        if found is not None and start:
            prompt = found.value
            if prompt.state.capacity < capacity:
                prompt = Prompt(prompt.ids, grow(prompt.state, capacity))
            if start == len(ids):
                return prompt
            state = truncate(take_rows(prompt.state, [0]), np.array([start], np.int32))
        else:
            state = init_state(self._policy, 1, capacity)
        for place in range(start, len(ids), _EDGE):
            segment = to_segment([ids[place : place + _EDGE]])
            state = extend(self._policy, segment, state, donate=True)
        prompt = Prompt(ids, state)
        self._held.hold(prompt)
        return prompt
