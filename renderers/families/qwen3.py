r"""Qwen3 with think blocks: the hybrid models, thinking on or off, and 2507-Thinking.

Sources: the ``chat_template`` of Qwen/Qwen3-8B and of Qwen/Qwen3-4B-Thinking-2507.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mintjax.renderers.families.qwen3_instruct import Qwen3Instruct
from mintjax.renderers.families.think_block import cut_thoughts
from mintjax.renderers.format import Tools
from mintjax.renderers.messages import Spoken
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.reading import Reading, parts, read_calls
from mintjax.renderers.tokenizer import Tokenizer

_OPEN = "<think>\n"
_CLOSE = "\n</think>\n\n"
_TRIMMED = "trimmed"


class Qwen3(Qwen3Instruct):
    r"""The hybrid models, thinking on: a reply begins with a think block.

    A reply without reasoning has an empty one, ``<think>\n\n</think>\n\n``; a message whose
    reasoning is None has none at all.

    Attributes:
        prompted: what of the think block the generation prompt writes.
    """

    name = "qwen3"
    controls = (*Qwen3Instruct.controls, "<think>", "</think>")
    reasons = True
    channels: ClassVar = {"<think>": "reasoning", "</think>": "content", **Qwen3Instruct.channels}
    prompted: ClassVar[str] = ""

    def template(self, spoken: Sequence[Spoken]) -> Sequence[Spoken]:
        """See ``Format.template``.

        Only replies after the last user message keep a block: those with reasoning, and the last
        message of all. Where no user asks, none does.
        """
        asked = max((n for n, message in enumerate(spoken) if _asks(message)), default=len(spoken))
        found = []
        for place, message in enumerate(spoken):
            last = place == len(spoken) - 1
            if message.role != "assistant":
                found.append(message)
            elif place > asked and (last or message.reasoning):
                reasoning = (message.reasoning or "").strip("\n")
                found.append(message._replace(reasoning=reasoning, variant=_TRIMMED))
            else:
                found.append(message._replace(reasoning=None))
        return found

    def kept(self, message: Spoken) -> Spoken:
        """See ``Format.kept``. Every reply has a block; no newline of what was said is trimmed."""
        if message.role != "assistant":
            return message
        return message._replace(reasoning=message.reasoning or "")

    def between(self, before: str | None, after: Spoken | None) -> tuple[str, str]:
        """See ``Format.between``."""
        close, header = super().between(before, after)
        has_block = after is not None and after.role == "assistant" and after.reasoning is not None
        return close, header + self.prompted if has_block else header

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        content, *rest = super().body(message, following)
        if message.role != "assistant" or message.reasoning is None:
            return [content, *rest]
        # Whether a newline stands before a call is decided by the content as it was given.
        if message.variant == _TRIMMED:
            content = Said(message.content.lstrip("\n"))
        return [*self.block(message.reasoning), content, *rest]

    def block(self, reasoning: str) -> list[Piece]:
        """The think block, without what the generation prompt writes of it."""
        return [Own(_OPEN), Said(reasoning), Own(_CLOSE)]

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``.

        A think block that does not come first stays in the content; one that is not closed is all
        that was said.
        """
        found = parts(body, tokenizer, tuple(self.channels))
        begun = self.begins == "reasoning"
        reasoning, answer = cut_thoughts(found, begun)
        if reasoning is None:
            return Reading("", "".join(part.text for part in found)) if begun else read_calls(found)
        if answer and answer[0].control is None:
            answer[0] = answer[0]._replace(text=answer[0].text.removeprefix("\n\n"))
        reasoning = reasoning if begun else reasoning.removeprefix("\n")
        return read_calls(answer)._replace(reasoning=reasoning.removesuffix("\n"))


class Qwen3Thinking(Qwen3):
    """2507-Thinking: the generation prompt opens the think block."""

    name = "qwen3_thinking"
    begins = "reasoning"
    prompted = _OPEN

    def block(self, reasoning: str) -> list[Piece]:
        """See ``Qwen3.block``."""
        return [Said(reasoning), Own(_CLOSE)]


class Qwen3DisableThinking(Qwen3):
    """The hybrid models, thinking off: the generation prompt holds an empty think block.

    A block that the policy begins nevertheless is text like any other.
    """

    name = "qwen3_disable_thinking"
    reasons = False
    channels: ClassVar = Qwen3Instruct.channels
    prompted = _OPEN + _CLOSE

    def block(self, reasoning: str) -> list[Piece]:
        """See ``Qwen3.block``."""
        return []


def _asks(message: Spoken) -> bool:
    """Whether a message is a user's, and no tool result written as one."""
    result = message.content.startswith("<tool_response>")
    result = result and message.content.endswith("</tool_response>")
    return message.role == "user" and not result
