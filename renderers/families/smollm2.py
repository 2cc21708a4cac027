"""SmolLM2: ChatML with a default system prompt.

Source: the ``chat_template`` of HuggingFaceTB/SmolLM2-135M-Instruct.
"""

from collections.abc import Sequence

from mintjax.renderers.families.chatml import ChatML
from mintjax.renderers.format import Tools
from mintjax.renderers.messages import Spoken
from mintjax.renderers.pieces import Own, Piece

_DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


class SmolLM2(ChatML):
    """ChatML that starts with SmolLM2's own system prompt unless the caller gives one."""

    name = "smollm2"

    def system(self, given: Spoken | None, tools: Tools) -> Sequence[Piece]:
        """See ``Format.system``."""
        return [Own(_DEFAULT_SYSTEM)] if given is None else self.body(given)
