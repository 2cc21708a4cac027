"""DeepSeek V3.1, thinking off and on: bare calls, and results of tools without a section.

Sources: the ``chat_template`` of deepseek-ai/DeepSeek-V3.1, and its model card for tool schemas, which
the template leaves out.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mintjax.renderers.errors import RenderError
from mintjax.renderers.families.call_section import check_object
from mintjax.renderers.families.deepseek import (
    ASSISTANT,
    CALLS,
    EOS,
    OUTPUT_BEGINS,
    OUTPUT_ENDS,
    DeepSeek,
)
from mintjax.renderers.families.think_block import all_reasoning, cut_thoughts
from mintjax.renderers.format import Channel, Tools
from mintjax.renderers.messages import Spoken, arguments_text, to_json
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.reading import Reading, make_call, parts
from mintjax.renderers.tokenizer import Tokenizer
from mintjax.types import ToolCall

_BEFORE_TOOLS = "\n\n## Tools\nYou have access to the following tools:\n\n"
_AFTER_TOOLS = (
    "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
    f"{CALLS.begins}{CALLS.call_begins}tool_call_name{CALLS.head_ends}tool_call_arguments"
    f"{CALLS.call_ends}{{additional_tool_calls}}{CALLS.ends}\n\n"
    "Where:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces"
)


class DeepSeekV31(DeepSeek):
    """Thinking off: only a reply to a user has a header, which ends with ``</think>``.

    Tools are declared after the system text, in the words of the model card.
    """

    name = "deepseekv3"
    controls = (*DeepSeek.controls, "<think>", "</think>")
    declares_tools = True

    def opening(self, spoken: Sequence[Spoken], tools: Tools) -> Sequence[Spoken]:
        """See ``Format.opening``."""
        if not tools:
            return spoken
        first = next((n for n, one in enumerate(spoken) if one.role != "system"), len(spoken))
        declared = Spoken(-1, "tools", "", pieces=tuple(_declaration(tools)))
        return [*spoken[:first], declared, *spoken[first:]]

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        if message.role == "tool":
            return [Own(OUTPUT_BEGINS), Said(message.content), Own(OUTPUT_ENDS)]
        if message.role != "assistant":
            return [Said(message.content)]
        calls = (
            ([Said(call.name)], [Said(arguments_text(call, message.where))])
            for call in message.calls
        )
        return [Said(message.content), *CALLS.write(calls), Own(EOS)]

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``. Text around calls, and unreadable calls, stay in the content."""
        return CALLS.read(parts(body, tokenizer, self.controls), _to_call)

    def _header(self, before: str | None, after: Spoken) -> str:
        """What stands before a reply or a tool's result."""
        replies = after.role == "assistant" and before == "user"
        return ASSISTANT + self._mode(after) if replies else ""

    def _mode(self, reply: Spoken) -> str:
        """The end of a reply's header."""
        return "</think>"


class DeepSeekV31Thinking(DeepSeekV31):
    """Thinking on: the generation prompt after a user opens a think block.

    Kept replies to a user are ``reasoning</think>content``. Any other reply has no header, and a block
    of its own where it has reasoning. The official template writes no reasoning.
    """

    name = "deepseekv3_thinking"
    reasons = True
    begins = "reasoning"
    channels: ClassVar = {"<think>": "reasoning", "</think>": "content", **DeepSeekV31.channels}

    def begins_after(self, before: str | None) -> Channel:
        """See ``Format.begins_after``."""
        return "reasoning" if before == "user" else "content"

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        pieces = super().body(message, following)
        if message.role != "assistant" or message.reasoning is None:
            return pieces
        thoughts = [Said(message.reasoning), Own("</think>")]
        if self.begins_after(message.after) == "content":
            thoughts = [Own("<think>"), *thoughts] if message.reasoning else []
        return [*thoughts, *pieces]

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``.

        A reply without a think block is all content: only after a tool's result is that how replies
        begin, but the ids do not tell. One that was cut off is read by ``cut``.
        """
        found = parts(body, tokenizer, self.controls)
        reasoning, found = cut_thoughts(found, begun=True)
        return CALLS.read(found, _to_call)._replace(reasoning=reasoning)

    def cut(self, reading: Reading) -> Reading:
        """See ``Format.cut``. Without a think block, a reply was cut off inside its reasoning."""
        return all_reasoning(reading)

    def _mode(self, reply: Spoken) -> str:
        """The end of a reply's header."""
        return "</think>" if reply.reasoning is None else "<think>"


def _declaration(tools: Tools) -> list[Piece]:
    """What the system text says of tools."""
    pieces: list[Piece] = [Own(_BEFORE_TOOLS)]
    for number, tool in enumerate(tools):
        schema, where = tool.get("function", tool), f"tools[{number}]"
        name, description = schema.get("name"), schema.get("description") or ""
        if not isinstance(name, str) or not isinstance(description, str):
            raise RenderError(f"{where}: name and description must be texts; give the tool a name")
        parameters = to_json(schema.get("parameters") or {}, f"{where}: parameters")
        pieces += [Own("### "), Said(name), Own("\nDescription: "), Said(description)]
        pieces += [Own("\n\nParameters: "), Said(parameters), Own("\n\n")]
    return [*pieces, Own(_AFTER_TOOLS)]


def _to_call(head: str, rest: str) -> ToolCall:
    """A call from its name and its arguments."""
    if not head:
        raise ValueError("the tool call has no name")
    return make_call(head, check_object(rest))
