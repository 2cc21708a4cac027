r"""Llama 3.1, 3.2 and 3.3: a dated system message always, tools in the first user message.

Sources: the ``chat_template`` of meta-llama/Llama-3.1-8B-Instruct and of
meta-llama/Llama-3.2-3B-Instruct.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mintjax.renderers.errors import RenderError
from mintjax.renderers.families.llama3 import Llama3, trimmed
from mintjax.renderers.format import Tools
from mintjax.renderers.messages import Spoken, arguments_text, to_json
from mintjax.renderers.pieces import Own, Piece, Said
from mintjax.renderers.reading import Attempt, Reading, load_json, read_json_call
from mintjax.renderers.tokenizer import Tokenizer

_BEFORE_TOOLS = (
    "Given the following functions, please respond with a JSON for a function call with its proper "
    "arguments that best answers the given prompt.\n\n"
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and '
    "its value}.Do not use variables.\n\n"
)
_CALL = re.compile(r'\s*\{\s*"(?:name|parameters)"\s*:')
_STRING = re.compile(r'"(?:\\.|[^"\\])*(?:"|\\?\Z)', re.DOTALL)


@dataclass(frozen=True)
class Llama31(Llama3):
    """A call is the whole reply, a JSON object in plain text; results are JSON too.

    Attributes:
        date: the day that the system message tells, as ``26 Jul 2024``. The template of 3.2 tells
            today's where it can; here it is the constant that both fall back on.
    """

    name = "llama3_1"
    controls = (*Llama3.controls, "<|eom_id|>", "<|python_tag|>")
    stops = ("<|eot_id|>", "<|eom_id|>")
    declares_tools = True
    channels: ClassVar = {"<|python_tag|>": "tool_call"}

    date: str = "26 Jul 2024"

    def dated(self, date: str) -> "Llama31":
        """See ``Format.dated``."""
        return replace(self, date=date)

    def template(self, spoken: Sequence[Spoken]) -> Sequence[Spoken]:
        """See ``Format.template``. Results of tools are not trimmed."""
        return [message if message.role == "tool" else trimmed(message) for message in spoken]

    def kept(self, message: Spoken) -> Spoken:
        """See ``Format.kept``."""
        return message if message.role in ("assistant", "tool") else trimmed(message)

    def opening(self, spoken: Sequence[Spoken], tools: Tools) -> Sequence[Spoken]:
        """See ``Format.opening``."""
        given = spoken[0].role == "system"
        system = spoken[0] if given else Spoken(-1, "system", "")
        environment = "Environment: ipython\n" if tools else ""
        pieces: tuple[Piece, ...] = (
            Own(f"{environment}Cutting Knowledge Date: December 2023\nToday Date: "),
            Said(self.date),
            Own("\n\n"),
            Said(system.content),
        )
        following = spoken[given:]
        if tools:
            following = [self._declared(spoken[0], following[:1], tools), *following[1:]]
        return [system._replace(pieces=pieces), *following]

    def _declared(self, first: Spoken, asked: Sequence[Spoken], tools: Tools) -> Spoken:
        """The first message after the system's, a user's, with the tools before its text."""
        if not asked or asked[0].role != "user":
            raise RenderError(
                f"{(*asked, first)[0].where}: {self.name!r} declares tools in the first message "
                "after the system's, which has to be a user's; begin with one, or describe the "
                "tools in a system message"
            )
        pieces: list[Piece] = [Own(_BEFORE_TOOLS)]
        for number, tool in enumerate(tools):
            pieces += [Said(to_json(tool, f"tools[{number}]", indent=4)), Own("\n\n")]
        return asked[0]._replace(pieces=(*pieces, Said(asked[0].content)))

    def between(self, before: str | None, after: Spoken | None) -> tuple[str, str]:
        """See ``Format.between``."""
        if after is not None and after.role == "tool":
            after = after._replace(role="ipython")
        return super().between(before, after)

    def body(self, message: Spoken, following: str | None) -> Sequence[Piece]:
        """See ``Format.body``."""
        if message.role == "tool":
            return [Said(to_json(message.content, message.where))]
        if not message.calls:
            return super().body(message, following)
        call, *more = message.calls
        if more or message.content:
            raise RenderError(
                f"{message.where}: in {self.name!r} a call is a whole reply, without text and "
                "without a second call; leave content empty, and make one call in each reply"
            )
        return [
            Own('{"name": "'),
            Said(call.name),
            Own('", "parameters": '),
            Said(arguments_text(call, message.where)),
            Own("}<|eot_id|>"),
        ]

    def written(self, ending: str) -> str:
        """See ``Format.written``. ``<|eom_id|>`` ends a call that a tool of the model's answers."""
        return "<|eot_id|>" if ending == "<|eom_id|>" else ending

    def read(self, body: np.ndarray, tokenizer: Tokenizer, tools: Tools) -> Reading:
        """See ``Format.read``.

        A reply is an attempt at a call where it begins as one, or with ``<|python_tag|>``. A JSON
        object that has a name but no parameters is an answer.
        """
        said = tokenizer.decode(body)
        tagged = bool(len(body)) and int(body[0]) == tokenizer.control["<|python_tag|>"]
        text = said.removeprefix("<|python_tag|>") if tagged else said
        if not tagged and not _CALL.match(text):
            return Reading(said)
        attempt = Attempt("ok", (0, len(body)), said)
        try:
            value = load_json(text)
            if not tagged and isinstance(value, dict) and "parameters" not in value:
                return Reading(said)
            call = read_json_call(text, arguments="parameters")
            return Reading("", None, (attempt._replace(call=call),))
        except ValueError as error:
            broken = attempt._replace(
                status="unclosed" if _open(text) else "malformed", error=str(error)
            )
            return Reading(said, None, (broken,))


class Llama32(Llama31):
    """The same stream; the two templates differ in their built-in tools, and in the default day."""

    name = "llama3_2"


def _open(text: str) -> bool:
    """Whether an object is still open at the end of a JSON text."""
    outside = _STRING.sub("", text)
    return outside.count("{") > outside.count("}")
