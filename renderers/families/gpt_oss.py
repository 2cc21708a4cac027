"""gpt-oss: the harmony format, whose replies are messages in channels.

Source: the ``chat_template`` of openai/gpt-oss-20b; for what it leaves open (recipients in the channel's
part of a header, text before a call), the description of the harmony format.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mintjax.renderers.errors import RenderError
from mintjax.renderers.families.gpt_oss_reading import header_channel, read_reply
from mintjax.renderers.families.typescript_schema import namespace
from mintjax.renderers.format import Channel, Finish, Format, Tools
from mintjax.renderers.messages import Spoken, arguments_text, to_json
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.reading import Reading, parts
from mintjax.renderers.tokenizer import Tokenizer

_IDENTITY = (
    "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
)
_CHANNELS = (
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)
_CALLS = "\nCalls to these tools must go to the commentary channel: 'functions'."
_NEXT = "<|end|><|start|>assistant"
_END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class GPTOSS(Format):
    """The caller's system messages are the developer's; the system message is the format's own.

    A reply is up to three messages: its reasoning (analysis), and then its answer (final), or a call
    (commentary). As in the template, the text of a reply that calls is written as its reasoning
    where it has no other; beside reasoning it is a message in the commentary channel.

    The template ends an answer with ``<|return|>`` where it is the last message and with ``<|end|>``
    elsewhere, and forgets reasoning once an answer follows. ``history="keep"`` and extensions leave
    both as they were said.

    Attributes:
        date: the day that the system message names; None leaves its line out.
        effort: how much to reason, a word of the system message.
    """

    date: str | None = None

    controls = (
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
    )
    stops = ("<|return|>", "<|call|>")
    declares_tools = True
    reasons = True
    # Which channel follows <|message|> is said in ordinary words before it.
    channels: ClassVar = {"<|start|>": "header", "<|channel|>": "header", "<|message|>": "content"}
    begins = "header"
    effort: ClassVar[str]

    def dated(self, date: str) -> "GPTOSS":
        """See ``Format.dated``."""
        return replace(self, date=date)

    def template(self, spoken: Sequence[Spoken]) -> Sequence[Spoken]:
        """See ``Format.template``."""
        replies = [one for one in spoken if one.role == "assistant"]
        answered = max((one.number for one in replies if not one.calls), default=-1)
        last = spoken[-1].number
        found: list[Spoken] = []
        for message in map(self.kept, spoken):
            if message.calls and message.number < answered:
                message = message._replace(reasoning=None)
            elif message.role == "assistant" and not message.calls and message.number != last:
                message = message._replace(reasoning=None, variant="past")
            found.append(message)
        return found

    def kept(self, message: Spoken) -> Spoken:
        """See ``Format.kept``."""
        if len(message.calls) > 1:
            raise RenderError(
                f"{message.where}: {self.name!r} writes one tool call a reply, got "
                f"{len(message.calls)}; give each its own reply, followed by its result"
            )
        if not message.calls or message.reasoning:
            return message
        return message._replace(content="", reasoning=message.content or None)

    def opening(self, spoken: Sequence[Spoken], tools: Tools) -> Sequence[Spoken]:
        """See ``Format.opening``."""
        today = [] if self.date is None else [Own("Current date: "), Said(self.date), Own("\n")]
        effort = Own(f"\nReasoning: {self.effort}\n\n{_CHANNELS}{_CALLS if tools else ''}")
        system = Spoken(
            -1, "system", "", variant="identity", pieces=(Own(_IDENTITY), *today, effort)
        )
        given = spoken[0].role == "system"
        developer = spoken[0] if given else Spoken(-1, "system", "")
        pieces = [*self.body(developer, None)] if developer.content else []
        if tools:
            pieces += [Own("# Tools\n\n"), *namespace("functions", tools)]
        # The template writes no developer message that would be empty.
        instructed = [developer._replace(pieces=tuple(pieces))] if pieces else []
        return [system, *instructed, *spoken[given:]]

    def between(self, before: str | None, after: Spoken | None) -> tuple[str, list[Piece]]:
        """See ``Format.between``."""
        close = "" if before is None else "<|end|>"
        if after is None:
            return close, []
        if after.role == "assistant":
            return close, [Own("<|start|>assistant")]
        if after.role != "tool":
            role = "developer" if after.role == "system" and not after.variant else after.role
            return close, [Own(f"<|start|>{role}<|message|>")]
        name = after.name or (after.answers.name if after.answers else None)
        if not name:
            raise RenderError(
                f"{after.where}: {self.name!r} writes the name of the function that gave a result, "
                "and no call before it says which; give the message a name, or the call's "
                "tool_call_id"
            )
        to_assistant = Own(" to=assistant<|channel|>commentary<|message|>")
        return close, [Own("<|start|>functions."), Said(name), to_assistant]

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        if message.role == "system":
            return [Own("# Instructions\n\n"), Said(message.content), Own("\n\n")]
        if message.role == "user":
            return [Said(message.content)]
        if message.role == "tool":
            return [Said(to_json(message.content, message.where))]
        pieces: list[Piece] = []
        if message.reasoning is not None:
            thoughts = Said(message.reasoning)
            pieces += [Own("<|channel|>analysis<|message|>"), thoughts, Own(_NEXT)]
        if not message.calls:
            end = Own("<|end|>" if message.variant == "past" else "<|return|>")
            return [*pieces, Own("<|channel|>final<|message|>"), Said(message.content), end]
        if message.content:
            said = Said(message.content)
            pieces += [Own("<|channel|>commentary<|message|>"), said, Own(_NEXT)]
        (call,) = message.calls
        return [
            *pieces,
            Own(" to=functions."),
            Said(call.name),
            Own("<|channel|>commentary json<|message|>"),
            Said(arguments_text(call, message.where)),
            Own("<|call|>"),
        ]

    def written(self, ending: str) -> str:
        """See ``Format.written``. A stop stands where ``<|end|>`` would."""
        return "<|end|>" if ending in self.stops else ending

    def ends(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """See ``Format.ends``."""
        return (tokenizer.control[_END_OF_TEXT],) if _END_OF_TEXT in tokenizer.control else ()

    def finish(
        self, ids: np.ndarray, stops: Sequence[int], tokenizer: Tokenizer, where: str
    ) -> Finish:
        """See ``Format.finish``. The body keeps the stop: only ``<|call|>`` makes a call."""
        finish = super().finish(ids, stops, tokenizer, where)
        if finish.how == "stop":
            return finish._replace(body=ids)
        closed = finish.body.size and tokenizer.name(int(finish.body[-1])) == "<|end|>"
        return finish._replace(ending="<|end|>") if closed and finish.how == "length" else finish

    def channel_of(self, header: np.ndarray, tokenizer: Tokenizer) -> Channel:
        """See ``Format.channel_of``."""
        return header_channel(parts(header, tokenizer, self.controls))

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``."""
        return read_reply(parts(body, tokenizer, self.controls))


class GPTOSSLow(GPTOSS):
    """gpt-oss, told to reason little."""

    name = "gpt_oss_low_reasoning"
    effort = "low"


class GPTOSSMedium(GPTOSS):
    """gpt-oss, told to reason as it does by default."""

    name = "gpt_oss_medium_reasoning"
    effort = "medium"


class GPTOSSHigh(GPTOSS):
    """gpt-oss, told to reason much."""

    name = "gpt_oss_high_reasoning"
    effort = "high"
