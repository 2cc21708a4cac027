"""The names that users of Tinker's and MinT's renderers know, on this package's renderer."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from mintjax import types
from mintjax.renderers.declared import declaring
from mintjax.renderers.errors import RenderError
from mintjax.renderers.format import Format, Tools, calls_tools
from mintjax.renderers.parsed import Parsed
from mintjax.renderers.rendered import Rendered
from mintjax.renderers.supervised import TrainOnWhat
from mintjax.types import Message


class ParseTermination(StrEnum):
    """How a reply ended.

    STOP_SEQUENCE: with the format's stop. EOS: with another token that ends a text. MALFORMED: by a
    length limit, or with a tool call that cannot be carried out, which stands in the content.
    """

    STOP_SEQUENCE = "stop_sequence"
    EOS = "eos"
    MALFORMED = "malformed"

    @property
    def is_clean(self) -> bool:
        """Whether it ended by itself, and can be read."""
        return self is not ParseTermination.MALFORMED

    @property
    def is_stop_sequence(self) -> bool:
        """Whether it ended with the format's own stop."""
        return self is ParseTermination.STOP_SEQUENCE


_ENDED = {
    "stop": ParseTermination.STOP_SEQUENCE,
    "end_of_text": ParseTermination.EOS,
    "length": ParseTermination.MALFORMED,
    "malformed": ParseTermination.MALFORMED,
}


class _Speaks(Protocol):
    """What the names below are made of: the renderer's own."""

    @property
    def form(self) -> Format: ...
    @property
    def name(self) -> str: ...
    @property
    def stop_strings(self) -> tuple[str, ...]: ...
    def stop_tokens(self) -> tuple[int, ...]: ...
    def render(self, messages: Sequence[Message], *, prefill: str | None = None) -> Rendered: ...
    def supervised(
        self, messages: Sequence[Message], *, tools: Tools | None = None, train_on: str
    ) -> list[Rendered]: ...
    def parse(self, ids: Any) -> Parsed: ...


