"""Messages, segments, turns and episodes: what every layer of mintjax passes to the next."""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np


class FunctionCall(TypedDict):
    """The function that a tool call names, and its arguments as a JSON text or as a dict."""

    name: str
    arguments: str | dict[str, Any]


class ToolCall(TypedDict):
    """One call that an assistant message makes (the OpenAI shape)."""

    type: NotRequired[Literal["function"]]
    id: NotRequired[str]
    function: FunctionCall


class Message(TypedDict):
    """One message of a conversation (the OpenAI shape).

    ``role`` is ``"system"``, ``"user"``, ``"assistant"`` or ``"tool"``; ``content`` is a text, a list of
    ``{"type": "text", "text": ...}`` parts, or None where the message only calls tools.
    """

    role: str
    content: str | list[dict[str, Any]] | None
    tool_calls: NotRequired[list[ToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    reasoning_content: NotRequired[str]


class Segment(NamedTuple):
    """A fixed-shape, right-padded piece of the token streams of B rows. A pytree: it goes into jit as it is.

    The arrays are numpy's or jax's.

    Attributes:
        tokens: int32 ``[B, S]``; what stands at or past a row's length is never read.
        length: int32 ``[B]``; how many tokens of each row are real, from 0 (the row does not move) to S.
    """

    tokens: Any
    length: Any


@dataclass(frozen=True)
class Turn:
    """What one turn added to an episode, token for token, and what came of it.

    The arrays are aligned: entry i is about ``tokens[i]``. A turn is the tokens that the renderer put there (the new
    messages, glue, the generation prompt) and, after them, the tokens that the policy sampled.

    Attributes:
        tokens: int32 ``[n]``.
        sampled: bool ``[n]``; true on the tokens that the policy emitted, the stop token included.
        logprobs: float32 ``[n]``; the sampler's log probability of each sampled token, nan on all others.
        temperature: the temperature those log probabilities are of.
        messages: the messages that were rendered for this turn, and the assistant's own at the end.
        reward: what the environment gave for this turn; None is "no reward", which is not 0.
        decode_stop: how sampling ended: ``"stop"``, ``"length"`` (max_tokens) or ``"overflow"`` (the conversation is full).
        metrics: the environment's own figures for this turn.
        anchor: the environment's name for the situation that the policy was in, None where it gave none.
        parse_error: why a tool call in the reply cannot be read, None where all can.
    """

    tokens: np.ndarray
    sampled: np.ndarray
    logprobs: np.ndarray
    temperature: float
    messages: tuple[Message, ...]
    reward: float | None
    decode_stop: Literal["stop", "length", "overflow"]
    metrics: dict[str, float]
    anchor: str | None = None
    parse_error: str | None = None


@dataclass(frozen=True)
class Episode:
    """One conversation between the policy and an environment, as it was sampled.

    Attributes:
        turns: in order; their tokens, joined, are the token stream that the policy saw.
        group: index of the task in its batch; episodes of one group started from the same prompt.
        member: index of this episode within its group.
        stop_reason: why it ended: the environment's word, the name of the limit that it reached, ``"overflow"``,
            ``"parse_error"`` or ``"error"``.
        error: what the environment did wrong, as text: where ``stop_reason`` is ``"error"`` or ``"step_timeout"``; else None.
        policy_version: ``policy.version`` of the policy that sampled it.
        seat: the player that the policy was, in a game of several; each of them has an episode of its own.
    """

    turns: tuple[Turn, ...]
    group: int
    member: int
    stop_reason: str
    error: str | None
    policy_version: int
    seat: int = 0

    @property
    def reward(self) -> float | None:
        """The sum of the turns' rewards; None where no turn has one."""
        rewards = [turn.reward for turn in self.turns if turn.reward is not None]
        return math.fsum(rewards) if rewards else None

    @property
    def tokens(self) -> np.ndarray:
        """The token stream of the whole episode, int32 ``[N]``."""
        return np.concatenate([np.zeros(0, np.int32), *(turn.tokens for turn in self.turns)])

    @property
    def sampled(self) -> np.ndarray:
        """True on the tokens that the policy emitted, bool ``[N]``."""
        return np.concatenate([np.zeros(0, bool), *(turn.sampled for turn in self.turns)])

    @property
    def logprobs(self) -> np.ndarray:
        """The sampler's log probabilities, float32 ``[N]``; nan on tokens that were not sampled."""
        return np.concatenate([np.zeros(0, np.float32), *(turn.logprobs for turn in self.turns)])
