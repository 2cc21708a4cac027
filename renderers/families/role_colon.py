"""Plain text turns, ``User: content`` and a blank line: for models without control tokens."""

import re
from collections.abc import Sequence

import numpy as np

from mintjax.renderers.errors import RenderError
from mintjax.renderers.format import Finish, Format, Tools
from mintjax.renderers.messages import ROLES, Spoken
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.reading import Reading
from mintjax.renderers.sampled import ids_after_stop
from mintjax.renderers.tokenizer import Tokenizer

_HEADER = re.compile(rf"\n\n(?:{'|'.join(role.capitalize() for role in ROLES)}):")


class RoleColon(Format):
    r"""``Role: content`` with blank lines between; a reply ends with the user's next header.

    The stop is the text ``\n\nUser:``. The ids of a reply run up to and including the one that
    completes it, and what of the next header they hold is not written again. As no control tokens
    guard the turns, a message whose text would start one is refused.
    """

    name = "role_colon"
    controls = ()
    stops = ("\n\nUser:",)
    writes_bos = True

    def between(self, before: str | None, after: Spoken | None) -> tuple[str, str]:
        """See ``Format.between``."""
        if after is None:
            return "", ""
        return "" if before is None else "\n\n", f"{after.role.capitalize()}:"

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        forged = _HEADER.search(message.content)
        if forged:
            raise RenderError(
                f"{message.where}: its text holds {forged[0]!r}, which would start a turn in "
                f"{self.name!r}; remove the blank line before it"
            )
        # The text of a decoded sample has the space already that stands after the colon.
        said = Said(message.content if message.stopped else f" {message.content}")
        return [said, Own(self.stops[0])] if message.role == "assistant" else [said]

    def ends(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """See ``Format.ends``."""
        return tokenizer.ends

    def finish(
        self, ids: np.ndarray, stops: Sequence[int], tokenizer: Tokenizer, where: str
    ) -> Finish:
        """See ``Format.finish``."""
        finish = super().finish(ids, stops, tokenizer, where)
        if finish.how != "length":
            return finish
        stop = self.stops[0]
        text = tokenizer.decode(ids)
        if stop not in text:
            return Finish("length", ids, text[-len(stop) :])
        count = len(ids) - 1
        while count and stop in tokenizer.decode(ids[:count]):
            count -= 1
        if count < len(ids) - 1:
            raise ids_after_stop(where, len(ids) - 1 - count)
        return Finish("stop", ids, stop)

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``."""
        said, _, _ = tokenizer.decode(body).partition(self.stops[0])
        return Reading(said.removeprefix(" "))
