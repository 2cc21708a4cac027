"""What an environment promises, and the session that holds one to it.

An environment is any object with two methods:

    reset(task, seed) -> list[Message]      the messages that open the conversation
    step(assistant)   -> Step               what came of the policy's message: only *new* messages

Either may be ``async`` or not; a method that is not runs in a thread. Two members are optional: ``tools``, a sequence of
tool descriptions that the policy is shown, and ``close()``, called when the episode is over.
"""

import asyncio
import copy
import dataclasses
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from mintjax.types import Message


class EnvironmentContractError(ValueError):
    """An environment broke its contract: the text names the member, what it gave, and the cure."""


class AssistantMessage(Message):
    """The policy's message as ``step`` gets it: a `Message` that also says how sampling ended.

    ``finish_reason`` is OpenAI's word: ``"stop"`` where the policy ended its turn by itself, ``"length"`` where it was
    cut, by ``max_tokens`` or by the end of the model's context.
    """

    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True)
class Step:
    """What came of one assistant message.

    Attributes:
        messages: the new messages only, never the history. The policy does not see those of a step that is done.
        reward: what the turn earned; None is "no reward", which is not 0.
        done: whether the episode is over.
        stop_reason: why it is over, one short word; given exactly where ``done``.
        metrics: figures of this turn, averaged over the batch as ``env/<name>``.
        anchor: a name for the situation the policy was in; turns of a group that share it can be compared.
        info: anything else; mintjax does not read it.

    Raises:
        EnvironmentContractError: where the fields contradict each other or the reward is not a finite number.

    Example:
        >>> Step([{"role": "user", "content": "Higher."}], reward=0.5, done=False).stop_reason
    """

    messages: Sequence[Message]
    reward: float | None
    done: bool
    stop_reason: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    anchor: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a step that contradicts itself."""
        if self.done and not self.stop_reason:
            raise EnvironmentContractError(
                "Step.stop_reason: expected a word, since done is True; came "
                f"{self.stop_reason!r}. Name why the episode ended, as in stop_reason='solved'."
            )
        if not self.done and self.stop_reason is not None:
            raise EnvironmentContractError(
                f"Step.stop_reason: expected None, since done is False; came {self.stop_reason!r}. "
                "Set done=True, or leave stop_reason out."
            )
        if not self.done and not self.messages:
            raise EnvironmentContractError(
                "Step.messages: expected at least one new message, since done is False; came none. "
                "Say something to the policy, or set done=True."
            )
        if self.reward is not None and not math.isfinite(self.reward):
            raise EnvironmentContractError(
                f"Step.reward: expected a finite number or None; came {self.reward!r}. "
                "Use None where a turn has no reward."
            )


class Environment(Protocol):
    """The two methods that every environment has; the module's text says more.

    Example:
        >>> class Echo:
        ...     def reset(self, task, seed):
        ...         return [{"role": "user", "content": task}]
        ...     def step(self, assistant):
        ...         said = assistant["content"] == "yes"
        ...         return Step([], reward=float(said), done=True, stop_reason="answered")
    """

    def reset(self, task: Any, seed: int) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Start the episode of ``task``; the same ``task`` and ``seed`` give the same messages."""
        ...

    def step(self, assistant: AssistantMessage) -> Step | Awaitable[Step]:
        """Take the policy's message and say what came of it."""
        ...


class EnvironmentSession:
    """One episode with one environment: every method awaited, every promise checked.

    Messages are copied on the way in, so an environment that later edits its own lists changes no record.

    Example:
        >>> session = EnvironmentSession(Echo())
        >>> opening = await session.reset("Say yes.", seed=0)
        >>> step = await session.step({"role": "assistant", "content": "yes", "finish_reason": "stop"})
        >>> await session.close()
    """

    def __init__(self, environment: Environment) -> None:
        """Take an environment that no other session uses."""
        self._environment = environment
        self._opening: list[Message] = []

    @property
    def tools(self) -> Sequence[Any]:
        """The tool descriptions that the environment offers; empty where it offers none."""
        return tuple(getattr(self._environment, "tools", ()))

    async def reset(self, task: Any, seed: int) -> list[Message]:
        """Open the conversation.

        Args:
            task: what the environment is to set, in its own terms.
            seed: seed of all chance in the environment; the members of a group get the same one.

        Returns:
            The opening messages, at least one.

        Raises:
            EnvironmentContractError: where the environment returns something else.
            Exception: whatever the environment itself raises.
        """
        messages = await _call(self._environment.reset, task, seed)
        self._opening = _checked_messages(messages, "reset")
        if not self._opening:
            raise EnvironmentContractError(
                "reset: expected at least one message, came none. Return what opens the episode."
            )
        if self._opening[-1]["role"] == "assistant":
            raise EnvironmentContractError(
                "reset: expected a last message that the policy answers, came an assistant message. "
                "End with a user or tool message."
            )
        return list(self._opening)

    async def step(self, assistant: AssistantMessage) -> Step:
        """Hand the policy's message over.

        Args:
            assistant: the message, with its ``finish_reason``.

        Returns:
            The environment's step, its messages copied, its numbers Python's own.

        Raises:
            EnvironmentContractError: where it is no `Step`, or its messages repeat the history.
            Exception: whatever the environment itself raises.
        """
        step = await _call(self._environment.step, copy.deepcopy(assistant))
        if not isinstance(step, Step):
            raise EnvironmentContractError(
                f"step: expected a mintjax.train.environment.Step, came {type(step).__name__}. "
                "Return Step(messages, reward, done, stop_reason)."
            )
        messages = _checked_messages(step.messages, "step")
        self._refuse_history(messages)
        return dataclasses.replace(
            step,
            messages=messages,
            reward=None if step.reward is None else float(step.reward),
            metrics={name: float(value) for name, value in step.metrics.items()},
        )

    async def close(self) -> None:
        """Let the environment clean up, where it has a ``close``."""
        close = getattr(self._environment, "close", None)
        if close is not None:
            await _call(close)

    def _refuse_history(self, messages: list[Message]) -> None:
        """Refuse a step that returns the conversation so far, with or without the policy's part of it."""
        opens_again = len(messages) > len(self._opening) and (
            messages[: len(self._opening)] == self._opening
        )
        if opens_again or any(message["role"] == "assistant" for message in messages):
            raise EnvironmentContractError(
                "step: expected only new messages, came the history (it "
                + (
                    "starts with the opening messages"
                    if opens_again
                    else "has an assistant message"
                )
                + "). The conversation already holds what was said: return only what follows the "
                "policy's message."
            )


async def _call(method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method, in a thread unless it is a coroutine function, and await what is awaitable."""
    if inspect.iscoroutinefunction(method):
        return await method(*arguments)
    result = await asyncio.to_thread(method, *arguments)
    return await result if inspect.isawaitable(result) else result


def _checked_messages(messages: Any, member: str) -> list[Message]:
    """Copy a list of messages, or refuse what is not one."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise EnvironmentContractError(
            f"{member}: expected a list of messages, came {type(messages).__name__}. "
            "Return dicts such as {'role': 'user', 'content': 'Hello.'}."
        )
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or "role" not in message:
            raise EnvironmentContractError(
                f"{member}: expected message {number} to be a dict with a role, came {message!r}. "
                "Return dicts such as {'role': 'user', 'content': 'Hello.'}."
            )
    return copy.deepcopy(list(messages))
