r"""Llama 3.0: a header with the role, a blank line, the text, ``<|eot_id|>``. No default system.

Source: the ``chat_template`` of meta-llama/Meta-Llama-3-8B-Instruct.
"""

from collections.abc import Sequence

import numpy as np

from mintjax.renderers.format import Format, Tools
from mintjax.renderers.messages import Spoken
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.reading import Reading
from mintjax.renderers.tokenizer import Tokenizer


class Llama3(Format):
    """Blanks around a text are trimmed, by the template around replies too.

    A reply that is kept is not trimmed: what was sampled stays as it is.
    """

    name = "llama3"
    controls = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>")
    stops = ("<|eot_id|>",)
    writes_bos = True

    def template(self, spoken: Sequence[Spoken]) -> Sequence[Spoken]:
        """See ``Format.template``."""
        return [trimmed(message) for message in spoken]

    def kept(self, message: Spoken) -> Spoken:
        """See ``Format.kept``."""
        return message if message.role == "assistant" else trimmed(message)

    def between(self, before: str | None, after: Spoken | None) -> tuple[str, str]:
        """See ``Format.between``."""
        close = "" if before is None else "<|eot_id|>"
        header = "" if after is None else f"<|start_header_id|>{after.role}<|end_header_id|>\n\n"
        return close, header

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        end = [Own("<|eot_id|>")] if message.role == "assistant" else []
        return [Said(message.content), *end]

    def ends(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """See ``Format.ends``."""
        return (tokenizer.control["<|end_of_text|>"],)

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``."""
        return Reading(tokenizer.decode(body))


def trimmed(message: Spoken) -> Spoken:
    """A message without blanks around its text, as the filter ``trim`` of templates leaves it."""
    return message._replace(content=message.content.strip())
