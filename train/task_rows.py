"""Rows of a data set as tasks: what they open a conversation with, and how a function scores what was said."""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mintjax.train.daemon_threads import call
from mintjax.train.environment import EnvironmentContractError
from mintjax.types import Message


def row_of(task: Any) -> dict[str, Any]:
    """A task as a row: a column by its name.

    Raises:
        EnvironmentContractError: where the task is no dict.

    Example:
        >>> row_of({"prompt": "1 + 1?", "answer": 2})["answer"]
        2
    """
    if not isinstance(task, Mapping):
        raise EnvironmentContractError(
            f"task: expected a row of a data set, a dict such as {{'prompt': '1 + 1?'}}, came {task!r}. Make tasks of dicts."
        )
    return dict(task)


def opening_of(row: Mapping[str, Any], more: str = "") -> list[Message]:
    """The messages that a row opens a conversation with.

    Args:
        row: its ``prompt`` is a text, or messages.
        more: text that is put after the last message's own.

    Raises:
        EnvironmentContractError: where there is nothing to read in the last message.

    Example:
        >>> opening_of({"prompt": "Guess. "}, "It has 3 letters.")
        [{'role': 'user', 'content': 'Guess. It has 3 letters.'}]
    """
    prompt = row.get("prompt", "")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        raise EnvironmentContractError(
            f"prompt: expected a text or a list of messages, came {prompt!r}. Write the column so."
        )
    copied: list[Any] = copy.deepcopy(messages)
    if copied and more:
        content = copied[-1].get("content") or ""
        addition: Any = more if isinstance(content, str) else [{"type": "text", "text": more}]
        copied[-1] = {**copied[-1], "content": content + addition}
    if not copied or not copied[-1].get("content"):
        raise EnvironmentContractError(
            "prompt: expected something for the policy to read, came an empty text. Give rows a column 'prompt', or let "
            "reset return a text."
        )
    return copied


def text_of(message: Message) -> str:
    """All text of a message.

    Example:
        >>> text_of({"role": "assistant", "content": [{"type": "text", "text": "hi"}]})
        'hi'
    """
    content = message["content"] or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


async def score(
    reward: Callable[..., Any], completion: str, row: Mapping[str, Any], **more: Any
) -> float | None:
    """Calls a reward function with the columns that it takes.

    Args:
        reward: ``reward(completion, **row)``, ``async`` or not. One without ``**`` gets the columns that it names.
        completion: what the policy said.
        row: the task.
        more: what else it may name.

    Returns:
        The reward; None is no reward.

    Raises:
        EnvironmentContractError: where it needs a column that the row does not have.

    Example:
        >>> await score(lambda completion, answer: float(completion == answer), "2", {"answer": "2"})
        1.0
    """
    values = {**row, **more}
    parameters = list(inspect.signature(reward).parameters.values())[1:]
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        missing = [
            one.name
            for one in parameters
            if one.default is inspect.Parameter.empty and one.name not in values
        ]
        if missing:
            raise EnvironmentContractError(
                f"reward {getattr(reward, '__name__', reward)!r}: expected a column {missing[0]!r} in the row, came "
                f"{', '.join(values) or 'none'}. Add it to the tasks, or give the parameter a default."
            )
        named = {one.name for one in parameters}
        values = {name: value for name, value in values.items() if name in named}
    return await call(reward, completion, **values)
