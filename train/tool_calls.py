"""Answering the tool calls of a message: whatever goes wrong is something that the policy reads."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from mintjax.train.environment import AssistantMessage, Step
from mintjax.train.tools import Tool
from mintjax.types import Message, ToolCall

CALLS = "tools/calls"
FAILURES = "tools/failures"


class _Answer(NamedTuple):
    """What a call came to."""

    text: str
    failed: bool


async def answer_calls(
    assistant: AssistantMessage, tools: Mapping[str, Tool], *, in_turn: bool = False
) -> Step:
    """Carries out the tool calls of a message.

    An unknown tool, arguments that do not fit and a tool that raises are texts for the policy to read, beginning with
    ``Error:``.

    Args:
        assistant: a message with ``tool_calls``.
        tools: by name.
        in_turn: whether each call waits for the one before it, as methods of one object should; otherwise they run side by
            side.

    Returns:
        A step with one tool message a call, in their order, and the metrics `CALLS` and `FAILURES`.

    Example:
        >>> step = await answer_calls(assistant, make_tools([add]))
        >>> [message["content"] for message in step.messages]
        ['3', "Error: there is no tool 'subtract'; there are: add"]
    """
    calls = assistant.get("tool_calls", [])
    cut = assistant["finish_reason"] == "length" and assistant.get("parse_error")
    if cut:  # inside a later call: chat formats have no place for answers to the earlier ones
        answers = [_Answer("", True)] * len(calls)
        messages = refusal(assistant, str(cut))
    else:
        if in_turn:
            answers = [await _answer(call, tools) for call in calls]
        else:
            answers = await asyncio.gather(*(_answer(call, tools) for call in calls))
        messages = [
            result_message(call, answer.text) for call, answer in zip(calls, answers, strict=True)
        ]
    failures = sum(answer.failed for answer in answers)
    metrics = {CALLS: float(len(calls)), FAILURES: float(failures)}
    return Step(messages, reward=None, done=False, metrics=metrics)


def refusal(assistant: AssistantMessage, error: str) -> list[Message]:
    """What the policy reads instead of an answer to a reply that cannot be carried out.

    Args:
        assistant: the reply.
        error: what is wrong with it.

    Returns:
        One tool message for each call that can be read; a user message where there is none, or where the reply was cut
        inside a call, which no tool message can follow.

    Example:
        >>> refusal({"role": "assistant", "content": "", "finish_reason": "stop"}, "the tool call is no JSON")
        [{'role': 'user', 'content': 'Error: the tool call is no JSON'}]
    """
    text = f"Error: {error}"
    calls = assistant.get("tool_calls")
    if not calls or (assistant["finish_reason"] == "length" and assistant.get("parse_error")):
        return [{"role": "user", "content": text}]
    return [result_message(call, f"{text}; this call was not carried out") for call in calls]


def result_message(call: ToolCall, text: str) -> Message:
    """What a call came to, as a message.

    Example:
        >>> result_message({"function": {"name": "add", "arguments": "{}"}}, "3")
        {'role': 'tool', 'content': '3', 'name': 'add'}
    """
    message: Message = {"role": "tool", "content": text, "name": call["function"]["name"]}
    if "id" in call:
        message["tool_call_id"] = call["id"]
    return message


async def _answer(call: ToolCall, tools: Mapping[str, Tool]) -> _Answer:
    """Carries out one call."""
    name = call["function"]["name"]
    if name not in tools:
        known = ", ".join(tools)
        return _Answer(f"Error: there is no tool {name!r}; there are: {known}", True)
    try:
        return _Answer(await tools[name].run(call["function"]["arguments"]), False)
    except Exception as error:
        return _Answer(f"Error: {type(error).__name__}: {error}", True)
