"""A prompt as the clients take it: chunks of token ids."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class EncodedTextChunk:
    """A run of token ids.

    Attributes:
        tokens: the ids, kept as a tuple.
        type: the kind of chunk; there is this one.
    """

    tokens: Sequence[int]
    type: Literal["encoded_text"] = "encoded_text"

    def __post_init__(self) -> None:
        """Take any iterable of integers, and nothing else."""
        if self.type != "encoded_text":
            raise ValueError(
                f"type: expected 'encoded_text', got {self.type!r}; models here read text only"
            )
        object.__setattr__(self, "tokens", _ids(self.tokens))

    @property
    def length(self) -> int:
        """How many ids."""
        return len(self.tokens)


@dataclass(frozen=True)
class ModelInput:
    """Chunks of token ids, read one after the other. No method changes it: each returns a new one.

    Example:
        >>> ModelInput.from_ints(tokens=[1, 2]).append_int(3).to_ints()
        [1, 2, 3]
    """

    chunks: Sequence[EncodedTextChunk]

    def __post_init__(self) -> None:
        """Refuse anything that is no chunk."""
        chunks = tuple(self.chunks)
        for place, chunk in enumerate(chunks):
            if not isinstance(chunk, EncodedTextChunk):
                raise TypeError(
                    f"chunks[{place}]: expected an EncodedTextChunk, got {type(chunk).__name__}; "
                    f"ModelInput.from_ints makes one of a list of ids"
                )
        object.__setattr__(self, "chunks", chunks)

    @classmethod
    def from_ints(cls, tokens: Iterable[int]) -> "ModelInput":
        """One chunk of the given ids; a ``Rendered`` will do."""
        return cls([EncodedTextChunk(tuple(tokens))])

    @classmethod
    def empty(cls) -> "ModelInput":
        """No chunk."""
        return cls([])

    def to_ints(self) -> list[int]:
        """All ids."""
        return [token for chunk in self.chunks for token in chunk.tokens]

    @property
    def length(self) -> int:
        """How many ids."""
        return sum(chunk.length for chunk in self.chunks)

    def append(self, chunk: EncodedTextChunk) -> "ModelInput":
        """The same with a chunk more."""
        return ModelInput([*self.chunks, chunk])

    def append_int(self, token: int) -> "ModelInput":
        """The same with one id more, as a chunk of its own."""
        return self.append(EncodedTextChunk((token,)))


def _ids(tokens: Iterable[int]) -> tuple[int, ...]:
    """Token ids as Python integers; numpy's are taken, floats and texts are not."""
    ids = tuple(tokens)
    if set(map(type, ids)) <= {int}:
        return ids
    for place, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, int | np.integer):
            raise TypeError(
                f"tokens[{place}]: expected a token id, got {token!r}; encode texts with the tokenizer first"
            )
    return tuple(map(int, ids))
