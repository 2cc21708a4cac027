"""What a reply of gpt-oss says: the messages it is made of, each with a channel and a recipient."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from mintjax.renderers.format import Channel
from mintjax.renderers.reading import Attempt, Part, Reading, dump_json, load_json, make_call

_ENDS = ("<|end|>", "<|return|>", "<|call|>")


def read_reply(found: Sequence[Part]) -> Reading:
    """Reads a reply, its stop included: without ``<|call|>`` a call is none.

    The analysis channel is reasoning; the final channel, and the commentary channel where it calls
    nobody, are content. Messages of the same kind are joined by newlines. What cannot be read stays
    in the content as it was said.

    Args:
        found: the reply, cut at the control tokens of the format.

    Example:
        >>> read_reply(parts(ids, view, GPTOSS.controls))
        Reading(content='Paris.', reasoning='The user asks for a capital.', attempts=())
    """
    content: list[str] = []
    reasoning: list[str] = []
    attempts: list[Attempt] = []
    for message in _messages(found):
        if message.recipient is not None:
            attempts.append(_attempt(message))
            content += [] if attempts[-1].call else [message.words]
        elif message.said is None or message.channel not in ("analysis", "commentary", "final"):
            content += [message.words] if message.words else []
        else:
            (reasoning if message.channel == "analysis" else content).append(message.said)
    return Reading("\n".join(content), "\n".join(reasoning) if reasoning else None, tuple(attempts))


def header_channel(found: Sequence[Part]) -> Channel:
    """What a message is, by its header alone.

    Args:
        found: the header, cut at the control tokens of the format.

    Example:
        >>> header_channel(parts(ids, view, GPTOSS.controls))
        'reasoning'
    """
    if not found:
        return "content"
    message = _message(found, first=found[0].control != "<|start|>")
    if message.recipient is not None:
        return "tool_call"
    return "reasoning" if message.channel == "analysis" else "content"


class _Message(NamedTuple):
    """One of the messages that a reply is made of.

    Attributes:
        channel: its channel; None where the header cannot be read.
        recipient: who it calls; None where it is no call.
        said: what stands after the header; None where the header is not whole.
        ended: the control token that ended it; None where the reply was over first.
        text: all of it, control tokens by name.
        span: first token, and one past the last.
    """

    channel: str | None
    recipient: str | None
    said: str | None
    ended: str | None
    text: str
    span: tuple[int, int]

    @property
    def words(self) -> str:
        """All of it but the stop, for a message that stays in the content as it was said."""
        return self.text if self.ended in (None, "<|end|>") else self.text.removesuffix(self.ended)


def _messages(found: Sequence[Part]) -> list[_Message]:
    """Cuts a reply into its messages: after what ends one, and before what starts another."""
    groups: list[list[Part]] = [[]]
    for part in found:
        if part.control == "<|start|>" and groups[-1]:
            groups.append([])
        groups[-1].append(part)
        if part.control in _ENDS:
            groups.append([])
    return [_message(group, first=not number) for number, group in enumerate(groups) if group]


def _message(group: Sequence[Part], *, first: bool) -> _Message:
    """One message. The generation prompt has written the start of the first."""
    ended = group[-1].control if group[-1].control in _ENDS else None
    inner = group[:-1] if ended else group
    header, said = _cut(inner, "<|message|>")
    channel, recipient = None, None
    if first:
        channel, recipient = _header(header, "")
    elif header and header[0].control == "<|start|>":
        channel, recipient = _header(header[1:], "assistant")
    span = (group[0].span[0], group[-1].span[1])
    said = None if said is None else _text(said)
    return _Message(channel, recipient, said, ended, _text(group), span)


def _header(found: Sequence[Part], role: str) -> tuple[str | None, str | None]:
    """The channel and the recipient that a header names. The recipient may stand in either part."""
    before, after = _cut(found, "<|channel|>")
    after, _ = _cut(after or (), "<|constrain|>")
    in_role = re.fullmatch(rf"{role}(?: to=(.+?))?\s*", _text(before), re.DOTALL)
    in_channel = re.fullmatch(r"(\w+)(?:\s+to=(\S+))?(?:\s.*)?", _text(after), re.DOTALL)
    if in_role is None or any(part.control for part in (*before, *after)):
        return None, None
    channel, recipient = in_channel.groups() if in_channel else (None, None)
    return channel, in_role[1] or recipient


def _cut(found: Sequence[Part], control: str) -> tuple[Sequence[Part], Sequence[Part] | None]:
    """What stands before a control token, and after it; None where the token is not there."""
    for place, part in enumerate(found):
        if part.control == control:
            return found[:place], found[place + 1 :]
    return found, None


def _text(found: Sequence[Part]) -> str:
    """Parts as one text."""
    return "".join(part.text for part in found)


def _attempt(message: _Message) -> Attempt:
    """A call, read; its arguments stay as they were said."""
    attempt = Attempt("malformed", message.span, message.text)
    recipient, said = message.recipient or "", message.said or ""
    space, _, name = recipient.partition(".")
    if message.ended is None:
        return attempt._replace(status="unclosed", error="the tool call is not closed")
    try:
        if message.ended != "<|call|>":
            raise ValueError(f"the tool call ends with {message.ended} in place of <|call|>")
        if space != "functions" or not name:
            raise ValueError(f"the tool call goes to {recipient!r}, which is no function")
        if not isinstance(given := load_json(said), dict):
            raise ValueError("the arguments of the tool call are no object")
        dump_json(given)
        return attempt._replace(status="ok", call=make_call(name, said))
    except ValueError as error:
        return attempt._replace(error=str(error))
