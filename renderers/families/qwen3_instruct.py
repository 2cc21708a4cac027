"""Qwen3 2507-Instruct: ChatML with tools.

Source: the ``chat_template`` of Qwen/Qwen3-4B-Instruct-2507.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mintjax.renderers.families.chatml import ChatML
from mintjax.renderers.format import Tools
from mintjax.renderers.messages import Spoken, arguments_text, to_json
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.reading import Reading, parts, read_calls
from mintjax.renderers.tokenizer import Tokenizer

_BEFORE_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_AFTER_TOOLS = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


class Qwen3Instruct(ChatML):
    """Schemas stand in the first system message, calls in replies; a run of results in one turn.

    The official template leaves ``reasoning_content`` out in silence; here it is refused.
    """

    name = "qwen3_instruct"
    controls = (
        *ChatML.controls,
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
    )
    declares_tools = True
    channels: ClassVar = {"<tool_call>": "tool_call", "</tool_call>": "content"}

    def between(self, before: str | None, after: Spoken | None) -> tuple[str, str]:
        """See ``Format.between``."""
        close, header = super().between(before, after)
        if after is None or after.role != "tool":
            return close, header
        return ("", "") if before == "tool" else (close, "<|im_start|>user")

    def opening(self, spoken: Sequence[Spoken], tools: Tools) -> Sequence[Spoken]:
        """See ``Format.opening``."""
        if not tools:
            return spoken
        given = spoken[0].role == "system"
        system = spoken[0] if given else Spoken(-1, "system", "")
        before = (Said(system.content), Own("\n\n")) if given else ()
        return [system._replace(pieces=(*before, *declaration(tools))), *spoken[given:]]

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        if message.role == "tool":
            return [Own("\n<tool_response>\n"), Said(message.content), Own("\n</tool_response>")]
        content, *end = super().body(message, following)
        pieces = [content]
        for number, call in enumerate(message.calls):
            if number or message.content:
                pieces.append(Own("\n"))
            pieces += [
                Own('<tool_call>\n{"name": "'),
                Said(call.name),
                Own('", "arguments": '),
                Said(arguments_text(call, message.where)),
                Own("}\n</tool_call>"),
            ]
        return [*pieces, *end]

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``. Text after a call, and unreadable calls, stay in the content."""
        return read_calls(parts(body, tokenizer, ("<tool_call>", "</tool_call>")))


def declaration(tools: Tools) -> list[Piece]:
    """What a system message says of tools."""
    pieces: list[Piece] = [Own(_BEFORE_TOOLS)]
    for number, tool in enumerate(tools):
        pieces += [Own("\n"), Said(to_json(tool, f"tools[{number}]"))]
    return [*pieces, Own(_AFTER_TOOLS)]
