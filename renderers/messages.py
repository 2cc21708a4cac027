"""Messages as a format gets them: checked, with their content as one text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mintjax.renderers.errors import RenderError

ROLES = ("system", "user", "assistant", "tool")
_KEYS = {"role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content"}


class Call(NamedTuple):
    """A tool call: the function's name, and its arguments as a JSON text or a dict."""

    name: str
    arguments: str | dict[str, Any]


class Spoken(NamedTuple):
    """A checked message: its number, its role, its content as one text, and the calls it makes."""

    number: int
    role: str
    content: str
    calls: tuple[Call, ...] = ()

    @property
    def where(self) -> str:
        """The message's name in errors."""
        return f"message {self.number} ({self.role})"


def check(message: Any, number: int) -> Spoken:
    """Checks one message, and joins its text parts.

    Content None is the empty text. ``name``, ``tool_call_id`` and ``reasoning_content`` are let
    through: whether they are written is the format's matter.

    Args:
        message: an OpenAI-shaped dict, see ``mintjax.types.Message``.
        number: the message's place in the conversation, from 0.

    Raises:
        RenderError: unknown role or key, a part that is not text, a malformed tool call.

    Example:
        >>> check({"role": "user", "content": [{"type": "text", "text": "hi"}]}, 0)
        Spoken(number=0, role='user', content='hi', calls=())
    """
    if not isinstance(message, Mapping):
        raise RenderError(
            f"message {number}: expected a dict with role and content, got {type(message).__name__}"
        )
    role = message.get("role")
    if role not in ROLES:
        raise RenderError(f"message {number}: role {role!r} is unknown; use {', '.join(ROLES)}")
    unknown = sorted(key for key in message if key not in _KEYS and message[key])
    if unknown:
        raise RenderError(
            f"message {number} ({role}): no format writes the key {unknown[0]!r}; remove it, or "
            "move its text into content"
        )
    calls = message.get("tool_calls") or ()
    if calls and role != "assistant":
        raise RenderError(
            f"message {number} ({role}): tool_calls belong to an assistant message; remove them"
        )
    where = f"message {number} ({role})"
    return Spoken(
        number,
        role,
        _text(message.get("content"), where),
        tuple(_call(call, where) for call in calls),
    )


def _text(content: Any, where: str) -> str:
    """The content as one text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RenderError(
            f"{where}: content must be a text, a list of text parts or None, got "
            f"{type(content).__name__}"
        )
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RenderError(
                f"{where}: a content part of type {kind!r} cannot be written in a text format; "
                'put {"type": "text", "text": ...} there'
            )
    return "".join(part["text"] for part in content)


def _call(call: Any, where: str) -> Call:
    """The name and arguments of an OpenAI-shaped tool call."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not isinstance(arguments, str | dict):
        raise RenderError(
            f'{where}: a tool call must be {{"function": {{"name": text, "arguments": JSON text or '
            f"dict}}}}, got {call!r}"
        )
    return Call(name, arguments)


def to_json(value: Any, where: str) -> str:
    """A value as chat templates write JSON: keys in their order, letters without escapes.

    Args:
        value: a dict, list, text, number, bool or None.
        where: what the value is, for errors.

    Raises:
        RenderError: where the value is no JSON.

    Example:
        >>> to_json({"city": "Zürich", "days": 2}, "tools[0]")
        '{"city": "Zürich", "days": 2}'
    """
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise RenderError(
            f"{where}: not JSON ({error}); give dicts, lists, texts and numbers"
        ) from None
