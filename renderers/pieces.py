"""What a format writes, and its encoding: control tokens by id, text runs in one pass each."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from mintjax.renderers.errors import RenderError
from mintjax.renderers.tokenizer import Tokenizer


class Own(NamedTuple):
    """The format's own words. Control tokens that it names go out by id."""

    text: str


class Said(NamedTuple):
    """A caller's words: ordinary characters, whatever they spell."""

    text: str


Piece = Own | Said


class Source(IntEnum):
    """What a token is, and who wrote it.

    HEADER: the format's words before a message, the generation prompt and BOS among them. CONTENT: a
    caller's words, in a message or a tool schema. FORMAT: the format's words inside a message. GLUE:
    what closes a message. PREFILL: a reply's first words, given by the caller. SAMPLED: the policy's.
    """

    HEADER = 0
    CONTENT = 1
    FORMAT = 2
    GLUE = 3
    PREFILL = 4
    SAMPLED = 5


# Whether a token is sampled, its message, and its source.
_Mark = tuple[bool, int, Source]


class Tokens(NamedTuple):
    """Aligned arrays of n tokens.

    Attributes:
        ids: int32 ``[n]``.
        sampled: bool ``[n]``; the policy emits it (or would, in a supervised example).
        message: int32 ``[n]``; number of the message the token belongs to, -1 for what belongs to
            none.
        source: int8 ``[n]``; a ``Source``.
    """

    ids: np.ndarray
    sampled: np.ndarray
    message: np.ndarray
    source: np.ndarray


class Writer:
    r"""Collects pieces in order, and encodes them. Lives inside one rendering.

    A token belongs to the piece in which its first character lies, so a token that merges the end
    of a header with the start of a reply is not marked as sampled: no policy can emit it after that
    header.

    Example:
        >>> writer = Writer(tokenizer, ("<|im_start|>", "<|im_end|>"))
        >>> writer.write([Own("<|im_start|>user\n"), Said("hi"), Own("<|im_end|>")],
        ...              message=0, own=Source.FORMAT)
        >>> writer.tokens().ids
        array([151644, 872, 198, 6023, 151645], dtype=int32)
    """

    def __init__(self, tokenizer: Tokenizer, controls: Sequence[str]) -> None:
        """Starts an empty stream for a format with these control tokens."""
        self._tokenizer = tokenizer
        self._controls = _pattern(tuple(controls))
        self._run: list[tuple[str, _Mark]] = []
        self._said = False  # whether the run holds a caller's words
        self._ids: list[int] = []
        # Of each id: whether it is sampled, its message and its source.
        self._sampled: list[bool] = []
        self._message: list[int] = []
        self._source: list[Source] = []

    def write(
        self,
        pieces: Iterable[Piece],
        *,
        message: int,
        own: Source,
        said: Source = Source.CONTENT,
        sampled: bool = False,
    ) -> None:
        """Appends pieces of one message; ``own`` and ``said`` are the sources of its two kinds.

        Raises:
            RenderError: where a text holds half of a surrogate pair.
        """
        for piece in pieces:
            if not piece.text:
                continue
            if isinstance(piece, Said):
                _check_unicode(piece.text, message)
                self._run.append((piece.text, (sampled, message, said)))
                self._said = True
                continue
            mark = (sampled, message, own)
            for index, part in enumerate(_parts(self._controls, piece.text)):
                if index % 2:  # the odd places hold control tokens
                    self.control(self._tokenizer.control[part], *mark)
                elif part:
                    self._run.append((part, mark))

    def control(self, token: int, sampled: bool, message: int, source: Source) -> None:
        """Appends a control token by id."""
        self.cut()
        self._ids.append(token)
        self._mark((sampled, message, source), 1)

    def cut(self) -> None:
        """Ends the text run here: no token will span this place."""
        run, self._run = self._run, []
        said, self._said = self._said, False
        if not run:
            return
        text = "".join(part for part, _ in run)
        if said:
            ids, spans = self._tokenizer.encode(text)
            self._check_whole(text, run, ids, spans)
        else:
            ids, spans = self._tokenizer.encode_fixed(text)
        starts = [begin for begin, _ in spans] if len(run) > 1 else []
        end = placed = 0
        for part, mark in run:
            end += len(part)
            upto = bisect_left(starts, end) if len(run) > 1 else len(ids)
            self._mark(mark, upto - placed)
            placed = upto
        self._ids += ids

    def tokens(self) -> Tokens:
        """All that was written, encoded."""
        self.cut()
        return Tokens(
            np.array(self._ids, np.int32),
            np.frombuffer(bytes(self._sampled), bool),
            np.array(self._message, np.int32),
            np.frombuffer(bytes(self._source), np.int8),
        )

    def _mark(self, mark: _Mark, count: int) -> None:
        """Gives the next ids a mark."""
        sampled, message, source = mark
        self._sampled += [sampled] * count
        self._message += [message] * count
        self._source += [source] * count

    def _check_whole(
        self,
        text: str,
        run: Sequence[tuple[str, _Mark]],
        ids: list[int],
        spans: list[tuple[int, int]],
    ) -> None:
        """Refuses a text of which the vocabulary drops a character."""
        lost = self._tokenizer.lost(text, ids, spans)
        if lost is None:
            return
        ends = list(accumulate(len(part) for part, _ in run))
        _, message, _ = run[bisect_right(ends, lost)][1]
        raise RenderError(
            f"message {message}: the vocabulary has no token for the character {text[lost]!r} and "
            "would drop it; remove it from the text"
        )


@lru_cache(maxsize=1024)
def _parts(controls: re.Pattern[str] | None, text: str) -> tuple[str, ...]:
    """The words of a format, cut at its control tokens, which stand at the odd places."""
    # re.split puts what the group matched there.
    return (text,) if controls is None else tuple(controls.split(text))


@lru_cache(maxsize=64)
def _pattern(controls: tuple[str, ...]) -> re.Pattern[str] | None:
    """What finds a format's control tokens, the longest first."""
    names = "|".join(map(re.escape, sorted(controls, key=len, reverse=True)))
    return re.compile(f"({names})") if controls else None


def _check_unicode(text: str, message: int) -> None:
    """Refuses a text that has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RenderError(
            f"message {message}: character {error.start} is half of a surrogate pair, which has no "
            "UTF-8 form; repair the text where it was decoded"
        ) from None
