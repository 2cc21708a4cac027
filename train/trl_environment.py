"""TRL's environment classes as they are: public methods are tools, ``reset`` takes a row, ``get_reward`` ends it.

The contract is that of ``GRPOTrainer(environment_factory=...)`` in TRL 1.16. An instance is made once and reset often.
"""

import inspect
from collections.abc import Callable
from typing import Any

from mintjax.train.daemon_threads import call
from mintjax.train.environment import AssistantMessage, EnvironmentContractError, Step
from mintjax.train.task_rows import opening_of, row_of, score, text_of
from mintjax.train.tool_calls import answer_calls
from mintjax.train.tools import make_tools
from mintjax.types import Message

_NO_TOOLS = ("reset", "get_reward")


class TrlEnvironment:
    """An instance of a TRL environment class as an environment.

    A message with tool calls is answered by the methods, one after the other. One without ends the episode with
    ``"answered"`` and the reward. An episode that a limit ends has no reward.

    Example:
        >>> environment = TrlEnvironment(Counter())
        >>> await environment.reset({"prompt": "Count to three."}, seed=0)
        [{'role': 'user', 'content': 'Count to three.'}]
    """

    def __init__(
        self,
        instance: Any,
        *,
        reward: Callable[..., Any] | None = None,
        release: Callable[[Any], None] | None = None,
    ) -> None:
        """Takes an instance that no other episode uses.

        Args:
            instance: of a class with ``reset(**row)``.
            reward: ``reward(completion, **row)`` for a class without ``get_reward``; where it names ``environment``, it gets
                the instance.
            release: gets the instance when the episode is over, if it is fit for another: no call of it has failed or is
                still running.

        Raises:
            ToolSchemaError: where a public method cannot be described.
            EnvironmentContractError: where nothing gives a reward, or two things do.
        """
        name = type(instance).__name__
        if (reward is None) != hasattr(instance, "get_reward"):
            raise EnvironmentContractError(
                f"{name}.get_reward: expected this method or a reward function, came "
                + ("both. Give one." if reward else "neither. Define it, or pass reward=.")
            )
        self._instance, self._reward, self._release = instance, reward, release
        self._tools = make_tools([getattr(instance, tool) for tool in tool_names(type(instance))])
        self.tools = [tool.schema for tool in self._tools.values()]
        self._row: dict[str, Any] = {}
        self._sound = True

    async def reset(self, task: Any, seed: int) -> list[Message]:
        """Resets the instance; a text that it returns is put after the prompt.

        Args:
            task: a row; None is one without columns.
            seed: not used: TRL's classes have no place for it. What is to be repeatable takes it from a column.
        """
        self._row = row_of({} if task is None else task)
        self._sound = False
        said = await call(self._instance.reset, **self._row)
        self._sound = True
        if said is not None and not isinstance(said, str):
            raise EnvironmentContractError(
                f"{type(self._instance).__name__}.reset: expected a text or None, came {type(said).__name__}. Return what is "
                "put after the prompt."
            )
        return opening_of(self._row, said or "")

    async def step(self, assistant: AssistantMessage) -> Step:
        """Carries out the calls of a message, or ends the episode where it has none."""
        self._sound = False
        if assistant.get("tool_calls"):
            step = await answer_calls(assistant, self._tools, in_turn=True)
        else:
            if self._reward is None:
                reward = await call(self._instance.get_reward)
            else:
                reward = await score(
                    self._reward, text_of(assistant), self._row, environment=self._instance
                )
            step = Step([], reward, done=True, stop_reason="answered")
        self._sound = True
        return step

    async def close(self) -> None:
        """Gives the instance back."""
        if self._sound and self._release is not None:
            self._release(self._instance)


def tool_names(kind: type) -> list[str]:
    """The methods of a TRL environment class that are tools: all public ones but ``reset`` and ``get_reward``.

    Example:
        >>> tool_names(Counter)
        ['increase']
    """
    members = inspect.getmembers(kind, predicate=inspect.isfunction)
    return [name for name, _ in members if name not in _NO_TOOLS and not name.startswith("_")]
