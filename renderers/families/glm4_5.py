"""GLM-4.5: no token ends a turn, the next role's marker does, and the model says it.

Source: the ``chat_template`` of zai-org/GLM-4.5.
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from mintjax.renderers.errors import RenderError
from mintjax.renderers.families.glm4_5_arguments import read_call
from mintjax.renderers.format import Format, Tools
from mintjax.renderers.messages import Call, Spoken, to_json
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.reading import Part, Reading, load_json, parts, read_calls
from mintjax.renderers.tokenizer import Tokenizer

_BEFORE_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_AFTER_TOOLS = (
    "</tools>\n\nFor each function call, output the function name and arguments within the following "
    "XML format:\n<tool_call>{function-name}\n"
    "<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n"
    "<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>"
)
_ARGUMENTS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_STOPS = {"user": "<|user|>", "tool": "<|observation|>"}
_SWITCH = "/nothink"


class GLM45(Format):
    """Thinking on: a reply begins with a think block, which is empty where there is no reasoning.

    The marker that ends a reply is the first word of the next message's header. Where another
    message follows than the one that the policy has announced, both markers stand there.

    The template trims replies, and forgets reasoning at the next user message. ``history="keep"``
    and extensions leave both as they were said.
    """

    name = "glm4_5"
    prefix = "[gMASK]<sop>"
    controls = (
        "[gMASK]",
        "<sop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        *_ARGUMENTS,
        "<tool_response>",
        "</tool_response>",
    )
    stops = tuple(_STOPS.values())
    declares_tools = True
    reasons = True
    channels: ClassVar = {
        "<think>": "reasoning",
        "</think>": "content",
        "<tool_call>": "tool_call",
        "</tool_call>": "content",
    }

    def template(self, spoken: Sequence[Spoken]) -> Sequence[Spoken]:
        """See ``Format.template``."""
        asked = max((n for n, one in enumerate(spoken) if one.role == "user"), default=-1)
        found = []
        for place, message in enumerate(map(self.kept, spoken)):
            if message.role == "assistant":
                reasoning = (message.reasoning or "").strip() if place > asked else ""
                message = message._replace(content=message.content.strip(), reasoning=reasoning)
            found.append(message)
        return found

    def opening(self, spoken: Sequence[Spoken], tools: Tools) -> Sequence[Spoken]:
        """See ``Format.opening``."""
        if not tools:
            return spoken
        pieces: list[Piece] = [Own(_BEFORE_TOOLS)]
        for number, tool in enumerate(tools):
            pieces += [Said(to_json(tool, f"tools[{number}]")), Own("\n")]
        pieces.append(Own(_AFTER_TOOLS))
        return [Spoken(-1, "system", "", pieces=tuple(pieces)), *spoken]

    def between(self, before: str | None, after: Spoken | None) -> tuple[str, str]:
        """See ``Format.between``."""
        if after is None:
            return "", ""
        if after.role == "assistant":
            return "", "<|assistant|>"
        if after.role == "tool":
            return "", "" if before == "tool" else "<|observation|>"
        return "", f"<|{after.role}|>\n"

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        if message.role == "tool":
            return [Own("\n<tool_response>\n"), Said(message.content), Own("\n</tool_response>")]
        if message.role != "assistant":
            return [Said(message.content)]
        pieces = self.block(message)
        if message.content:
            pieces += [Own("\n"), Said(message.content)]
        for call in message.calls:
            pieces += _call(call, f"{message.where}: arguments of {call.name!r}")
        # No policy says another marker than these.
        return [*pieces, Own(_STOPS[following])] if following in _STOPS else pieces

    def block(self, message: Spoken) -> list[Piece]:
        """The think block, where the generation prompt does not write it."""
        return [Own("\n<think>"), Said(message.reasoning or ""), Own("</think>")]

    def ends(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """See ``Format.ends``."""
        return (tokenizer.control["<|endoftext|>"],)

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``. A think block that does not come first stays in the content."""
        found = parts(body, tokenizer, (*self.channels, *_ARGUMENTS))
        reasoning, answer = self.thought(found)
        if answer and answer[0].control is None:
            answer[0] = answer[0]._replace(text=answer[0].text.removeprefix("\n"))
        return read_calls(answer, partial(read_call, tools=tools))._replace(reasoning=reasoning)

    def thought(self, found: list[Part]) -> tuple[str | None, list[Part]]:
        """The reasoning that a reply begins with, and its other parts."""
        begin = 1 if found and found[0].text == "\n" else 0
        if len(found) <= begin or found[begin].control != "<think>":
            return None, found
        controls = [part.control for part in found]
        end = controls.index("</think>") if "</think>" in controls else len(found)
        return "".join(part.text for part in found[begin + 1 : end]), found[end + 1 :]


class GLM45DisableThinking(GLM45):
    """Thinking off: the generation prompt holds an empty think block, a user's message the switch.

    A block that the policy begins nevertheless is text like any other.
    """

    name = "glm4_5_disable_thinking"
    controls = (*GLM45.controls, _SWITCH)
    reasons = False
    channels: ClassVar = {"<tool_call>": "tool_call", "</tool_call>": "content"}

    def kept(self, message: Spoken) -> Spoken:
        """See ``Format.kept``. A decoded sample has the newline already that stands before a text."""
        if not message.stopped:
            return message
        return message._replace(content=message.content.removeprefix("\n"))

    def between(self, before: str | None, after: Spoken | None) -> tuple[str, str]:
        """See ``Format.between``."""
        close, header = super().between(before, after)
        return close, f"{header}\n<think></think>" if header == "<|assistant|>" else header

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``. A user who typed the switch gets no second one."""
        if message.role == "user":
            return [Said(message.content.removesuffix(_SWITCH)), Own(_SWITCH)]
        return super().body(message, following)

    def block(self, message: Spoken) -> list[Piece]:
        """See ``GLM45.block``."""
        return []

    def thought(self, found: list[Part]) -> tuple[str | None, list[Part]]:
        """See ``GLM45.thought``."""
        return None, found


def _call(call: Call, where: str) -> list[Piece]:
    """A call: a text stands as it is, any other value as JSON."""
    arguments = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = load_json(arguments)
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        raise RenderError(
            f"{where}: expected an object, which is written key by key, got {call.arguments!r}; give "
            "a dict or its JSON text"
        )
    pieces: list[Piece] = [Own("\n<tool_call>"), Said(call.name), Own("\n")]
    for key, value in arguments.items():
        text = value if isinstance(value, str) else to_json(value, where, allow_nan=False)
        pieces += [Own("<arg_key>"), Said(str(key)), Own("</arg_key>\n<arg_value>"), Said(text)]
        pieces.append(Own("</arg_value>\n"))
    return [*pieces, Own("</tool_call>")]
