"""Any other model: its tokenizer's own chat template, extended only where that is seen to be right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import numpy as np

from mintjax.renderers.errors import RenderError
from mintjax.renderers.format import Tools
from mintjax.renderers.hiding import Hiding
from mintjax.renderers.messages import check, to_json
from mintjax.renderers.parsed import Parsed
from mintjax.renderers.pieces import Source, Tokens
from mintjax.renderers.rendered import Cursor, Rendered
from mintjax.renderers.renderer import Extendable
from mintjax.renderers.sampled import ids_after_stop, to_ids
from mintjax.renderers.tokenizer import Tokenizer, adapt
from mintjax.types import Message

_CURE = (
    "use the renderer of this model's family, which keeps what was said, or render the whole "
    "conversation anew"
)


@dataclass(frozen=True)
class TemplateCursor(Cursor):
    """A ``Cursor`` that holds the conversation: a template cannot write the new messages alone.

    Attributes:
        said: the messages so far, control tokens hidden in what callers wrote.
        declared: the tools, likewise.
        text: the text of all ids so far, up to a reply that was sampled.
        prefill: the first words of the reply that is awaited or was sampled.
    """

    said: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    declared: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    text: str = field(default="", repr=False)
    prefill: str = ""


@dataclass(frozen=True)
class TemplateRenderer:
    """Renders with a tokenizer's own chat template. Made by ``get_renderer("hf_template", tokenizer)``.

    A template says nothing of which message an id belongs to, so ``message`` is -1 and ``source``
    FORMAT on all that it writes. It has to write the whole conversation for every turn: the cost of a
    turn grows with the conversation.

    Attributes:
        source: a tokenizer of ``transformers`` with a chat template.
    """

    source: Any = field(repr=False)
    name: ClassVar = "hf_template"
    stop_strings: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Refuses a tokenizer without a chat template."""
        if not getattr(self.source, "chat_template", None):
            raise RenderError(
                f"renderer 'hf_template' needs a tokenizer with a chat_template, got "
                f"{type(self.source).__name__} without one; load it with AutoTokenizer, set its "
                "chat_template, or use a renderer by name"
            )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary."""
        return adapt(self.source)

    @cached_property
    def _hiding(self) -> Hiding:
        return Hiding(self.tokenizer.control)

    def stop_tokens(self) -> tuple[int, ...]:
        """The ids at which sampling must stop: the tokenizer's end of text, and well-known others.

        Example:
            >>> get_renderer("hf_template", tokenizer).stop_tokens()
            (151645, 151643)
        """
        return self.tokenizer.ends

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        extend: Rendered | None = None,
        prefill: str | None = None,
    ) -> Rendered:
        """Writes a conversation, or what new messages add to one.

        Args:
            messages: as for ``Renderer.render``.
            tools: JSON schemas, handed to the template. With ``extend``, None is "as before".
            extend: a conversation that this renderer wrote. What the template makes of all messages
                has to begin with it; the sampled ids stay as they were sampled.
            prefill: the first words of the reply.

        Returns:
            The new ids, linked to ``extend``.

        Raises:
            RenderError: where the template refuses the messages; and where it rewrites what stands
                before the new ones, naming the message.

        Example:
            >>> renderer = get_renderer("hf_template", AutoTokenizer.from_pretrained(path))
            >>> prompt = renderer.render([{"role": "user", "content": "hi"}])
            >>> following = renderer.render([{"role": "user", "content": "and?"}],
            ...                             extend=prompt.with_sampled(ids))
        """
        if not isinstance(messages, Sequence) or isinstance(messages, str) or not len(messages):
            raise RenderError(
                f"messages: expected a list of at least one message, got {messages!r}"
            )
        if prefill and messages[-1].get("role") == "assistant":
            raise RenderError("prefill: the last message is the assistant's; leave one of them out")
        before, text = ((), "") if extend is None else self._so_far(extend)
        for number, message in enumerate(messages, len(before)):
            check(message, number)
        declared = self._declared(tools, extend)
        said = (*before, *(self._hiding.hide(message) for message in messages))
        awaiting = messages[-1]["role"] != "assistant"
        written = self._write(said, declared, awaiting)
        if not written.startswith(text):
            self._refuse(said, declared, written, len(before))
        added = written[len(text) :]
        if extend is not None and extend.cursor.sampled is not None:
            added = added.removeprefix(self._stop_of(extend.cursor.sampled))
        first = self._hiding.hide(prefill or "")
        ids = self._encode(added + first)
        cursor = TemplateCursor(
            renderer=self.name,
            tools=_hash(declared),
            stops=self.stop_tokens(),
            messages=len(said) + awaiting,
            awaiting=awaiting,
            said=said,
            declared=declared,
            text=written + first,
            prefill=first,
        )
        return Rendered(_tokens(ids), cursor, extend)

    def parse(self, ids: Any, tools: Tools | None = None) -> Parsed:
        """Reads what the policy said: its text, control tokens by name. Tool calls stay in it.

        Raises:
            RenderError: where ids follow the stop, or are no ids.

        Example:
            >>> renderer.parse([6023, 151645]).message
            {'role': 'assistant', 'content': 'hi'}
        """
        sampled = to_ids(ids, "reply")
        early = np.flatnonzero(np.isin(sampled[:-1], self.stop_tokens()))
        if early.size:
            raise ids_after_stop("reply", len(sampled) - 1 - int(early[0]))
        stop = self._stop_of(sampled)
        content = self.tokenizer.decode(sampled[: len(sampled) - bool(stop)])
        return Parsed({"role": "assistant", "content": content}, "stop" if stop else "length", ())

    def can_extend(self, messages: Sequence[Message], *, tools: Tools | None = None) -> Extendable:
        """Whether the template, for each reply, leaves the prompt and the reply as they were.

        Args:
            messages: the whole conversation.
            tools: as for ``render``.

        Example:
            >>> renderer.can_extend([user, {"role": "assistant", "content": "hi"}, user])
            Extendable(message=None, reason='')
        """
        whole = self.render(messages, tools=tools).cursor
        assert isinstance(whole, TemplateCursor)
        for number, message in enumerate(whole.said):
            if message["role"] != "assistant" or number == 0:
                continue
            prompt = self._write(whole.said[:number], whole.declared, True)
            last = self._unclosed(whole.said[: number + 1], whole.declared)
            if not whole.text.startswith(prompt) or not whole.text.startswith(last):
                return Extendable(
                    number, "the template writes it in another way once messages follow"
                )
        return Extendable()

    def _unclosed(self, said: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
        """A conversation without the control token that closes its last message."""
        return "".join(self._hiding.parts(self._write(said, tools, False))[:-2])

    def _so_far(self, extend: Rendered) -> tuple[tuple[dict[str, Any], ...], str]:
        """The messages before, a sampled reply among them, and the text that stands for their ids."""
        cursor = extend.cursor
        cursor.check_follows(self.name)
        assert isinstance(cursor, TemplateCursor)  # as the renderer's name says
        if cursor.sampled is None:
            return cursor.said, cursor.text
        body = cursor.sampled[: len(cursor.sampled) - bool(self._stop_of(cursor.sampled))]
        text = self._hidden_text(body)
        reply = {"role": "assistant", "content": cursor.prefill + text}
        return (*cursor.said, reply), cursor.text + text

    def _hidden_text(self, ids: np.ndarray) -> str:
        """The text of sampled ids: control tokens by name, names that were merely spelled hidden."""
        names = [self.tokenizer.name(token) for token in ids.tolist()]
        edges = [place for place, name in enumerate(names) if name is not None]
        text, start = "", 0
        for place in [*edges, len(ids)]:
            text += self._hiding.hide(self.tokenizer.decode(ids[start:place]))
            text += (names[place] or "") if place < len(ids) else ""
            start = place + 1
        return text

    def _stop_of(self, sampled: np.ndarray) -> str:
        """The name of the stop that a reply ends with; empty where it was cut off."""
        if not sampled.size or int(sampled[-1]) not in self.stop_tokens():
            return ""
        return self.tokenizer.decode([int(sampled[-1])])

    def _declared(self, tools: Tools | None, extend: Rendered | None) -> tuple[dict[str, Any], ...]:
        """The tools to hand to the template."""
        given = tuple(self._hiding.hide(tool) for tool in tools or ())
        if extend is None:
            return given
        before = extend.cursor
        assert isinstance(before, TemplateCursor)
        if tools is not None and _hash(given) != before.tools:
            raise RenderError(
                "tools: they differ from those declared at the start, and message "
                f"{before.messages} cannot change them; pass None or the same, or render the whole "
                "conversation anew"
            )
        return before.declared

    def _write(
        self, said: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], prompt: bool
    ) -> str:
        """What the template writes."""
        try:
            return self.source.apply_chat_template(
                [dict(message) for message in said],
                tools=[dict(tool) for tool in tools] or None,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        except Exception as error:  # templates raise whatever they come upon
            raise RenderError(
                f"messages: the tokenizer's chat template refuses them ({error}); its own words "
                "name the cure"
            ) from error

    def _encode(self, text: str) -> list[int]:
        """Ids of a text in which callers' control tokens are hidden."""
        ids: list[int] = []
        for place, part in enumerate(self._hiding.parts(text)):
            if place % 2:
                ids.append(self.tokenizer.control[part])
                continue
            run = self._hiding.show(part)
            found, spans = self.tokenizer.encode(run)
            lost = self.tokenizer.lost(run, found, spans)
            if lost is not None:
                raise RenderError(
                    f"messages: the vocabulary has no token for the character {run[lost]!r} and "
                    "would drop it; remove it from the text"
                )
            ids += found
        return ids

    def _refuse(
        self,
        said: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        written: str,
        count: int,
    ) -> NoReturn:
        """Names the first message before the new ones that the template has rewritten."""
        for number in range(count):
            if not written.startswith(self._unclosed(said[: number + 1], tools)):
                break
        else:
            number = count - 1
        raise RenderError(
            f"message {number} ({said[number]['role']}): the chat template writes it in another way "
            f"once message {count} follows, so the ids so far are no prefix; {_CURE}"
        )


def _hash(tools: Sequence[Mapping[str, Any]]) -> str:
    """The same text for tools that are written alike, and for no others."""
    return to_json(list(tools), "tools") if tools else ""


def _tokens(ids: Sequence[int]) -> Tokens:
    """Ids of which a template does not say whose they are."""
    shape = (len(ids),)
    return Tokens(
        np.array(ids, np.int32),
        np.zeros(shape, bool),
        np.full(shape, -1, np.int32),
        np.full(shape, Source.FORMAT, np.int8),
    )
