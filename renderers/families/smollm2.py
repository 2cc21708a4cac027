"""SmolLM2: ChatML with a default system prompt.

Source: the ``chat_template`` of HuggingFaceTB/SmolLM2-135M-Instruct.
"""

from collections.abc import Sequence

from mintjax.renderers.families.chatml import ChatML
from mintjax.renderers.format import Tools
from mintjax.renderers.messages import Spoken
from mintjax.renderers.pieces import Own

_DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


class SmolLM2(ChatML):
    """ChatML that starts with SmolLM2's own system prompt unless the caller gives one."""

    name = "smollm2"

    def opening(self, spoken: Sequence[Spoken], tools: Tools) -> Sequence[Spoken]:
        """See ``Format.opening``."""
        if spoken[0].role == "system":
            return spoken
        return [Spoken(-1, "system", "", pieces=(Own(_DEFAULT_SYSTEM),)), *spoken]
