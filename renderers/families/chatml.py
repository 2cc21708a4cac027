"""ChatML: ``<|im_start|>role``, newline, content, ``<|im_end|>``, newline. No default system."""

from collections.abc import Sequence

import numpy as np

from mintjax.renderers.format import Format, Tools
from mintjax.renderers.messages import Spoken
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.reading import Reading
from mintjax.renderers.tokenizer import Tokenizer

_END_OF_TEXT = "<|endoftext|>"


class ChatML(Format):
    """Plain ChatML.

    The newline after ``<|im_end|>`` is never sampled: it belongs to the next header. A reply that
    ended with ``<|endoftext|>`` or at a length limit is closed by an ``<|im_end|>`` that is not
    marked as sampled.
    """

    name = "chatml"
    controls = ("<|im_start|>", "<|im_end|>")
    stops = ("<|im_end|>",)

    def between(self, before: str | None, after: Spoken | None) -> tuple[str, str]:
        """See ``Format.between``."""
        close = "" if before is None else "<|im_end|>\n"
        return close, "" if after is None else f"<|im_start|>{after.role}\n"

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        end = [Own("<|im_end|>")] if message.role == "assistant" else []
        return [Said(message.content), *end]

    def ends(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """See ``Format.ends``."""
        return (tokenizer.control[_END_OF_TEXT],) if _END_OF_TEXT in tokenizer.control else ()

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``."""
        return Reading(tokenizer.decode(body))
