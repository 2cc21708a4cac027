r"""Gemma 3: turns of a user and the model, the system's text at the head of the first one.

Source: the ``chat_template`` of google/gemma-3-4b-it.
"""

from collections.abc import Sequence

import numpy as np

from mintjax.renderers.errors import RenderError
from mintjax.renderers.families.llama3 import trimmed
from mintjax.renderers.format import Format, Tools
from mintjax.renderers.messages import Spoken
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.reading import Reading
from mintjax.renderers.tokenizer import Tokenizer

# The role that follows a role; a system message has no turn of its own.
_FOLLOWS = {
    None: ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user",),
}


class Gemma3(Format):
    """Blanks around a text are trimmed, but for the system's, by the template around replies too.

    A reply that is kept is not trimmed: what was sampled stays as it is.
    """

    name = "gemma3"
    controls = ("<start_of_turn>", "<end_of_turn>", "<eos>")
    stops = ("<end_of_turn>",)
    writes_bos = True

    def template(self, spoken: Sequence[Spoken]) -> Sequence[Spoken]:
        """See ``Format.template``."""
        return [message if message.role == "system" else trimmed(message) for message in spoken]

    def kept(self, message: Spoken) -> Spoken:
        """See ``Format.kept``."""
        return trimmed(message) if message.role == "user" else message

    def between(self, before: str | None, after: Spoken | None) -> tuple[str, str]:
        """See ``Format.between``."""
        close = "" if before in (None, "system") else "<end_of_turn>\n"
        if after is None:
            return close, ""
        if after.role not in _FOLLOWS[before]:
            raise RenderError(
                f"{after.where}: {self.name!r} writes no {after.role} message "
                f"{'at the start' if before is None else f'after one of the {before}'}; let user "
                "and assistant take turns, the user first, and put a system message only before "
                "them and results of tools into the user's text"
            )
        if before == "system":
            return close, ""
        return close, f"<start_of_turn>{'model' if after.role == 'assistant' else 'user'}\n"

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        end = {"system": [Own("\n\n")], "assistant": [Own("<end_of_turn>")]}
        return [Said(message.content), *end.get(message.role, [])]

    def ends(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """See ``Format.ends``."""
        return (tokenizer.control["<eos>"],)

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``."""
        return Reading(tokenizer.decode(body))
