"""Tools that stand in a conversation's first message, instead of beside the conversation."""

from collections.abc import Mapping, Sequence
from typing import Any

from mintjax.renderers.errors import RenderError
from mintjax.renderers.format import Tools

KEY = "tools"


def declaring(tools: Tools, system_prompt: str) -> dict[str, Any]:
    """A message that declares tools; a conversation that starts with it needs no ``tools=``.

    Args:
        tools: JSON schemas.
        system_prompt: the text of the system message; where it is empty there is none.

    Example:
        >>> renderer.render([declaring([tool], ""), user])  # as renderer.render([user], tools=[tool])
    """
    return {"role": "system", "content": system_prompt or None, KEY: list(tools)}


def declared(
    messages: Sequence[Any], tools: Tools | None
) -> tuple[list[tuple[int, Any]], Tools | None]:
    """The messages that are written, each with its number, and the tools that are declared.

    Args:
        messages: a whole conversation; the first may be one of ``declaring``.
        tools: those given beside it.

    Raises:
        RenderError: where tools are declared in both places, by a message of another role, or by one
            that nothing follows.

    Example:
        >>> declared([declaring([tool], ""), user], None)
        ([(1, user)], [tool])
    """
    numbered = list(enumerate(messages))
    first = messages[0]
    if not isinstance(first, Mapping) or not first.get(KEY):
        return numbered, tools
    where = f"message 0 ({first.get('role')})"
    if tools:
        raise RenderError(
            f"tools: {where} declares some already; remove its key {KEY!r}, or give none beside it"
        )
    if first.get("role") != "system":
        raise RenderError(f"{where}: {KEY} stand in a system message; put one first")
    if first.get("content"):
        numbered[0] = (0, {key: value for key, value in first.items() if key != KEY})
    elif len(numbered) > 1:
        del numbered[0]
    else:
        raise RenderError(
            f"{where}: it declares tools and says nothing; a message has to follow it"
        )
    return numbered, first[KEY]
