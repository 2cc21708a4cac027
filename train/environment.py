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
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, Protocol

from mintjax.train.daemon_threads import call
from mintjax.train.history import repeated
from mintjax.train.tool_schema import check_schemas
from mintjax.types import Message


class EnvironmentContractError(ValueError):
    """An environment broke its contract: the text names the member, what it gave, and the cure."""


class AssistantMessage(Message):
    """The policy's message as ``step`` gets it: a `Message` that also says how sampling ended.

    ``finish_reason`` is OpenAI's word: ``"stop"`` where the policy ended its turn by itself, ``"length"`` where it was
    cut, by ``max_tokens`` or because the conversation is full. ``parse_error`` is there where the reply holds a tool call
    that cannot be read, and says why; the call's text is in the content.
    """

    finish_reason: Literal["stop", "length"]
    parse_error: NotRequired[str]


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
        check_reward(self.reward, "Step.reward")


@dataclass(frozen=True)
class Waiting:
    """What ``reset`` or ``step`` returns where the answer depends on another episode of the same batch.

    The others go on meanwhile, and the policy is asked nothing in this one until the answer is there.

    Attributes:
        answer: becomes the `Step`. For a ``reset``, its messages open the conversation; one that is done ends the episode
            before its first turn. An exception as its result is what the environment raises.

    Example:
        >>> Waiting(asyncio.get_running_loop().create_future()).answer.done()
        False
    """

    answer: asyncio.Future[Step | Exception]


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

    def reset(
        self, task: Any, seed: int
    ) -> Sequence[Message] | Waiting | Awaitable[Sequence[Message] | Waiting]:
        """Start the episode of ``task``; the same ``task`` and ``seed`` give the same messages."""
        ...

    def step(
        self, assistant: AssistantMessage
    ) -> Step | Waiting | Awaitable[Step] | Awaitable[Step | Waiting]:
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
        self._said: list[Message] = []  # by the environment
        self._given: list[Any] = []  # the very objects, as the environment gave them
        self._opening = 0

    @property
    def tools(self) -> Sequence[Any]:
        """The tool descriptions that the environment offers; empty where it offers none."""
        return tuple(getattr(self._environment, "tools", ()))

    async def reset(self, task: Any, seed: int) -> list[Message] | Waiting:
        """Open the conversation.

        Args:
            task: what the environment is to set, in its own terms.
            seed: seed of all chance in the environment; the members of a group get the same one.

        Returns:
            The opening messages, at least one; or that another episode comes first, see `arrived`.

        Raises:
            EnvironmentContractError: where the environment returns something else.
            ToolSchemaError: where it offers a tool that cannot be described to the policy.
            Exception: whatever the environment itself raises.
        """
        messages = await call(self._environment.reset, task, seed)
        check_schemas(self.tools)
        return messages if isinstance(messages, Waiting) else self._open(messages)

    async def step(self, assistant: AssistantMessage) -> Step | Waiting:
        """Hand the policy's message over.

        Args:
            assistant: the message, with its ``finish_reason``.

        Returns:
            The environment's step, its messages copied, its numbers Python's own; or that another episode comes first, see
            `arrived`.

        Raises:
            EnvironmentContractError: where it is no `Step`, or its messages repeat the history.
            Exception: whatever the environment itself raises.
        """
        step = await call(self._environment.step, copy.deepcopy(assistant))
        return step if isinstance(step, Waiting) else self._checked(step)

    def arrived(self, waiting: Waiting) -> Step:
        """What became of a `Waiting` whose answer is there, checked as `reset` and `step` check theirs.

        Raises:
            EnvironmentContractError: as they do.
            Exception: whatever the environment itself raised.
        """
        step = waiting.answer.result()
        if isinstance(step, Exception):
            raise step
        if self._opening or not isinstance(step, Step) or step.done:
            return self._checked(step)
        return dataclasses.replace(step, messages=self._open(step.messages))

    async def close(self) -> None:
        """Let the environment clean up, where it has a ``close``."""
        close = getattr(self._environment, "close", None)
        if close is not None:
            await call(close)

    def _open(self, given: Any) -> list[Message]:
        """The messages that open the conversation, copied, or an error that says why they cannot."""
        messages = _checked_messages(given, "reset")
        if not messages:
            raise EnvironmentContractError(
                "reset: expected at least one message, came none. Return what opens the episode."
            )
        if messages[-1]["role"] == "assistant":
            raise EnvironmentContractError(
                "reset: expected a last message that the policy answers, came an assistant message. "
                "End with a user or tool message."
            )
        self._opening = len(messages)
        self._remember(messages, given)
        return messages

    def _checked(self, step: Any) -> Step:
        """A step whose messages are new, copied."""
        if not isinstance(step, Step):
            raise EnvironmentContractError(
                f"step: expected a mintjax.train.environment.Step, came {type(step).__name__}. "
                "Return Step(messages, reward, done, stop_reason)."
            )
        messages = _checked_messages(step.messages, "step")
        history = repeated(messages, step.messages, self._said, self._given, self._opening)
        if history:
            raise EnvironmentContractError(
                f"step: expected only new messages, came the history ({history}). The conversation "
                "already holds what was said, and what the policy has read stays as it was: return "
                "only what follows the policy's message."
            )
        self._remember(messages, step.messages)
        return dataclasses.replace(
            step,
            messages=messages,
            reward=None if step.reward is None else float(step.reward),
            metrics={
                name: _number(value, f"Step.metrics[{name!r}]")
                for name, value in step.metrics.items()
            },
        )

    def _remember(self, messages: Sequence[Message], given: Sequence[Any]) -> None:
        """Keep what was said, to know it again."""
        self._said += copy.deepcopy(messages)
        self._given += given


def check_reward(reward: Any, field: str) -> None:
    """Refuse what is neither a finite number nor None.

    Args:
        reward: what an environment gave.
        field: where, for the error.

    Raises:
        EnvironmentContractError: where it is something else.

    Example:
        >>> check_reward(0.5, "Step.reward")
    """
    if reward is not None and not math.isfinite(_number(reward, field)):
        raise EnvironmentContractError(
            f"{field}: expected a finite number or None; came {reward!r}. "
            "Use None where a turn has no reward."
        )


def _number(value: Any, field: str) -> float:
    """A number as Python's own, or an error that names the field."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise EnvironmentContractError(
            f"{field}: expected a number, came {value!r}. Compute one, or leave it out."
        ) from None


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
