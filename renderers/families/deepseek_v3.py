"""DeepSeek V3-0324: arguments of calls in a fence, results of tools in a section.

Source: the ``chat_template`` of deepseek-ai/DeepSeek-V3-0324.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mintjax.renderers.families.call_section import CallSection, check_object
from mintjax.renderers.families.deepseek import (
    ASSISTANT,
    CALLS,
    CONTINUED,
    EOS,
    OUTPUT_BEGINS,
    OUTPUT_ENDS,
    DeepSeek,
)
from mintjax.renderers.format import Tools
from mintjax.renderers.messages import Call, Spoken, arguments_text
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.reading import Reading, make_call, parts
from mintjax.renderers.tokenizer import Tokenizer
from mintjax.types import ToolCall

OUTPUTS_BEGIN = "<｜tool▁outputs▁begin｜>"
OUTPUTS_END = "<｜tool▁outputs▁end｜>"
FENCED_CALLS: CallSection = replace(CALLS, glue="\n")
_FENCE, _FENCE_END = "\n```json\n", "\n```"


class DeepSeekV30324(DeepSeek):
    """A user's message ends with ``<｜Assistant｜>``, whatever follows; results of tools have no role.

    ``<think>`` is ordinary text in its vocabulary.
    """

    name = "deepseek_v3_0324"
    controls = (*DeepSeek.controls, OUTPUTS_BEGIN, OUTPUTS_END)

    def template(self, spoken: Sequence[Spoken]) -> Sequence[Spoken]:
        """See ``Format.template``.

        A section of results that a user's message follows is left open. Results after it, but for a
        reply with calls, go on with it.
        """
        found, begun = [], False
        for message in super().template(spoken):
            if message.role == "tool":
                found.append(message._replace(variant=CONTINUED) if begun else message)
                begun = True
                continue
            begun = begun and not message.calls
            found.append(message)
        return found

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        if message.role == "tool":
            return [Own(OUTPUT_BEGINS), Said(message.content), Own(OUTPUT_ENDS)]
        if message.role != "assistant":
            return [Said(message.content)]
        return [Said(message.content), *FENCED_CALLS.write(fenced(message)), Own(EOS)]

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``. Text around calls, and unreadable calls, stay in the content."""
        return FENCED_CALLS.read(parts(body, tokenizer, self.controls), to_call)

    def _close(self, before: str | None, after: Spoken) -> str:
        """What closes a user's or a tool's message."""
        if before == "user" and after.role != "assistant":
            return ASSISTANT
        left_open = after.role == "user" and after.variant
        return OUTPUTS_END if before == "tool" and after.role != "tool" and not left_open else ""

    def _header(self, before: str | None, after: Spoken) -> str:
        """What stands before a reply or a tool's result."""
        if after.role == "tool":
            return "\n" if before == "tool" or after.variant == CONTINUED else OUTPUTS_BEGIN
        # The official template puts a header after a user only, and a prompt after anything.
        headed = before == "user" or (before != "tool" and not after.variant)
        return ASSISTANT if headed else ""


def fenced(message: Spoken) -> list[tuple[list[Piece], list[Piece]]]:
    """The two halves of every call of a reply."""
    return [_fenced(call, message.where) for call in message.calls]


def _fenced(call: Call, where: str) -> tuple[list[Piece], list[Piece]]:
    """A call's kind; its name and arguments."""
    arguments = Said(arguments_text(call, where))
    return [Own("function")], [Said(call.name), Own(_FENCE), arguments, Own(_FENCE_END)]


def to_call(head: str, rest: str) -> ToolCall:
    """A call from its kind, and its name and arguments; ValueError where it is none."""
    said = re.fullmatch(rf"(.+?){_FENCE}(.*){_FENCE_END}", rest, re.DOTALL)
    if head != "function" or said is None:
        raise ValueError("the tool call is no function's name with a fence of JSON after it")
    return make_call(said[1], check_object(said[2]))
