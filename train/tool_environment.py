"""An environment with tools: calls are answered by functions, everything else by the environment itself."""

from collections.abc import Callable, Sequence
from typing import Any

from mintjax.train.daemon_threads import call
from mintjax.train.environment import AssistantMessage, Environment, Step, Waiting
from mintjax.train.tool_calls import answer_calls
from mintjax.train.tools import make_tools
from mintjax.types import Message


class ToolEnvironment:
    """Lets the policy call functions before it answers an environment.

    A message with tool calls gets one tool message a call, and the environment does not see it. A message without is the
    environment's to answer. Plain functions of one message run side by side, each in a thread; where they share something
    that must not be used from two threads at once, make them ``async``.

    Example:
        >>> environment = ToolEnvironment(CountDown(), [add])
        >>> environment.tools[0]["function"]["name"]
        'add'
    """

    def __init__(self, environment: Environment, tools: Sequence[Callable[..., Any]]) -> None:
        """Takes an environment that has no tools of its own.

        Args:
            environment: gets every message without tool calls.
            tools: typed functions with docstrings, see :func:`mintjax.train.tools.make_tool`.

        Raises:
            ToolSchemaError: where a function cannot be described.
            ValueError: where the environment offers tools itself.
        """
        if getattr(environment, "tools", ()):
            raise ValueError(
                f"environment: expected one without tools, came {type(environment).__name__}, whose own step answers its "
                "tool calls. Give all functions to one ToolEnvironment."
            )
        self._environment = environment
        self._tools = make_tools(tools)
        self.tools = [tool.schema for tool in self._tools.values()]

    async def reset(self, task: Any, seed: int) -> Sequence[Message] | Waiting:
        """Opens the environment's conversation."""
        return await call(self._environment.reset, task, seed)

    async def step(self, assistant: AssistantMessage) -> Step | Waiting:
        """Carries out the tool calls of a message, or hands it to the environment where it has none.

        Args:
            assistant: the policy's message.

        Returns:
            The results, without a reward; or the environment's own step.
        """
        if assistant.get("tool_calls"):
            return await answer_calls(assistant, self._tools)
        return await call(self._environment.step, assistant)

    async def close(self) -> None:
        """Closes the environment, where it has a ``close``."""
        close = getattr(self._environment, "close", None)
        if close is not None:
            await call(close)