class TinkerNames:
    """Tinker's names for what a renderer does. They need one that is bound to a tokenizer.

    Messages, prompts and masks are this package's: reasoning stands in ``reasoning_content``, a tool
    call is a dict, weights are numpy's.
    """

    def build_generation_prompt(
        self: _Speaks,
        messages: Sequence[Message],
        role: str = "assistant",
        prefill: str | None = None,
    ) -> "types.ModelInput":
        """The ids to sample a reply after.

        Args:
            messages: the whole conversation, its last message not the assistant's.
            role: who speaks next; only the assistant can.
            prefill: the first words of the reply.

        Raises:
            RenderError: as ``render``; and where no reply, or one of another role, is asked for.

        Example:
            >>> renderer.build_generation_prompt([{"role": "user", "content": "hi"}]).length
            9
        """
        if role != "assistant":
            raise RenderError(
                f"role: expected 'assistant', got {role!r}; only the assistant's replies are sampled"
            )
        rendered = self.render(messages, prefill=prefill)
        if not rendered.cursor.awaiting:
            raise RenderError(
                f"message {len(messages) - 1} (assistant): it is the last, so no reply is asked for; "
                "leave it out, or give its text as prefill"
            )
        return types.ModelInput.from_ints(tokens=list(rendered))

    def build_supervised_examples(
        self: _Speaks,
        messages: Sequence[Message],
        train_on_what: str = TrainOnWhat.LAST_ASSISTANT_TURN,
    ) -> "list[tuple[types.ModelInput, np.ndarray]]":
        """Ids and loss weights, float32 ``[n]`` each; see ``Renderer.supervised``.

        Example:
            >>> for ids, weights in renderer.build_supervised_examples([user, reply]): ...
        """
        return _examples(self, messages, train_on_what)

    def build_supervised_example(
        self: _Speaks,
        messages: Sequence[Message],
        train_on_what: str = TrainOnWhat.LAST_ASSISTANT_MESSAGE,
    ) -> "tuple[types.ModelInput, np.ndarray]":
        """The same for a conversation that one rendering is enough for.

        Raises:
            RenderError: where it takes several.

        Example:
            >>> ids, weights = renderer.build_supervised_example([user, reply])
        """
        examples = _examples(self, messages, train_on_what)
        if len(examples) > 1:
            raise RenderError(
                f"train_on_what: {str(train_on_what)!r} takes {len(examples)} renderings of this "
                "conversation, as the format writes a reply otherwise once it is history; use "
                "build_supervised_examples, or a renderer with history='keep'"
            )
        return examples[0]

    def parse_response(self: _Speaks, response: Any) -> tuple[Message, ParseTermination]:
        """What a sampled reply says, and how it ended; see ``Renderer.parse``.

        Example:
            >>> renderer.parse_response([6023, 151645])
            ({'role': 'assistant', 'content': 'hi'}, <ParseTermination.STOP_SEQUENCE: 'stop_sequence'>)
        """
        parsed = self.parse(response)
        return parsed.message, _ENDED[parsed.stop]

    def get_stop_sequences(self: _Speaks) -> list[str] | list[int]:
        """What sampling has to stop at: texts where the format's stop is one, else ids.

        Example:
            >>> renderer.get_stop_sequences()
            [151645, 151643]
        """
        return list(self.stop_strings) or list(self.stop_tokens())

    def create_conversation_prefix_with_tools(
        self: _Speaks, tools: Tools, system_prompt: str = ""
    ) -> list[Any]:
        """Messages to put before a conversation, which declare tools to it.

        Args:
            tools: JSON schemas.
            system_prompt: the text of the system message; where it is empty there is none.

        Raises:
            RenderError: where the format declares no tools.

        Example:
            >>> prefix = renderer.create_conversation_prefix_with_tools([tool], "Be brief.")
            >>> renderer.build_generation_prompt([*prefix, user])
        """
        if not self.form.declares_tools:
            raise RenderError(
                f"tools: {self.name!r} writes no tool schemas; describe the tools in a system "
                "message, or use a renderer that does"
            )
        if tools:
            return [declaring(tools, system_prompt)]
        return [{"role": "system", "content": system_prompt}] if system_prompt else []

    @property
    def has_extension_property(self: _Speaks) -> bool:
        """Whether a prompt and the reply to it begin the next prompt, in plain conversations.

        Found out by rendering a few: two turns, with reasoning and a tool call where the format
        writes them. Of one conversation ``can_extend`` tells, and ``render(..., extend=)`` always
        extends.
        """
        return all(
            len(self.supervised(talk, train_on=TrainOnWhat.ALL_ASSISTANT_MESSAGES)) == 1
            for talk in _talks(self.form)
        )


def _examples(
    renderer: _Speaks, messages: Sequence[Message], train_on: str
) -> "list[tuple[types.ModelInput, np.ndarray]]":
    """A conversation to train on, as ids and loss weights."""
    examples = renderer.supervised(messages, train_on=train_on)
    return [(types.ModelInput.from_ints(tokens=list(one)), one.weights) for one in examples]


def _talks(form: Format) -> list[list[Any]]:
    """A plain conversation of two turns, and one with all that a format writes."""
    ask = {"role": "user", "content": "Hello?"}
    reply = {"role": "assistant", "content": "Hi."}
    talks = [[ask, reply, ask, reply]]
    if form.reasons:
        reply = reply | {"reasoning_content": "Greeted."}
        talks.append([ask, reply, ask, reply])
    if calls_tools(form):
        function = {"name": "f", "arguments": "{}"}
        call = reply | {
            "content": "",
            "tool_calls": [{"type": "function", "id": "1", "function": function}],
        }
        result = {"role": "tool", "content": "1", "tool_call_id": "1", "name": "f"}
        talks.append([ask, call, result, reply, ask, reply])
    return talks
