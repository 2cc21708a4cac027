"""What a chat format is: the few functions from which the emitter makes every rendering."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from mintjax.renderers.messages import Spoken
from mintjax.renderers.pieces import Piece
from mintjax.renderers.sampled import ids_after_stop
from mintjax.renderers.tokenizer import Tokenizer
from mintjax.types import Message

Tools = Sequence[Mapping[str, Any]]


class Finish(NamedTuple):
    """How a sampled reply ended.

    Attributes:
        how: by the format's stop, by another token that ends a text, or by a length limit.
        body: int32 ``[n]``, the ids without the token that ended them.
        ending: what of ``Format.between`` the ids have written already.
    """

    how: Literal["stop", "end_of_text", "length"]
    body: np.ndarray
    ending: str


class Format(ABC):
    """One chat format. Stateless; a family subclasses it, or another family.

    Attributes:
        name: the renderer's name.
        controls: the control tokens that the format writes; the vocabulary must have them all.
        stop: what ends a reply: a control token, or a text that the sampler has to look for.
        declares_tools: whether the format writes tool schemas, tool calls and tool results as such.
        writes_bos: whether a conversation starts with the vocabulary's BOS, where it has one.
    """

    name: ClassVar[str]
    controls: ClassVar[tuple[str, ...]]
    stop: ClassVar[str]
    declares_tools: ClassVar[bool] = False
    writes_bos: ClassVar[bool] = False

    def __repr__(self) -> str:
        """The family's name; there is nothing else to tell."""
        return f"{type(self).__name__}()"

    @abstractmethod
    def between(self, before: str | None, after: str | None) -> tuple[str, str]:
        """What stands between two messages: the close of the first, the header of the second.

        The header of an assistant's message is the generation prompt. The emitter leaves out what
        the stream already holds: a reply ends with ``stop``, and that may be the start of the
        close, or reach into the next header.

        Args:
            before: role of the first; None at the start of the conversation.
            after: role of the second; None at the end of a conversation whose last message is the
                assistant's.
        """

    @abstractmethod
    def system(self, given: Spoken | None, tools: Tools) -> Sequence[Piece] | None:
        """The body of the first system message, tool schemas included; None for no message.

        Args:
            given: the caller's system message; None where the conversation does not start with one.
            tools: the tools to declare, as they were given.
        """

    @abstractmethod
    def body(self, message: Spoken) -> Sequence[Piece]:
        """The body of a message: all but what ``between`` writes, and the ``stop`` of a reply."""

    @abstractmethod
    def ends(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Ids besides ``stop`` at which a reply is over."""

    @abstractmethod
    def read(self, finish: Finish, tokenizer: Tokenizer) -> tuple[Message, tuple[str, ...]]:
        """The message that a reply says, and what in it cannot be read. The inverse of ``body``."""

    def finish(self, ids: np.ndarray, tokenizer: Tokenizer, where: str) -> Finish:
        """How a sampled reply ended.

        Args:
            ids: int32 ``[n]``, the reply, verbatim.
            tokenizer: the vocabulary.
            where: whose the ids are, for errors.

        Raises:
            RenderError: where ids follow the stop.
        """
        stops = stop_tokens(self, tokenizer)
        early = np.flatnonzero(np.isin(ids[:-1], stops))
        if early.size:
            raise ids_after_stop(where, len(ids) - 1 - int(early[0]))
        if not ids.size or ids[-1] not in stops:
            return Finish("length", ids, "")
        if self.stop in self.controls and ids[-1] == tokenizer.control[self.stop]:
            return Finish("stop", ids[:-1], self.stop)
        return Finish("end_of_text", ids[:-1], "")


def stop_tokens(form: Format, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids at which sampling must stop: the format's stop, where it is a token, then others."""
    own = (tokenizer.control[form.stop],) if form.stop in form.controls else ()
    return tuple(dict.fromkeys((*own, *form.ends(tokenizer))))
