"""What a reply was, once it has ended."""

from dataclasses import dataclass
from typing import Any, Literal

from mintjax.renderers.format import Format, Tools, stop_tokens
from mintjax.renderers.reading import Attempt
from mintjax.renderers.sampled import check_stop, to_ids
from mintjax.renderers.tokenizer import Tokenizer
from mintjax.types import Message


@dataclass(frozen=True)
class Parsed:
    """What a reply says.

    Attributes:
        message: the assistant's message. An attempt at a tool call that cannot be read stays in its
            content; reasoning is in ``reasoning_content``.
        stop: how the reply ended: a stop of the format, another token that ends a text, or a length
            limit; "malformed" where it ended by itself but holds a tool call that cannot be carried
            out.
        attempts: every attempt at a tool call, in order.
    """

    message: Message
    stop: Literal["stop", "end_of_text", "length", "malformed"]
    attempts: tuple[Attempt, ...] = ()

    @property
    def unread(self) -> tuple[str, ...]:
        """Why each tool call that cannot be carried out cannot; empty where all can."""
        return tuple(attempt.error for attempt in self.attempts if attempt.status != "ok")


def parse(form: Format, ids: Any, tokenizer: Tokenizer, tools: Tools) -> Parsed:
    """Reads a reply; see ``Renderer.parse``."""
    sampled, stops = to_ids(ids, "reply"), stop_tokens(form, tokenizer)
    check_stop(sampled, stops, "reply")
    finish = form.finish(sampled, stops, tokenizer, "reply")
    reading = form.read(finish.body, tokenizer, tools)
    content, reasoning, attempts = form.cut(reading) if finish.how == "length" else reading
    declared = {_name(tool) for tool in tools}
    checked = tuple(_declared(attempt, declared) if tools else attempt for attempt in attempts)
    message: Message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    calls = [attempt.call for attempt in checked if attempt.call is not None]
    if calls:
        message["tool_calls"] = calls
    bad = any(attempt.status != "ok" for attempt in checked)
    return Parsed(message, "malformed" if bad and finish.how != "length" else finish.how, checked)


def _name(tool: Any) -> str | None:
    """The name of a tool's schema, in the OpenAI shape or bare."""
    return tool.get("function", tool).get("name")


def _declared(attempt: Attempt, names: set[str | None]) -> Attempt:
    """An attempt, marked where it calls a tool that was not declared."""
    if attempt.call is None or attempt.call["function"]["name"] in names:
        return attempt
    name = attempt.call["function"]["name"]
    return attempt._replace(
        status="unknown_tool", error=f"the tool {name!r} is not among those declared"
    )
