"""Kimi K2: Instruct, and Thinking with a think block in every reply.

Sources: the ``chat_template`` of moonshotai/Kimi-K2-Instruct (September 2025) and of
moonshotai/Kimi-K2-Thinking.
"""

import re
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mintjax.renderers.errors import RenderError
from mintjax.renderers.families.call_section import CallSection, check_object
from mintjax.renderers.families.think_block import cut_thoughts
from mintjax.renderers.format import Format, Tools
from mintjax.renderers.messages import Call, Spoken, arguments_text, to_json
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.reading import Reading, make_call, parts
from mintjax.renderers.tokenizer import Tokenizer
from mintjax.types import ToolCall

_END = "<|im_end|>"
_MIDDLE = "<|im_middle|>"
_MARKERS = {"user": "<|im_user|>", "assistant": "<|im_assistant|>"}
_SYSTEM = "<|im_system|>"
_END_OF_TEXT = "[EOS]"
_CALLS = CallSection(
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)
_DEFAULT = "You are Kimi, an AI assistant created by Moonshot AI."
# Role of the system message that the format puts there itself.
_DEFAULT_ROLE = "default"


class KimiK2Instruct(Format):
    """A marker, a role or name, the content, ``<|im_end|>``; no newlines between messages.

    Tools stand in a message of their own before all others. A call's id, ``functions.NAME:COUNT``,
    is all that names its function; ids are written as they are given. A call without one gets its
    function's name and the count of the conversation's calls before it.
    """

    name = "kimi_k2_instruct"
    controls = (*_MARKERS.values(), _SYSTEM, _MIDDLE, _END, *_CALLS.controls)
    stops = (_END,)
    declares_tools = True
    channels: ClassVar = {_CALLS.begins: "tool_call", _CALLS.ends: "content"}
    after_default: ClassVar[str] = "\n"

    def opening(self, spoken: Sequence[Spoken], tools: Tools) -> Sequence[Spoken]:
        """See ``Format.opening``. Keys of schemas are sorted, as Kimi's own tokenizer sorts them."""
        found = list(spoken)
        if spoken[0].role != "system":
            found.insert(0, Spoken(-1, _DEFAULT_ROLE, "", pieces=(Own(_DEFAULT),)))
        if tools:
            written = to_json(list(tools), "tools", sort_keys=True, separators=(",", ":"))
            found.insert(0, Spoken(-1, "tool_declare", "", pieces=(Said(written),)))
        return found

    def between(self, before: str | None, after: Spoken | None) -> tuple[str, Sequence[Piece]]:
        """See ``Format.between``."""
        close = "" if before is None else _END
        if before == _DEFAULT_ROLE:
            close += self.after_default
        if after is None:
            return close, []
        marker = _MARKERS.get(after.role, _SYSTEM)
        if after.name:
            return close, [Own(marker), Said(after.name), Own(_MIDDLE)]
        role = "system" if after.role == _DEFAULT_ROLE else after.role
        return close, [Own(f"{marker}{role}{_MIDDLE}")]

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        if message.role == "tool":
            return [
                Own("## Return of "),
                Said(_answered(message)),
                Own("\n"),
                Said(message.content),
            ]
        if message.role != "assistant":
            return [Said(message.content)]
        calls = (
            ([Said(_call_id(call))], [Said(arguments_text(call, message.where))])
            for call in message.calls
        )
        return [Said(message.content), *_CALLS.write(calls), Own(_END)]

    def ends(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """See ``Format.ends``."""
        return (tokenizer.control[_END_OF_TEXT],) if _END_OF_TEXT in tokenizer.control else ()

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``. Text around calls, and unreadable calls, stay in the content."""
        return _CALLS.read(parts(body, tokenizer, self.controls), _to_call)


class KimiK2(KimiK2Instruct):
    """K2-Thinking: every reply begins with a think block, empty where it has no reasoning.

    The official template empties the block of every reply up to the last one that calls no tool,
    that one included.
    """

    name = "kimi_k2"
    controls = (*KimiK2Instruct.controls, "<think>", "</think>")
    reasons = True
    channels: ClassVar = {
        "<think>": "reasoning",
        "</think>": "content",
        **KimiK2Instruct.channels,
    }
    after_default = ""

    def template(self, spoken: Sequence[Spoken]) -> Sequence[Spoken]:
        """See ``Format.template``."""
        plain = (n for n, one in enumerate(spoken) if one.role == "assistant" and not one.calls)
        last = max(plain, default=-1)
        return [
            one._replace(reasoning=None) if place <= last else one
            for place, one in enumerate(spoken)
        ]

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        pieces = super().body(message, following)
        if message.role != "assistant":
            return pieces
        return [Own("<think>"), Said(message.reasoning or ""), Own("</think>"), *pieces]

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``. A think block that does not come first stays in the content."""
        found = parts(body, tokenizer, self.controls)
        reasoning, found = cut_thoughts(found, begun=False)
        return _CALLS.read(found, _to_call)._replace(reasoning=reasoning)


def _call_id(call: Call) -> str:
    """A call's id, made up where the caller gave none."""
    return call.id or f"functions.{call.name}:{call.place}"


def _answered(message: Spoken) -> str:
    """The id of the call that a tool's message answers."""
    if message.call_id:
        return message.call_id
    if message.answers is None:
        raise RenderError(
            f"{message.where}: no call before it that it answers, and the format writes the call's "
            "id; give tool_call_id"
        )
    return _call_id(message.answers)


def _to_call(head: str, rest: str) -> ToolCall:
    """A call from its id and its arguments."""
    named = re.fullmatch(r"functions\.(.+):\d+", head)
    if named is None:
        raise ValueError(f"the tool call's id must be functions.NAME:COUNT, got {head!r}")
    return make_call(named[1], check_object(rest), head)
