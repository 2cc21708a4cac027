"""Tokenizers of the ``tokenizers`` library, and those of ``transformers`` that wrap one."""

import json
import re
from collections.abc import Sequence
from typing import Any

from mintjax.renderers.vocabulary import Vocabulary

# Added tokens that are ordinary text all the same: blanks in a row, and Gemma's tags of HTML.
_TEXT = re.compile(
    r"\s+|▁+|</?(?:h[1-6]|[abisu]|bbox|blockquote|body|caption|code|div|em|footer|html|iframe|img|li|"
    r"span|strong|sub|sup|table|tbody|td|tfoot|th|thead|tr|ul)>"
)


def read_fast_tokenizer(source: Any) -> Vocabulary | None:
    """The vocabulary of a fast tokenizer; None where ``source`` is none.

    Control tokens are all added tokens that are not ordinary text, as runs of blanks and HTML tags
    in some vocabularies are.

    Args:
        source: a ``tokenizers.Tokenizer``, or a tokenizer of ``transformers`` that has one.

    Example:
        >>> read_fast_tokenizer(tokenizers.Tokenizer.from_file("tokenizer.json")).size
        151669
    """
    backend = getattr(source, "backend_tokenizer", source)
    if not hasattr(backend, "to_str") or not hasattr(backend, "get_added_tokens_decoder"):
        return None
    controls = {
        token_id: token.content
        for token_id, token in backend.get_added_tokens_decoder().items()
        if not _is_text(token.content, token.special)
    }
    first = backend.encode("").ids[:1] if source is backend else list(source.encode(""))[:1]
    plain = json.loads(backend.to_str())
    texts = [
        token for token in plain["added_tokens"] if _is_text(token["content"], token["special"])
    ]
    # The post-processor writes BOS and trims spaces off offsets; truncation cuts in silence.
    plain |= {"post_processor": None, "truncation": None, "padding": None, "added_tokens": texts}
    written = json.dumps(plain)
    return Vocabulary(
        _Plain(type(backend).from_str(written)),
        controls,
        size=max([backend.get_vocab_size(), *(token_id + 1 for token_id in controls)]),
        bos=first[0] if first else None,
        end=getattr(source, "eos_token_id", None),
        identity=written.encode(),
    )


class _Plain:
    """A ``Codec`` over a ``tokenizers.Tokenizer`` without control tokens."""

    def __init__(self, tokenizer: Any) -> None:
        """Takes a tokenizer that nobody else changes."""
        self._tokenizer = tokenizer

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """See ``Codec.encode``."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Codec.decode``."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def normalize(self, text: str) -> str:
        """See ``Codec.normalize``."""
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)


def _is_text(content: str, special: bool) -> bool:
    """Whether an added token is ordinary text, which a caller may write."""
    return not special and _TEXT.fullmatch(content) is not None
