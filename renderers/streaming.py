"""Reading a reply while it is being sampled: whole characters, each with the channel it stands in."""

from typing import Any, NamedTuple

import numpy as np

from mintjax.renderers.format import Channel, Format, Tools, stop_tokens
from mintjax.renderers.parsed import Parsed, parse
from mintjax.renderers.sampled import ids_after_stop, to_ids
from mintjax.renderers.tokenizer import Tokenizer

_CUT = "\N{REPLACEMENT CHARACTER}"


class Delta(NamedTuple):
    """Text that a reply has grown by.

    Attributes:
        channel: "content", "reasoning" or "tool_call".
        text: whole characters; never a control token.
    """

    channel: Channel
    text: str


class Stream:
    """A reply that grows. Make one with ``Renderer.stream``.

    Deltas are what was said, as it was said: the line breaks that a format puts around reasoning and
    calls are in them, and ``finish`` is what takes those away. Bytes of a character that is not whole
    yet are held back, and so is text that may turn out to be the start of a stop.

    Example:
        >>> stream = renderer.stream()
        >>> for token in tokens:
        ...     for delta in stream.feed([token]):
        ...         print(delta.text, end="")
        >>> stream.finish().message["content"]
        'hi'
    """

    def __init__(self, form: Format, tokenizer: Tokenizer, tools: Tools, begins: Channel) -> None:
        """Starts after the generation prompt, in the channel that the reply begins in."""
        self._form, self._tokenizer, self._tools = form, tokenizer, tools
        self._channels: dict[int, Channel] = {
            tokenizer.control[name]: channel
            for name, channel in form.channels.items()
            if name in tokenizer.control
        }
        self._stops = frozenset(stop_tokens(form, tokenizer))
        self._texts = tuple(stop for stop in form.stops if stop not in form.controls)
        self._channel: Channel = begins
        self._ids: list[int] = []
        self._header: list[int] = []
        self._run = _Run(tokenizer)
        self._held = ""
        self._ended = False

    def feed(self, ids: Any, *, last: bool = False) -> list[Delta]:
        """Takes the ids that were sampled next.

        However a reply is cut into feeds, its deltas say the same in the same channels.

        Args:
            ids: int ``[n]``, after those fed before.
            last: whether no more will come, so that what was held back is given out.

        Returns:
            What can be told by now, in order.

        Raises:
            RenderError: where ids follow the stop, or an entry is no id.
        """
        found: list[Delta] = []
        given = to_ids(ids, "reply").tolist()
        for place, token in enumerate(given):
            if self._ended:
                raise ids_after_stop("reply", len(given) - place)
            self._ids.append(token)
            if token in self._stops or self._tokenizer.name(token) is not None:
                self._tell(found, self._run.end(), holds=False)
                self._ended |= token in self._stops
                self._pass(token)
            elif self._channel == "header":
                self._header.append(token)
            else:
                self._run.add(token)
                if self._texts:  # the very token that completes a stop ends the reply
                    self._tell(found, self._run.read())
        self._tell(found, self._run.end() if last else self._run.read(), holds=not last)
        return found

    def finish(self) -> Parsed:
        """What the whole reply says, as ``Renderer.parse`` reads it.

        Raises:
            RenderError: where ids follow the stop.
        """
        return parse(self._form, np.array(self._ids, np.int32), self._tokenizer, self._tools)

    def _pass(self, token: int) -> None:
        """Passes a control token, which may lead into another channel."""
        leads = self._channels.get(token)
        if leads == "header" or (leads is None and self._channel == "header"):
            self._header.append(token)
        elif leads is not None and self._channel == "header":
            leads = self._form.channel_of(np.array(self._header, np.int32), self._tokenizer)
            self._header = []
        if leads is not None:
            self._channel = leads

    def _tell(self, found: list[Delta], text: str, *, holds: bool = True) -> None:
        """Gives text out up to a stop that is a text, holding back what may be the start of one."""
        text = self._held + text
        for stop in self._texts:
            before, stopped, _ = text.partition(stop)
            if stopped:
                text, holds, self._ended = before, False, True
        kept = max((_begun(text, stop) for stop in self._texts), default=0) if holds else 0
        text, self._held = text[: len(text) - kept], text[len(text) - kept :]
        if text and found and found[-1].channel == self._channel:
            text = found.pop().text + text
        if text:
            found.append(Delta(self._channel, text))


class _Run:
    """Ordinary tokens in a row, decoded as far as their characters are whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Starts an empty run."""
        self._tokenizer = tokenizer
        self._forget()

    def _forget(self) -> None:
        """Makes the run empty."""
        self._ids: list[int] = []
        self._fresh = 0
        self._told = 0

    def add(self, token: int) -> None:
        """Takes one more token."""
        self._ids.append(token)
        self._fresh += 1

    def read(self) -> str:
        """The characters that are whole by now, and were not read before."""
        if not self._fresh:
            return ""
        text = self._tokenizer.decode(self._ids)
        whole = text.rstrip(_CUT)
        new, self._told = whole[self._told :], max(self._told, len(whole))
        if len(whole) == len(text):
            # Some decoders treat the first token of a text in a way of its own: the tokens that were
            # read last stand before those to come, and nothing else is decoded again.
            self._ids = self._ids[-self._fresh :]
            self._told = len(self._tokenizer.decode(self._ids))
            self._fresh = 0
        return new

    def end(self) -> str:
        """All that was not read, broken characters too. The run is empty after it."""
        text = self._tokenizer.decode(self._ids)[self._told :] if self._fresh else ""
        self._forget()
        return text


def _begun(text: str, stop: str) -> int:
    """Length of the longest end of a text that a stop begins with."""
    longest = min(len(text), len(stop) - 1)
    return next(n for n in range(longest, -1, -1) if stop.startswith(text[len(text) - n :]))
