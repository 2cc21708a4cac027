"""Encodings of the ``tiktoken`` library."""

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from mintjax.renderers.vocabulary import Vocabulary

_USED = ("encode_ordinary", "decode_bytes", "decode_tokens_bytes", "special_tokens_set", "n_vocab")


def read_tiktoken_encoding(source: Any) -> Vocabulary | None:
    """The vocabulary of a ``tiktoken.Encoding``; None where ``source`` is none.

    Control tokens are its special tokens. An encoding puts nothing before a text, and declares no
    token that ends one.

    Args:
        source: an encoding, made with the special tokens of the model.

    Example:
        >>> read_tiktoken_encoding(encoding).controls[163586]
        '<|im_end|>'
    """
    if not all(hasattr(source, name) for name in _USED):
        return None
    controls = {source.encode_single_token(name): name for name in source.special_tokens_set}
    return Vocabulary(
        _Plain(copy.copy(source)),
        controls,
        size=source.n_vocab,
        bos=None,
        end=None,
        identity=pickle.dumps(source),
    )


class _Plain:
    """A ``Codec`` over an encoding, whose ordinary methods know no special tokens."""

    def __init__(self, encoding: Any) -> None:
        """Takes an encoding."""
        self._encoding = encoding

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """See ``Codec.encode``."""
        ids = self._encoding.encode_ordinary(text)
        if not ids:
            return [], []
        sizes = np.array([len(token) for token in self._encoding.decode_tokens_bytes(ids)])
        ends = np.cumsum(sizes)
        # A byte belongs to the character that the last leading byte up to it began.
        written = np.frombuffer(text.encode(), np.uint8)
        character = np.cumsum((written & 0xC0) != 0x80) - 1
        spans = zip(character[ends - sizes], character[ends - 1] + 1, strict=True)
        return ids, [(int(begin), int(end)) for begin, end in spans]

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Codec.decode``."""
        try:
            said = self._encoding.decode_bytes(ids)
        except KeyError:  # between the ordinary tokens and the special ones there can be a gap
            said = b"".join(map(self._bytes, ids))
        return said.decode(errors="replace")

    def normalize(self, text: str) -> str:
        """See ``Codec.normalize``."""
        return text

    def _bytes(self, token: int) -> bytes:
        """The bytes of one token; U+FFFD's where there is no such token."""
        try:
            return self._encoding.decode_single_token_bytes(token)
        except KeyError:
            return "\N{REPLACEMENT CHARACTER}".encode()
