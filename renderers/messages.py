"""Messages as a format gets them: checked, with their content as one text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mintjax.renderers.errors import RenderError
from mintjax.renderers.pieces import Piece

ROLES = ("system", "user", "assistant", "tool")
_KEYS = {"role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "trainable"}


class Call(NamedTuple):
    """A tool call: the function's name, its arguments as a JSON text or a dict, and the call's id.

    ``place`` is how many calls the conversation has made before it.
    """

    name: str
    arguments: str | dict[str, Any]
    id: str | None = None
    place: int = 0


class Spoken(NamedTuple):
    """A checked message, or one that a format puts there itself.

    Attributes:
        number: its place in the conversation, from 0; -1 for one that no caller gave.
        role: one of ``ROLES``.
        content: all of its text.
        calls: the calls an assistant makes.
        reasoning: an assistant's reasoning; None where there is none to write, and "" where it is
            empty or, in a generation prompt, yet to come.
        name: the ``name`` that the caller gave.
        call_id: the ``tool_call_id`` of a tool's message.
        answers: the call that a tool's message answers, where one is known.
        after: role of the message that is written before it; for ``Format.body`` only.
        stopped: whether its text came with the stop of the format, which is left out of ``content``.
        variant: a mark that ``Format.template`` leaves for ``Format.between`` and ``Format.body``.
        pieces: the body, where ``Format.opening`` has made it already.
    """

    number: int
    role: str
    content: str
    calls: tuple[Call, ...] = ()
    reasoning: str | None = None
    name: str | None = None
    call_id: str | None = None
    answers: Call | None = None
    after: str | None = None
    stopped: bool = False
    variant: str = ""
    pieces: tuple[Piece, ...] | None = None

    @property
    def where(self) -> str:
        """The message's name in errors."""
        return f"message {self.number} ({self.role})"


def check(message: Any, number: int) -> Spoken:
    """Checks one message, and joins its text parts.

    Content None is the empty text. Parts of type ``thinking`` are an assistant's reasoning, as
    ``reasoning_content`` is. ``name`` and ``tool_call_id`` are let through: whether they are written
    is the format's matter; ``trainable`` is read by supervised rendering alone.

    Args:
        message: an OpenAI-shaped dict, see ``mintjax.types.Message``.
        number: the message's place in the conversation, from 0.

    Raises:
        RenderError: unknown role or key, a part that is not text, a malformed tool call, reasoning
            of anybody but the assistant.

    Example:
        >>> check({"role": "user", "content": [{"type": "text", "text": "hi"}]}, 0).content
        'hi'
    """
    if not isinstance(message, Mapping):
        raise RenderError(
            f"message {number}: expected a dict with role and content, got {type(message).__name__}"
        )
    role = message.get("role")
    if role not in ROLES:
        raise RenderError(f"message {number}: role {role!r} is unknown; use {', '.join(ROLES)}")
    where = f"message {number} ({role})"
    unknown = sorted(key for key in message if key not in _KEYS and message[key])
    if unknown:
        raise RenderError(
            f"{where}: no format writes the key {unknown[0]!r}; remove it, or move its text into "
            "content"
        )
    calls = message.get("tool_calls") or ()
    content, thoughts = _texts(message.get("content"), where)
    reasoning = message.get("reasoning_content")
    if reasoning is not None and not isinstance(reasoning, str):
        raise RenderError(
            f"{where}: reasoning_content must be a text, got {type(reasoning).__name__}"
        )
    if thoughts:
        if reasoning:
            raise RenderError(
                f"{where}: reasoning stands in reasoning_content and in thinking parts; give one"
            )
        reasoning = "".join(thoughts)
    for key, value in (("tool_calls", calls), ("reasoning_content", reasoning)):
        if value and role != "assistant":
            raise RenderError(f"{where}: {key} belong to an assistant message; remove them")
    return Spoken(
        number,
        role,
        content,
        tuple(_call(call, where) for call in calls),
        reasoning,
        _optional_text(message, "name", where),
        _optional_text(message, "tool_call_id", where),
    )


def _texts(content: Any, where: str) -> tuple[str, list[str]]:
    """The content as one text, and the thinking parts in it."""
    if content is None:
        return "", []
    if isinstance(content, str):
        return content, []
    if not isinstance(content, Sequence):
        raise RenderError(
            f"{where}: content must be a text, a list of text parts or None, got "
            f"{type(content).__name__}"
        )
    found: dict[str, list[str]] = {"text": [], "thinking": []}
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind not in found or not isinstance(part.get(kind), str):
            raise RenderError(
                f"{where}: a content part of type {kind!r} cannot be written in a text format; "
                'put {"type": "text", "text": ...} there'
            )
        found[kind].append(part[kind])
    return "".join(found["text"]), found["thinking"]


def _call(call: Any, where: str) -> Call:
    """The name, arguments and id of an OpenAI-shaped tool call."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not isinstance(arguments, str | dict):
        raise RenderError(
            f'{where}: a tool call must be {{"function": {{"name": text, "arguments": JSON text or '
            f"dict}}}}, got {call!r}"
        )
    return Call(name, arguments, _optional_text(call, "id", where))


def _optional_text(mapping: Mapping[str, Any], key: str, where: str) -> str | None:
    """A text by its key, or None where there is none."""
    value = mapping.get(key)
    if value is not None and not isinstance(value, str):
        raise RenderError(f"{where}: {key} must be a text, got {type(value).__name__}")
    return value


def to_json(value: Any, where: str, **options: Any) -> str:
    """A value as chat templates write JSON: keys in their order, letters without escapes.

    Args:
        value: a dict, list, text, number, bool or None.
        where: what the value is, for errors.
        options: of ``json.dumps``, for formats that indent, compact or sort.

    Raises:
        RenderError: where the value is no JSON.

    Example:
        >>> to_json({"city": "Zürich", "days": 2}, "tools[0]")
        '{"city": "Zürich", "days": 2}'
    """
    try:
        return json.dumps(value, ensure_ascii=False, **options)
    except (TypeError, ValueError) as error:
        raise RenderError(
            f"{where}: not JSON ({error}); give dicts, lists, texts and numbers"
        ) from None


def arguments_text(call: Call, where: str) -> str:
    """A call's arguments as most templates write them: a text verbatim, a dict as JSON.

    Example:
        >>> arguments_text(Call("f", {"x": 1}), "message 1 (assistant)")
        '{"x": 1}'
    """
    if isinstance(call.arguments, str):
        return call.arguments
    return to_json(call.arguments, f"{where}: arguments of {call.name!r}")
