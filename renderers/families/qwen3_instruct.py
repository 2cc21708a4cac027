"""Qwen3 2507-Instruct: ChatML with tools.

Source: the ``chat_template`` of Qwen/Qwen3-4B-Instruct-2507.
"""

import json
from collections.abc import Sequence
from typing import Any

from mintjax.renderers.families.chatml import ChatML
from mintjax.renderers.format import Finish, Tools
from mintjax.renderers.messages import Call, Spoken, to_json
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.tokenizer import Tokenizer
from mintjax.types import Message, ToolCall

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

    The format has no reasoning: as in the official template, ``reasoning_content`` is not written.
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

    def between(self, before: str | None, after: str | None) -> tuple[str, str]:
        """See ``Format.between``."""
        close, header = super().between(before, after)
        if after != "tool":
            return close, header
        return ("", "") if before == "tool" else (close, "<|im_start|>user")

    def system(self, given: Spoken | None, tools: Tools) -> Sequence[Piece] | None:
        """See ``Format.system``."""
        if not tools:
            return super().system(given, tools)
        pieces: list[Piece] = [] if given is None else [*self.body(given), Own("\n\n")]
        pieces.append(Own(_BEFORE_TOOLS))
        for number, tool in enumerate(tools):
            pieces += [Own("\n"), Said(to_json(tool, f"tools[{number}]"))]
        return [*pieces, Own(_AFTER_TOOLS)]

    def body(self, message: Spoken) -> Sequence[Piece]:
        """See ``Format.body``."""
        if message.role == "tool":
            return [Own("\n<tool_response>\n"), Said(message.content), Own("\n</tool_response>")]
        pieces: list[Piece] = [Said(message.content)]
        for number, call in enumerate(message.calls):
            if number or message.content:
                pieces.append(Own("\n"))
            pieces += [
                Own('<tool_call>\n{"name": "'),
                Said(call.name),
                Own('", "arguments": '),
                Said(_arguments(call, message.where)),
                Own("}\n</tool_call>"),
            ]
        return pieces

    def read(self, finish: Finish, tokenizer: Tokenizer) -> tuple[Message, tuple[str, ...]]:
        """See ``Format.read``. Text after a call, and unreadable calls, stay in the content."""
        begin, end = tokenizer.control["<tool_call>"], tokenizer.control["</tool_call>"]
        said, calls, unread = "", [], []
        rest = finish.body.tolist()
        while begin in rest:
            place = rest.index(begin)
            text, rest = tokenizer.decode(rest[:place]), rest[place + 1 :]
            closed = end in rest
            size = rest.index(end) if closed else len(rest)
            inside, rest = tokenizer.decode(rest[:size]), rest[size + closed :]
            try:
                call = _read_call(inside, closed)
            except (ValueError, RecursionError) as error:  # brackets may nest without end
                unread.append(str(error))
                said += text + "<tool_call>" + inside + ("</tool_call>" if closed else "")
            else:
                # The newline before a call is the format's, not part of what was said.
                said += text.removesuffix("\n")
                calls.append(call)
        message: Message = {"role": "assistant", "content": said + tokenizer.decode(rest)}
        if calls:
            message["tool_calls"] = calls
        return message, tuple(unread)


def _arguments(call: Call, where: str) -> str:
    """A call's arguments as the template writes them: a text verbatim, a dict as JSON."""
    if isinstance(call.arguments, str):
        return call.arguments
    return to_json(call.arguments, f"{where}: arguments of {call.name!r}")


def _read_call(text: str, closed: bool) -> ToolCall:
    """The call that stands between two call tokens; ValueError says what it lacks."""
    if not closed:
        raise ValueError("the tool call is not closed")
    try:
        call: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the tool call is no JSON: {error}") from None
    name = call.get("name") if isinstance(call, dict) else None
    arguments = call.get("arguments") if isinstance(call, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("the tool call is no object with a name and an object of arguments")
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    (name + written).encode()  # an escape may have made half of a surrogate pair
    return {"type": "function", "function": {"name": name, "arguments": written}}
