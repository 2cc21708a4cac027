"""The policy's side of a batch of conversations: caches that every turn extends by its new tokens and its reply."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int, Int32, Key

from mintjax.cache import State, bucket, fork, init_state, reserve, row_capacity, take_rows
from mintjax.decoding import DecodeParams, padded_stops
from mintjax.extension import extend
from mintjax.generation import generate
from mintjax.models.config import ModelConfig
from mintjax.policy import Policy
from mintjax.renderers import AnyRenderer, to_segment
from mintjax.train.config_rollout import longest_conversation
from mintjax.train.rollout_stats import RolloutStats


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How replies are sampled.

    Attributes:
        max_tokens: most tokens of one reply.
        temperature: 0 takes the likeliest token, for evaluations.
        top_k: sample among that many likeliest tokens; -1 is off.
        top_p: sample among the likeliest tokens that hold this probability; 1 is off.
        capacity: tokens of a conversation that the cache has room for from the start. It grows where that is too little,
            but every size it passes through is compiled for; 0 starts as small as the first turn allows.
        max_episode_tokens: most tokens of a conversation, both sides together; 0 is as many as the model's context has.
        prompts: different first turns that there are at most, as a rule. Conversations that begin alike are fed once, in
            as many rows; where there are more, in the next power of two, which is another program.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    capacity: int = 0
    max_episode_tokens: int = 0
    prompts: int = 0

    def most(self, config: ModelConfig) -> int:
        """Most tokens of a conversation with a model."""
        return longest_conversation(config.context, self.max_episode_tokens)


class Reply(NamedTuple):
    """What the policy said in one turn of one conversation.

    Attributes:
        ids: the sampled tokens, the stop token included.
        logprobs: their log probabilities, of the temperature-scaled distribution.
        stop: ``"stop"`` where the policy ended the reply, ``"length"`` where ``max_tokens`` did, ``"overflow"`` where the
            model's context or ``max_episode_tokens`` did.
    """

    ids: Int32[np.ndarray, " n"]
    logprobs: Float32[np.ndarray, " n"]
    stop: Literal["stop", "length", "overflow"]


class Sampler:
    """B conversations in one carried state; a row never sees its history again.

    Example:
        >>> sampler = Sampler(policy, get_renderer("smollm2", tokenizer), 2, Sampling(max_tokens=32))
        >>> first, second = sampler.turn([[1, 2, 3], []], keys)
        >>> second is None
        True
    """

    def __init__(
        self, policy: Policy, renderer: AnyRenderer, batch: int, sampling: Sampling, *, fan: int = 1
    ) -> None:
        """Start empty conversations.

        Args:
            policy: samples every token.
            renderer: bound to a tokenizer, says where replies end.
            batch: how many conversations.
            sampling: how replies are sampled.
            fan: conversations that stand next to each other and begin alike, as a rule. What they begin with is then held
                once for all of them, and read once for each token that they sample; 1 holds it in every row.
        """
        self._policy, self._renderer, self._sampling = policy, renderer, sampling
        self._wanted_fan = fan
        self._lengths = np.zeros(batch, np.int64)
        self._state: State | None = None
        self._prefilled = self._shared = self._sampled = self._growths = 0
        self._steps = self._calls = 0

    @property
    def stats(self) -> RolloutStats:
        """What the turns so far cost."""
        capacity, size = 0, 0
        if self._state is not None:
            capacity, size = row_capacity(self._state), self._state.cache_bytes
        return RolloutStats(
            self._prefilled, self._shared, self._sampled, self._growths, capacity, size,
            row_steps=self._steps * len(self._lengths), decode_calls=self._calls,
        )  # fmt: skip

    @property
    def state(self) -> State | None:
        """The cache of all conversations so far; None before the first turn. The next turn reuses its memory."""
        return self._state

    def room(self, row: int, news: Sequence[int]) -> int:
        """How many tokens the row can sample after ``news``; below 1 where a conversation does not hold them."""
        return self._sampling.most(self._policy.config) - int(self._lengths[row]) - len(news)

    def turn(self, news: Sequence[Sequence[int]], keys: Key[Array, " B"]) -> list[Reply | None]:
        """Feed every row its new tokens and sample its reply.

        Where the conversation has room for less than ``max_tokens``, that much is sampled, and a reply that fills it says so
        in ``stop``.

        Args:
            news: ids for each row, with `room`; a row that gets none does not move.
            keys: one typed key a row.

        Returns:
            The reply of each row, None where it did not move.

        Raises:
            ContextOverflowError: where ``news`` has no `room`.

        Example:
            >>> replies = sampler.turn([[1, 2, 3], [4]], keys)
        """
        fed = np.array([len(ids) for ids in news])
        room = np.array([self.room(row, ids) for row, ids in enumerate(news)])
        budget = np.where(fed > 0, np.minimum(room, self._sampling.max_tokens), 0)
        need = np.where(fed > 0, fed + np.maximum(budget, 1), 0)
        state = self._begin(news, need) if self._state is None else self._go_on(news, need)
        tokenizer = self._renderer.tokenizer
        generated = generate(
            self._policy,
            state,
            keys,
            decode_params(self._renderer, self._sampling, budget),
            buffer=state.capacity,  # room for any reply, whose program is then the same for every max_tokens
            stop_strings=self._renderer.stop_strings,
            decode_text=tokenizer.decode if tokenizer is not None else None,
            donate=True,
        )
        self._state = generated.state
        self._steps += generated.steps
        self._calls += 1
        replies: list[Reply | None] = [None] * len(news)
        for row in np.flatnonzero(budget):
            stop = named_stop(generated.stops[row], int(budget[row]), self._sampling)
            replies[row] = Reply(generated.tokens[row], generated.logprobs[row], stop)
        sampled = np.array([len(ids) for ids in generated.tokens])
        self._lengths += fed + sampled
        self._sampled += int(sampled.sum())
        return replies

    def _begin(self, news: Sequence[Sequence[int]], need: Int[np.ndarray, " B"]) -> State:
        """The state after the first turn's tokens; those that several conversations begin with are fed once."""
        config = self._policy.config
        places: dict[tuple[int, ...], int] = {}
        rows = [places.setdefault(tuple(ids), len(places)) for ids in news]
        distinct = list(places)
        capacity = min(bucket(max(int(need.max()), self._sampling.capacity)), config.context)
        # Another number of rows is another program: tasks that happen to be equal must not bring one.
        padded = self._sampling.prompts
        if len(distinct) > padded:
            padded = 1 << (len(distinct) - 1).bit_length()
        padded = min(padded, len(news))
        state = reserve(config, init_state(self._policy, padded, capacity), int(need.max()))
        segment = to_segment([*distinct, *[()] * (padded - len(distinct))])
        state = extend(self._policy, segment, state, donate=True)
        fed = sum(map(len, distinct))
        self._prefilled += fed
        self._shared += sum(map(len, news)) - fed
        if (fan := self._fan(news)) > 1:
            blocks = np.reshape(rows, (-1, fan))
            begun = np.array([len(ids) for ids in news])
            prefixes = blocks[np.arange(len(blocks)), begun.reshape(-1, fan).argmax(1)]
            room = self._sampling.capacity - int(begun[begun > 0].min())
            own = min(bucket(max(int((need - begun).max()), room)), capacity)
            return fork(take_rows(state, prefixes), fan, own)
        return state if len(distinct) == len(news) else take_rows(state, np.array(rows))

    def _fan(self, news: Sequence[Sequence[int]]) -> int:
        """As many as were promised to begin alike, where they do; those that have nothing to begin with go with any."""
        fan = self._wanted_fan
        blocks = [news[first : first + fan] for first in range(0, len(news), fan)]
        alike = all(len({tuple(ids) for ids in block if len(ids)}) < 2 for block in blocks)
        return fan if alike and len(news) % fan == 0 else 1

    def _go_on(self, news: Sequence[Sequence[int]], need: Int[np.ndarray, " B"]) -> State:
        """The state after another turn's tokens."""
        assert self._state is not None
        state = reserve(self._policy.config, self._state, need)
        self._growths += state.capacity > self._state.capacity
        self._prefilled += sum(map(len, news))
        return extend(self._policy, to_segment(news), state, donate=True)


def decode_params(
    renderer: AnyRenderer, sampling: Sampling, budget: Int[np.ndarray, " B"]
) -> DecodeParams:
    """The sampling as the decoder takes it.

    Args:
        renderer: says which tokens end a reply.
        sampling: how replies are sampled.
        budget: most tokens of each row's reply.

    Example:
        >>> decode_params(renderer, Sampling(max_tokens=8), np.array([8, 0])).max_tokens.tolist()
        [8, 0]
    """
    return DecodeParams(
        temperature=jnp.float32(sampling.temperature),
        top_k=jnp.int32(sampling.top_k),
        top_p=jnp.float32(sampling.top_p),
        stop_tokens=padded_stops(renderer.stop_tokens()),
        max_tokens=jnp.asarray(budget, jnp.int32),
    )


def named_stop(
    stop: Literal["stop", "length"], budget: int, sampling: Sampling
) -> Literal["stop", "length", "overflow"]:
    """How a reply ended, as `Reply` names it: one that is cut after less than ``max_tokens`` was cut by `Sampling.most`.

    Example:
        >>> named_stop("length", 5, Sampling(max_tokens=8))
        'overflow'
    """
    return "overflow" if stop == "length" and budget < sampling.max_tokens else stop
