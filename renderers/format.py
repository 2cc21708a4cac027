"""What a chat format is: a table of control tokens, and the few functions that the emitter calls."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from mintjax.renderers.messages import Spoken
from mintjax.renderers.pieces import Piece
from mintjax.renderers.reading import Reading
from mintjax.renderers.tokenizer import Tokenizer

Tools = Sequence[Mapping[str, Any]]
Channel = Literal["content", "reasoning", "tool_call", "header"]


class Finish(NamedTuple):
    """How a sampled reply ended.

    Attributes:
        how: by a stop of the format, by another token that ends a text, or by a length limit.
        body: int32 ``[n]``, the ids without the token that ended them.
        ending: what of ``Format.between`` the ids have written already.
    """

    how: Literal["stop", "end_of_text", "length"]
    body: np.ndarray
    ending: str


class Format(ABC):
    """One chat format, a stateless value; a family subclasses it, or another family.

    The emitter writes, for every message, what ``between`` says stands before it and then its
    ``body``. It leaves out what the stream already holds: a reply ends with a stop, and that may be
    the start of what ``between`` closes it with, or reach into the next header.

    Attributes:
        name: the renderer's name.
        controls: the control tokens that the format writes or reads; the vocabulary must have them.
        stops: what ends a reply: control tokens, or one text that the sampler has to look for.
        prefix: what a conversation starts with, before any message.
        writes_bos: whether it starts with the vocabulary's BOS, where it has one.
        declares_tools: whether the format writes tool schemas.
        calls_tools: whether it writes tool calls; by default as ``declares_tools``.
        reasons: whether it writes reasoning.
        channels: the control tokens at which a reply passes from one channel to another, and the
            channel that begins there; after a header ``channel_of`` decides.
        begins: the channel that a reply begins in, after the generation prompt; see
            ``begins_after``.
    """

    name: ClassVar[str]
    controls: ClassVar[tuple[str, ...]]
    stops: ClassVar[tuple[str, ...]]
    prefix: ClassVar[str] = ""
    writes_bos: ClassVar[bool] = False
    declares_tools: ClassVar[bool] = False
    calls_tools: ClassVar[bool | None] = None
    reasons: ClassVar[bool] = False
    channels: ClassVar[Mapping[str, Channel]] = {}
    begins: ClassVar[Channel] = "content"

    def __repr__(self) -> str:
        """The family's name; there is nothing else to tell."""
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        """Whether another format is of the same family and holds the same."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        """Goes with ``__eq__``."""
        return hash((type(self), *sorted(vars(self).items())))

    def dated(self, date: str) -> "Format | None":
        """This format with a day written into its prompt; None where it writes none."""
        return None

    def template(self, spoken: Sequence[Spoken]) -> Sequence[Spoken]:
        """What the official template makes of a whole conversation before it writes it.

        Used for ``history="template"``. Here belong the things by which a template rewrites what
        was said: reasoning that it strips, messages that it moves.
        """
        return [self.kept(message) for message in spoken]

    def kept(self, message: Spoken) -> Spoken:
        """One message as the template writes it where it is the last: nothing of it is forgotten.

        Used for ``history="keep"`` and for extensions, which never see history.
        """
        return message

    def opening(self, spoken: Sequence[Spoken], tools: Tools) -> Sequence[Spoken]:
        """The messages that a conversation begins with: a default system message, declared tools.

        Called at the start of a conversation only, after ``template`` or ``kept``. Messages that no
        caller gave have number -1.

        Args:
            spoken: the messages, at least one.
            tools: the tools to declare, as they were given; empty unless ``declares_tools``.
        """
        return spoken

    @abstractmethod
    def between(
        self, before: str | None, after: Spoken | None
    ) -> tuple[str, str | Sequence[Piece]]:
        """What stands between two messages: the close of the first, the header of the second.

        A reply that is awaited comes as an assistant's message without content whose reasoning is
        "": its header is the generation prompt, and the header of a reply as ``kept`` leaves it must
        be the same.

        Args:
            before: role of the first; None at the start of the conversation.
            after: the second; None at the end of a conversation whose last message is the
                assistant's.
        """

    @abstractmethod
    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """A message without what ``between`` writes. A reply's includes the stop that ends it.

        Args:
            message: any message.
            following: role of the next one, which decides the stop in formats where a reply ends
                with the next role's marker; None at the end.
        """

    def begins_after(self, before: str | None) -> Channel:
        """The channel that a reply to a message of this role begins in, where the role decides."""
        return self.begins

    def written(self, ending: str) -> str:
        """What of ``between`` a reply that ends with these words of the format has written."""
        return ending

    def ends(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Ids besides ``stops`` at which a reply is over."""
        return ()

    @abstractmethod
    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """What a reply says; the inverse of ``body``.

        Args:
            body: int32 ``[n]``, its ids without the one that ended it.
            tokenizer: the vocabulary.
            tools: the tools that were declared; empty where they are not known.
        """

    def cut(self, reading: Reading) -> Reading:
        """What a reply says that was cut off, where that differs from what ``read`` says of it."""
        return reading

    def channel_of(self, header: np.ndarray, tokenizer: Tokenizer) -> Channel:
        """The channel that a reply enters after a header, where the header's words decide.

        Asked where a token of ``channels`` ends the channel "header".

        Args:
            header: int32 ``[n]``, its ids with the control tokens that it begins with.
            tokenizer: the vocabulary.
        """
        return "content"

    def finish(
        self, ids: np.ndarray, stops: Sequence[int], tokenizer: Tokenizer, where: str
    ) -> Finish:
        """How a sampled reply ended.

        Args:
            ids: int32 ``[n]``, the reply, verbatim; no stop token stands before the last.
            stops: ids of the stop tokens (:func:`stop_tokens`).
            tokenizer: the vocabulary.
            where: whose the ids are, for errors.

        Raises:
            RenderError: where ids follow a stop that is a text.
        """
        last = int(ids[-1]) if ids.size else None
        if last is None or last not in stops:
            return Finish("length", ids, "")
        name = tokenizer.name(last)
        if name in self.stops:
            return Finish("stop", ids[:-1], self.written(name))
        return Finish("end_of_text", ids[:-1], "")

    def mend(self, body: np.ndarray, tokenizer: Tokenizer, begins: Channel) -> str:
        """What closes a reply that was cut off, before ``between`` closes the message.

        A reply that was cut off inside its reasoning gets the token that ends reasoning, so that
        what follows is not read as more of it. A tool call is never repaired.

        Args:
            body: int32 ``[n]``, its ids without the one that ended it.
            tokenizer: the vocabulary.
            begins: the channel that it begins in.
        """
        leaving = next((name for name, to in self.channels.items() if to == "content"), "")
        ids = {tokenizer.control[name]: name for name in self.channels}
        channel = begins
        for token in body[np.isin(body, list(ids))].tolist():
            # A tool call that is begun inside reasoning is part of it.
            if channel != "reasoning" or ids[token] == leaving:
                channel = self.channels[ids[token]]
        return leaving if channel == "reasoning" else ""


def stop_tokens(form: Format, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids at which sampling must stop: the format's stops, where they are tokens, then others."""
    own = (tokenizer.control[stop] for stop in form.stops if stop in form.controls)
    return tuple(dict.fromkeys((*own, *form.ends(tokenizer))))


def calls_tools(form: Format) -> bool:
    """Whether a format writes tool calls and tool results as such."""
    return form.declares_tools if form.calls_tools is None else form.calls_tools
