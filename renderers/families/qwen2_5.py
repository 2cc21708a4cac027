"""Qwen2.5: ChatML with a default system prompt, and tools as Qwen3 has them.

Source: the ``chat_template`` of Qwen/Qwen2.5-7B-Instruct.
"""

from collections.abc import Sequence

from mintjax.renderers.families.chatml import ChatML
from mintjax.renderers.families.qwen3_instruct import Qwen3Instruct, declaration
from mintjax.renderers.format import Tools
from mintjax.renderers.messages import Spoken
from mintjax.renderers.pieces import Own, Piece

_DEFAULT_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


class Qwen25(Qwen3Instruct):
    """Results stand between ``<tool_response>`` tags that are ordinary text in this vocabulary.

    The official template quotes arguments once more that are a JSON text already; here they are
    written as they are.
    """

    name = "qwen2_5"
    controls = (*ChatML.controls, "<tool_call>", "</tool_call>")

    def opening(self, spoken: Sequence[Spoken], tools: Tools) -> Sequence[Spoken]:
        """See ``Format.opening``."""
        if spoken[0].role == "system":
            return super().opening(spoken, tools)
        pieces: list[Piece] = [Own(_DEFAULT_SYSTEM)]
        if tools:
            pieces += [Own("\n\n"), *declaration(tools)]
        return [Spoken(-1, "system", "", pieces=tuple(pieces)), *spoken]
