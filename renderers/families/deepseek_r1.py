r"""DeepSeek R1: the calls of V3, and reasoning.

Source: the ``chat_template`` of deepseek-ai/DeepSeek-R1.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mintjax.renderers.families.deepseek import ASSISTANT, CONTINUED, EOS, DeepSeek
from mintjax.renderers.families.deepseek_v3 import (
    FENCED_CALLS,
    OUTPUTS_BEGIN,
    OUTPUTS_END,
    DeepSeekV30324,
    fenced,
    to_call,
)
from mintjax.renderers.families.think_block import all_reasoning, cut_thoughts
from mintjax.renderers.format import Channel, Tools
from mintjax.renderers.messages import Spoken
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.reading import Reading, parts
from mintjax.renderers.tokenizer import Tokenizer

_THINKS = "<think>\n"
_ANSWERS = "\n</think>\n\n"


class DeepSeekR1(DeepSeekV30324):
    r"""The generation prompt opens a think block, but for a reply to a tool, which has no header.

    Kept replies are ``reasoning\n</think>\n\ncontent``; to a tool, ``<think>\n`` stands before where
    there is reasoning. The official template writes no reasoning.
    """

    name = "deepseek_r1"
    controls = (*DeepSeekV30324.controls, "<think>", "</think>")
    reasons = True
    begins = "reasoning"
    channels: ClassVar = {
        "<think>": "reasoning",
        "</think>": "content",
        **DeepSeekV30324.channels,
    }

    def begins_after(self, before: str | None) -> Channel:
        """See ``Format.begins_after``."""
        return "content" if before == "tool" else "reasoning"

    def template(self, spoken: Sequence[Spoken]) -> Sequence[Spoken]:
        """See ``Format.template``.

        The first reply with calls opens a section that all later ones go on with: without a header,
        and without their text. So do all results after the first.
        """
        begun: set[str] = set()
        found = []
        for message in DeepSeek.template(self, spoken):
            kind = "calls" if message.calls else message.role
            if kind in ("calls", "tool"):
                message = message._replace(variant=CONTINUED if kind in begun else message.variant)
                begun.add(kind)
            found.append(message)
        return found

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        if message.role == "assistant" and message.variant == CONTINUED:
            return [*FENCED_CALLS.write(fenced(message), FENCED_CALLS.glue), Own(EOS)]
        pieces = super().body(message, following)
        if message.role != "assistant" or message.reasoning is None:
            return pieces
        thoughts = [Said(message.reasoning), Own(_ANSWERS)]
        if self.begins_after(message.after) == "content":
            thoughts = [Own(_THINKS), *thoughts] if message.reasoning else []
        return [*thoughts, *pieces]

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``.

        A reply without a think block is all content: only after a tool's result is that how replies
        begin, but the ids do not tell. One that was cut off is read by ``cut``.
        """
        found = parts(body, tokenizer, self.controls)
        reasoning, rest = cut_thoughts(found, begun=True)
        if reasoning is None:
            return FENCED_CALLS.read(rest, to_call)
        if found[0].control == "<think>":
            reasoning = reasoning.removeprefix("\n")
        if rest and rest[0].control is None:
            rest[0] = rest[0]._replace(text=rest[0].text.removeprefix("\n\n"))
        return FENCED_CALLS.read(rest, to_call)._replace(reasoning=reasoning.removesuffix("\n"))

    def cut(self, reading: Reading) -> Reading:
        """See ``Format.cut``. Without a think block, a reply was cut off inside its reasoning."""
        return all_reasoning(reading)

    def _close(self, before: str | None, after: Spoken) -> str:
        """What closes a tool's message."""
        left_open = after.variant and (after.role == "user" or after.calls)
        return OUTPUTS_END if before == "tool" and after.role != "tool" and not left_open else ""

    def _header(self, before: str | None, after: Spoken) -> str:
        """What stands before a reply or a tool's result."""
        if after.variant == CONTINUED or (after.role == "tool" and before == "tool"):
            return ""
        if after.role == "tool":
            return OUTPUTS_BEGIN
        if before == "tool" and not (after.variant and after.calls):
            return ""
        return ASSISTANT if after.reasoning is None else ASSISTANT + _THINKS
