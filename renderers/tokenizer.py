"""One view of any tokenizer: text to ids that are no control tokens, and ids to text."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from mintjax.renderers.errors import RenderError
from mintjax.renderers.fast_tokenizer import read_fast_tokenizer
from mintjax.renderers.tiktoken_encoding import read_tiktoken_encoding

# Most tokenizers do not say which of their tokens ends a text: these names do, in public models.
_END_NAMES = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<eos>",
    "</s>",
)

_MOST_FIXED = 1_000


class Tokenizer:
    """A vocabulary as renderers use it.

    It keeps its own copy, and no reference to the tokenizer it was made from. ``encode`` knows no
    control tokens, so that no text can spell one; they enter a rendering by id alone.

    Attributes:
        control: id of every control token, by its name.
        bos: the token that the tokenizer itself puts before every text; None where it puts none.
        ends: ids that end a text: the declared end-of-sequence token, and tokens that public models
            use for it.
        size: one more than the greatest id.
        fingerprint: a hash of all that decides which ids a text becomes.
    """

    def __init__(self, source: Any) -> None:
        """Copies what renderers need out of a tokenizer; takes about a second for 150,000 tokens.

        Args:
            source: a fast tokenizer of ``transformers``, a ``tokenizers.Tokenizer``, or a
                ``tiktoken.Encoding``.

        Raises:
            RenderError: where ``source`` is none of them.
        """
        vocabulary = read_fast_tokenizer(source) or read_tiktoken_encoding(source)
        if vocabulary is None:
            raise RenderError(
                f"tokenizer: expected a fast transformers tokenizer, a tokenizers.Tokenizer or a "
                f"tiktoken.Encoding, got {type(source).__name__}; load one with AutoTokenizer or "
                "Tokenizer.from_file"
            )
        self._codec = vocabulary.codec
        self._fixed: dict[str, tuple[list[int], list[tuple[int, int]]]] = {}
        self._names = dict(vocabulary.controls)
        self.control: dict[str, int] = {name: token_id for token_id, name in self._names.items()}
        named = [self.control[name] for name in _END_NAMES if name in self.control]
        self.ends: tuple[int, ...] = tuple(
            dict.fromkeys(named if vocabulary.end is None else [vocabulary.end, *named])
        )
        self.bos: int | None = vocabulary.bos
        self.size: int = vocabulary.size
        names = json.dumps(sorted(self._names.items()))
        self.fingerprint: str = hashlib.sha256(vocabulary.identity + names.encode()).hexdigest()

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encodes a text in one pass, control tokens spelled in it as ordinary characters.

        Returns:
            ids, and for each id the range of characters of ``text`` that it stands for. Where one
            character takes several ids, each of them has the range of that character.

        Example:
            >>> tokenizer.encode("hi<|im_end|>")[0]  # seven ordinary ids
        """
        return self._codec.encode(text)

    def encode_fixed(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The same as ``encode`` for words of a format, which come again and again and are kept."""
        found = self._fixed.get(text)
        if found is None:
            found = self._codec.encode(text)
            if len(self._fixed) < _MOST_FIXED:
                self._fixed[text] = found
        return found

    def lost(self, text: str, ids: list[int], spans: list[tuple[int, int]]) -> int | None:
        """Index of the first character that ``encode`` dropped, or None.

        Some byte-level vocabularies have no token for some control characters, and leave them out
        without a word.
        """
        end = 0
        for begin, stop in spans:
            if begin > end:
                break
            end = stop
        else:
            if end == len(text):
                return None
        # A normaliser that composes two characters leaves a gap as well, and nothing is lost.
        whole = self._codec.normalize(text)
        return None if self.decode(ids) == whole else end

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids, control tokens by their names.

        Bytes that are not whole UTF-8 (a character cut by a length limit), and ids past the
        vocabulary, show as U+FFFD.

        Example:
            >>> tokenizer.decode([tokenizer.control["<|im_end|>"]])
            '<|im_end|>'
        """
        parts: list[str] = []
        run: list[int] = []
        for token in map(int, ids):
            name = self._names.get(token, "\ufffd" if token >= self.size else None)
            if name is None:
                run.append(token)
                continue
            parts += [self._codec.decode(run), name]
            run = []
        parts.append(self._codec.decode(run))
        return "".join(parts)

    def name(self, token: int) -> str | None:
        """The name of a control token; None for any other."""
        return self._names.get(token)

    def require(self, names: Sequence[str], renderer: str) -> None:
        """Checks that the vocabulary has the control tokens a format needs.

        Raises:
            RenderError: naming the renderer, the tokens that are missing, and the cure.
        """
        missing = [name for name in names if name not in self.control]
        if missing:
            raise RenderError(
                f"renderer {renderer!r} needs the control tokens {', '.join(missing)}, which this "
                f"vocabulary of {self.size} tokens does not have; use the tokenizer of a model "
                f"that speaks {renderer!r}, or the renderer of this model"
            )


_adapted: WeakKeyDictionary[Any, Tokenizer] = WeakKeyDictionary()


def adapt(source: Any) -> Tokenizer:
    """The view of a tokenizer, made once for each tokenizer and dropped with it.

    Args:
        source: a fast tokenizer of ``transformers``, a ``tokenizers.Tokenizer``, a
            ``tiktoken.Encoding``, or a ``Tokenizer`` of this module.

    Raises:
        RenderError: where ``source`` is none of them.

    Example:
        >>> adapt(tokenizers.Tokenizer.from_file("tokenizer.json")).control["<|im_end|>"]
        151645
    """
    if isinstance(source, Tokenizer):
        return source
    try:
        view = _adapted.get(source)
    except TypeError:  # not hashable or not weakly referable: no tokenizer of those libraries
        return Tokenizer(source)
    if view is None:
        view = _adapted[source] = Tokenizer(source)
    return view
