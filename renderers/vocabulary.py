"""What renderers need of a tokenizer, whichever library it is of."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class Codec(Protocol):
    """Text to ids and back; no text becomes a control token."""

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids, and for each the range of characters of ``text`` that it stands for.

        Where one character takes several ids, each of them has the range of that character.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids below the vocabulary's size; what is no UTF-8 shows as U+FFFD."""
        ...

    def normalize(self, text: str) -> str:
        """What a text becomes before it is encoded."""
        ...


class Vocabulary(NamedTuple):
    """A tokenizer as its adapter reads it.

    Attributes:
        codec: a copy of it without its control tokens.
        controls: name of every control token, by its id.
        size: one more than the greatest id.
        bos: the token that it puts before every text; None where it puts none.
        end: the token that it declares to end a text; None where it declares none.
        identity: bytes that differ between codecs that differ.
    """

    codec: Codec
    controls: Mapping[int, str]
    size: int
    bos: int | None
    end: int | None
    identity: bytes
