"""What the DeepSeek formats have in common: ``<｜User｜>`` and ``<｜Assistant｜>``, no newlines."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from mintjax.renderers.errors import RenderError
from mintjax.renderers.families.call_section import CallSection
from mintjax.renderers.format import Format
from mintjax.renderers.messages import Spoken

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
OUTPUT_BEGINS = "<｜tool▁output▁begin｜>"
OUTPUT_ENDS = "<｜tool▁output▁end｜>"
CALLS = CallSection(
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
# Variants that `template` marks messages with: one that is written as the official template has it,
# and one that it writes as if an earlier run of calls or results went on.
OFFICIAL = "official"
CONTINUED = "continued"


class DeepSeek(Format):
    """System text right after BOS, replies that end with EOS, results of tools without a role.

    The official templates move every system message to the front. Nothing that was said can be
    moved in an extension, so there a system message that comes late is refused.
    """

    controls = (BOS, EOS, USER, ASSISTANT, *CALLS.controls, OUTPUT_BEGINS, OUTPUT_ENDS)
    stops = (EOS,)
    prefix = BOS
    calls_tools = True
    channels: ClassVar = {CALLS.begins: "tool_call", CALLS.ends: "content"}

    def template(self, spoken: Sequence[Spoken]) -> Sequence[Spoken]:
        """See ``Format.template``. System messages come first, and no reply has its reasoning."""
        ordered = sorted(spoken, key=lambda message: message.role != "system")
        return [message._replace(reasoning=None, variant=OFFICIAL) for message in ordered]

    def kept(self, message: Spoken) -> Spoken:
        """See ``Format.kept``. Every reply has its reasoning, be it empty."""
        return message._replace(reasoning=message.reasoning or "")

    def between(self, before: str | None, after: Spoken | None) -> tuple[str, str]:
        """See ``Format.between``."""
        close = EOS if before == "assistant" else ""
        if after is None:
            return close, ""
        if after.role == "system":
            if before not in (None, "system"):
                raise RenderError(
                    f"{after.where}: {self.name!r} has room for system messages at the start only; "
                    'move it there, or render the whole conversation with history="template", which '
                    "does"
                )
            return close, "\n\n" if before else ""
        if after.role == "user":
            return close + self._close(before, after), USER
        return close + self._close(before, after), self._header(before, after)

    def _close(self, before: str | None, after: Spoken) -> str:
        """What closes a user's or a tool's message."""
        return ""

    @abstractmethod
    def _header(self, before: str | None, after: Spoken) -> str:
        """What stands before a reply or a tool's result."""
