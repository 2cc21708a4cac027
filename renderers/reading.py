"""What a sampled reply says: its text, its reasoning, and every attempt at a tool call."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from mintjax.renderers.tokenizer import Tokenizer
from mintjax.types import ToolCall

Status = Literal["ok", "malformed", "unclosed", "unknown_tool"]


class Attempt(NamedTuple):
    """One attempt at a tool call.

    Attributes:
        status: whether it can be carried out; ``"unclosed"`` where the reply was cut off inside,
            ``"unknown_tool"`` where the tools that were declared do not have it.
        span: first token, and one past the last, in the reply's ids.
        text: what was said there, control tokens by name.
        call: the call, where it could be read.
        error: what is wrong with it; "" where nothing is.
    """

    status: Status
    span: tuple[int, int]
    text: str
    call: ToolCall | None = None
    error: str = ""


class Reading(NamedTuple):
    """What a reply says.

    Attributes:
        content: its text; an attempt that cannot be read stays in it, as it was said.
        reasoning: the text of its reasoning; None where it has none.
        attempts: at tool calls, in order.
    """

    content: str
    reasoning: str | None = None
    attempts: tuple[Attempt, ...] = ()


class Part(NamedTuple):
    """A run of ordinary tokens, or one control token.

    Attributes:
        control: the control token's name; None for a run.
        span: first token, and one past the last, in the reply's ids.
        text: the run decoded, or the control token's name.
    """

    control: str | None
    span: tuple[int, int]
    text: str


def parts(body: np.ndarray, tokenizer: Tokenizer, controls: tuple[str, ...]) -> list[Part]:
    """Cuts a reply at its control tokens. Text that spells one is text.

    Args:
        body: int32 ``[n]``.
        tokenizer: the vocabulary.
        controls: names of the tokens to cut at.

    Example:
        >>> [part.text for part in parts(ids, view, ("<think>", "</think>"))]
        ['<think>', 'Hm.', '</think>', 'Hello']
    """
    names = {tokenizer.control[name]: name for name in controls if name in tokenizer.control}
    found: list[Part] = []
    start = 0
    for place in [*np.flatnonzero(np.isin(body, list(names))).tolist(), len(body)]:
        if place > start:
            found.append(Part(None, (start, place), tokenizer.decode(body[start:place])))
        if place < len(body):
            name = names[int(body[place])]
            found.append(Part(name, (place, place + 1), name))
        start = place + 1
    return found


def _json_call(inside: Sequence[Part]) -> ToolCall:
    """The call that a JSON object makes."""
    return read_json_call("".join(part.text for part in inside))


def read_calls(
    found: Sequence[Part], read: Callable[[Sequence[Part]], ToolCall] = _json_call
) -> Reading:
    """The text of a reply, and the calls between its ``<tool_call>`` tokens.

    Args:
        found: the reply, cut at these tokens at least.
        read: the call that parts between them make; raises ValueError where they make none. By
            default they are the JSON that ``read_json_call`` reads.

    Example:
        >>> read_calls(parts(ids, view, ("<tool_call>", "</tool_call>"))).content
        'Let me see.'
    """
    content, before, attempts, found = "", "", [], list(found)
    while found:
        part = found.pop(0)
        if part.control != "<tool_call>":
            before += part.text
            continue
        inside: list[Part] = []
        while found and found[0].control != "</tool_call>":
            inside.append(found.pop(0))
        closed = bool(found)
        whole = [part, *inside, *([found.pop(0)] if closed else [])]
        attempt = Attempt(
            "malformed" if closed else "unclosed",
            (part.span[0], whole[-1].span[1]),
            "".join(one.text for one in whole),
            error="the tool call is not closed",
        )
        if closed:
            try:
                attempt = attempt._replace(status="ok", call=read(inside), error="")
            except ValueError as error:
                attempt = attempt._replace(error=str(error))
        # The newline before a call is the format's, not part of what was said.
        content += before.removesuffix("\n") if attempt.call else before + attempt.text
        before = ""
        attempts.append(attempt)
    return Reading(content + before, None, tuple(attempts))


def read_json_call(text: str, *, arguments: str = "arguments") -> ToolCall:
    """The call that a JSON object ``{"name": ..., "arguments": {...}}`` makes.

    Args:
        text: the object.
        arguments: the key that the arguments stand under.

    Raises:
        ValueError: saying what the text lacks.

    Example:
        >>> read_json_call('{"name": "f", "arguments": {"x": 1}}')["function"]["name"]
        'f'
    """
    call: Any = load_json(text)
    name = call.get("name") if isinstance(call, dict) else None
    given = call.get(arguments) if isinstance(call, dict) else None
    if not isinstance(name, str) or not isinstance(given, dict):
        raise ValueError(f"the tool call is no object with a name and an object of {arguments}")
    return make_call(name, dump_json(given))


def load_json(text: str) -> Any:
    """Reads JSON that a policy wrote; ValueError where it is none, too deep or too large."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # brackets may nest without end
        raise ValueError(f"the tool call is no JSON: {error}") from None


def dump_json(value: Any) -> str:
    """Writes what ``load_json`` read; ValueError where it holds what JSON has no form for."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError as error:
        raise ValueError(f"the tool call is no JSON: {error}") from None


def make_call(name: str, arguments: str, call_id: str | None = None) -> ToolCall:
    """A tool call from what a reply says; ValueError where its text has no UTF-8 form."""
    (name + arguments + (call_id or "")).encode()  # an escape may make half of a surrogate pair
    call: ToolCall = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if call_id is not None:
        call["id"] = call_id
    return call
