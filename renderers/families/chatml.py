"""ChatML: ``<|im_start|>role``, newline, content, ``<|im_end|>``, newline. No default system."""

from collections.abc import Sequence

from mintjax.renderers.format import Finish, Format, Tools
from mintjax.renderers.messages import Spoken
from mintjax.renderers.pieces import Piece, Said
from mintjax.renderers.tokenizer import Tokenizer
from mintjax.types import Message

_END_OF_TEXT = "<|endoftext|>"


class ChatML(Format):
    """Plain ChatML.

    The newline after ``<|im_end|>`` is never sampled: it belongs to the next header. A reply that
    ended with ``<|endoftext|>`` or at a length limit is closed by an ``<|im_end|>`` that is not
    marked as sampled.
    """

    name = "chatml"
    controls = ("<|im_start|>", "<|im_end|>")
    stop = "<|im_end|>"

    def between(self, before: str | None, after: str | None) -> tuple[str, str]:
        """See ``Format.between``."""
        close = "" if before is None else "<|im_end|>\n"
        return close, "" if after is None else f"<|im_start|>{after}\n"

    def system(self, given: Spoken | None, tools: Tools) -> Sequence[Piece] | None:
        """See ``Format.system``."""
        return None if given is None else self.body(given)

    def body(self, message: Spoken) -> Sequence[Piece]:
        """See ``Format.body``."""
        return [Said(message.content)]

    def ends(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """See ``Format.ends``."""
        return (tokenizer.control[_END_OF_TEXT],) if _END_OF_TEXT in tokenizer.control else ()

    def read(self, finish: Finish, tokenizer: Tokenizer) -> tuple[Message, tuple[str, ...]]:
        """See ``Format.read``."""
        return {"role": "assistant", "content": tokenizer.decode(finish.body)}, ()
