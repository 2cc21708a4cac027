"""The renderer: a frozen value that turns messages into ids of one chat format, and back."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from mintjax.renderers.declared import declared
from mintjax.renderers.emitter import Style, emit
from mintjax.renderers.errors import RenderError
from mintjax.renderers.facade import TinkerNames
from mintjax.renderers.format import Format, Tools, calls_tools, stop_tokens
from mintjax.renderers.messages import Spoken, check, to_json
from mintjax.renderers.parsed import Parsed, parse
from mintjax.renderers.rendered import Rendered
from mintjax.renderers.streaming import Stream
from mintjax.renderers.supervised import TrainOnWhat, chosen, supervise
from mintjax.renderers.tokenizer import Tokenizer, adapt
from mintjax.types import Message


@dataclass(frozen=True)
class Extendable:
    """Whether turn-by-turn extension writes a conversation as its whole rendering does.

    Attributes:
        message: number of the message where the two part; None where they do not.
        reason: what each of them writes there; empty where they do not part.
    """

    message: int | None = None
    reason: str = ""

    def __bool__(self) -> bool:
        """True where the conversation can be extended."""
        return self.message is None


@dataclass(frozen=True)
class Renderer(TinkerNames):
    """A chat format, bound to a tokenizer or not. Make one with ``get_renderer``.

    Attributes:
        form: the chat format.
        history: ``"template"`` or ``"keep"``, see ``get_renderer``.
        tokenizer: the vocabulary that is used where a call names none.
    """

    form: Format
    history: Literal["template", "keep"] = "template"
    tokenizer: Tokenizer | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The format's registered name."""
        return self.form.name

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The texts at which sampling must stop, where a text and no token ends a reply."""
        return tuple(stop for stop in self.form.stops if stop not in self.form.controls)

    def stop_tokens(self, tokenizer: Any = None) -> tuple[int, ...]:
        """The ids at which sampling must stop; the format's own stop first, where it is a token.

        Args:
            tokenizer: a tokenizer, where the renderer is not bound to one.

        Raises:
            RenderError: where there is no tokenizer, or it lacks a control token of the format.

        Example:
            >>> get_renderer("qwen3_instruct", tokenizer).stop_tokens()
            (151645, 151643)
        """
        return stop_tokens(self.form, self._view(tokenizer))

    def render(
        self,
        messages: Sequence[Message],
        tokenizer: Any = None,
        *,
        tools: Tools | None = None,
        extend: Rendered | None = None,
        prefill: str | None = None,
    ) -> Rendered:
        """Writes a conversation, or what new messages add to one.

        The result ends with the generation prompt unless the last message is the assistant's. With
        ``extend``, only the new ids are returned, glue included; they follow what was sampled,
        which is never decoded and encoded again. The cost is that of the new messages.

        An assistant's text that ends with the format's own stop is the text of a sample: it is
        closed by that stop once, and nothing of it is trimmed. Where its ids come back from encoding
        it, the rendering begins with what was sampled. (With reasoning, read a sample by ``parse``.)

        Args:
            messages: OpenAI-shaped messages, at least one; with ``extend`` the new ones only.
            tokenizer: a tokenizer, where the renderer is not bound to one.
            tools: JSON schemas to declare in the first system message. With ``extend``, None is "as
                before".
            extend: a conversation that this renderer wrote, after ``with_sampled`` or ending with
                an assistant message.
            prefill: the first words of the reply. They are written as plain text after the
                generation prompt, and are no part of what is sampled.

        Returns:
            The new ids, and who wrote each. Linked to ``extend``.

        Raises:
            RenderError: messages that the format cannot write, tools that differ from those before,
                a reply that is still awaited, a vocabulary without the format's control tokens.

        Example:
            >>> renderer = get_renderer("qwen3_instruct", tokenizer)
            >>> prompt = renderer.render([{"role": "user", "content": "hi"}])
            >>> answered = prompt.with_sampled(sample.tokens)
            >>> following = renderer.render([{"role": "user", "content": "and?"}], extend=answered)
        """
        view = self._view(tokenizer)
        _check_some(messages)
        if extend is None:
            numbered, tools = declared(messages, tools)
        else:
            numbered = list(enumerate(messages, extend.cursor.messages))
        spoken = [self._check(message, number) for number, message in numbered]
        if prefill and spoken[-1].role == "assistant":
            raise RenderError(
                f"prefill: {spoken[-1].where} is the last, so no reply is asked for; leave prefill "
                "or that message out"
            )
        tools_hash = self._tools_hash(tools)
        if extend is not None:
            self._check_extension(extend, None if tools is None else tools_hash)
            tools_hash = extend.cursor.tools
        return emit(
            self.form,
            view,
            spoken,
            tools=tools or (),
            tools_hash=tools_hash,
            before=extend,
            prefill=prefill or "",
            style=self._style(extend is not None),
        )

    def supervised(
        self,
        messages: Sequence[Message],
        tokenizer: Any = None,
        *,
        tools: Tools | None = None,
        train_on: str = TrainOnWhat.LAST_ASSISTANT_MESSAGE,
    ) -> list[Rendered]:
        """Renders a conversation to train on, with loss weights.

        A reply trains on what the policy would have to say after this renderer's own generation
        prompt, its stop included, and stands after that prompt. Where the format writes a reply in
        another way once it is history (reasoning that is stripped), one rendering cannot show all
        replies so; then there are several, as few as can be, and each reply trains in one of them.
        Every other message that trains does so without its header, beside the reply that follows it.

        Renders the conversation once for each reply that trains.

        Args:
            messages: OpenAI-shaped messages, at least one.
            tokenizer: a tokenizer, where the renderer is not bound to one.
            tools: JSON schemas to declare in the first system message.
            train_on: a ``TrainOnWhat`` or its value.

        Returns:
            Renderings in the order of the messages that train in them, each up to the last of
            those; ``weights`` is 1 on what trains, 0 elsewhere.

        Raises:
            RenderError: as ``render``; and where ``train_on`` chooses no message, or a message has
                the key ``trainable`` without ``"customized"`` or lacks it with that.

        Example:
            >>> (example,) = renderer.supervised([user, reply, user, reply], train_on="all_assistant_messages")
            >>> tokenizer.decode(example.ids[example.weights > 0])
            'The first.<|im_end|>The second.<|im_end|>'
        """
        view = self._view(tokenizer)
        _check_some(messages)
        numbered, tools = declared(messages, tools)
        return supervise(
            self.form,
            view,
            [self._check(message, number) for number, message in numbered],
            tools=tools or (),
            tools_hash=self._tools_hash(tools),
            style=self._style(extends=False),
            trained=chosen(numbered, train_on),
            headers=train_on == TrainOnWhat.ALL_TOKENS,
        )

    def parse(self, ids: Any, tokenizer: Any = None, tools: Tools | None = None) -> Parsed:
        """Reads what the policy said.

        Only control tokens structure a reply: text that spells one is text.

        Args:
            ids: int ``[n]``; the sampled ids of one reply, verbatim.
            tokenizer: a tokenizer, where the renderer is not bound to one.
            tools: the tools that were declared. With them, a call of any other is none, and formats
                that write arguments without their types take the types from the schemas.

        Returns:
            The message, how it ended, and every attempt at a tool call. Bytes of a character that
            was cut show as U+FFFD: keep the ids, never encode the content again.

        Raises:
            RenderError: where ids follow the stop, or are no ids.

        Example:
            >>> renderer.parse([6023, 151645]).message
            {'role': 'assistant', 'content': 'hi'}
        """
        return parse(self.form, ids, self._view(tokenizer), tools or ())

    def stream(
        self, tokenizer: Any = None, tools: Tools | None = None, *, prompt: Rendered | None = None
    ) -> Stream:
        """Reads a reply while it is being sampled; the twin of ``parse``.

        Args:
            tokenizer: a tokenizer, where the renderer is not bound to one.
            tools: as for ``parse``.
            prompt: what the reply answers; in some formats that decides whether it begins with
                reasoning.

        Example:
            >>> stream = renderer.stream()
            >>> stream.feed([6023]), stream.feed([151645])
            ([Delta(channel='content', text='hi')], [])
            >>> stream.finish().message
            {'role': 'assistant', 'content': 'hi'}
        """
        begins = self.form.begins if prompt is None else prompt.cursor.begins
        return Stream(self.form, self._view(tokenizer), tools or (), begins)

    def can_extend(
        self, messages: Sequence[Message], tokenizer: Any = None, *, tools: Tools | None = None
    ) -> Extendable:
        r"""Whether a conversation, said turn by turn, has the ids that the template gives it.

        Found out by rendering it both ways.

        Args:
            messages: the whole conversation.
            tokenizer: a tokenizer, where the renderer is not bound to one.
            tools: as for ``render``.

        Raises:
            RenderError: as ``render``.

        Example:
            >>> renderer.can_extend([user, {"role": "assistant", "content": "\nhi"}])
            Extendable(message=1, reason="from id 8 on the template writes ['\n\n', 'hi'], ...")
        """
        view = self._view(tokenizer)
        template = Renderer(self.form, "template").render(messages, view, tools=tools)
        try:
            kept = Renderer(self.form, "keep").render(messages, view, tools=tools)
        except RenderError as error:
            return Extendable(_named(error, len(messages)), str(error))
        if np.array_equal(template.ids, kept.ids):
            return Extendable()
        shared = min(len(template), len(kept))
        differ = np.flatnonzero(template.ids[:shared] != kept.ids[:shared])
        place = int(differ[0]) if differ.size else shared
        longer = template if len(template) > place else kept
        written = [
            [view.decode([token]) for token in side[place : place + 2]] for side in (template, kept)
        ]
        return Extendable(
            int(longer.message[place]),
            f"from id {place} on the template writes {written[0]}, extension {written[1]}",
        )

    def _check(self, message: Any, number: int) -> Spoken:
        """A message that the format can write, without the stop that a reply's text may end with."""
        spoken = check(message, number)
        if spoken.calls and not calls_tools(self.form):
            raise RenderError(
                f"{spoken.where}: {self.name!r} writes no tool calls; put them into content, or use "
                "a renderer that does"
            )
        if spoken.reasoning and not self.form.reasons:
            raise RenderError(
                f"{spoken.where}: {self.name!r} writes no reasoning; remove reasoning_content, or "
                "use a renderer that does"
            )
        if spoken.role == "assistant":
            # The text of a decoded sample ends with its stop, which the format writes itself.
            stop = next((stop for stop in self.form.stops if spoken.content.endswith(stop)), None)
            if stop is not None:
                spoken = spoken._replace(content=spoken.content[: -len(stop)], stopped=True)
        return spoken

    def _style(self, extends: bool) -> Style:
        """How this renderer writes a whole conversation, or what extends one."""
        return Style(
            template=self.history == "template" and not extends,
            split_turns=self.history == "keep" or extends,
        )

    def _view(self, tokenizer: Any) -> Tokenizer:
        """The vocabulary to use, checked."""
        view = self.tokenizer if tokenizer is None else adapt(tokenizer)
        if view is None:
            raise RenderError(
                f"renderer {self.name!r} is bound to no tokenizer; pass one, here or to "
                "get_renderer"
            )
        view.require(self.form.controls, self.name)
        return view

    def _tools_hash(self, tools: Tools | None) -> str:
        """The same text for tools that are written alike, and for no others; empty for none."""
        if not tools:
            return ""
        if not self.form.declares_tools:
            raise RenderError(
                f"tools: {self.name!r} writes no tool schemas; describe the tools in a system "
                "message, or use a renderer that does"
            )
        for number, tool in enumerate(tools):
            if not isinstance(tool, Mapping):
                raise RenderError(
                    f"tools[{number}]: expected a JSON schema as a dict, got {type(tool).__name__}"
                )
        written = "\n".join(to_json(tool, f"tools[{n}]") for n, tool in enumerate(tools))
        return hashlib.sha256(written.encode(errors="surrogatepass")).hexdigest()

    def _check_extension(self, extend: Rendered, tools_hash: str | None) -> None:
        """Refuses a conversation that new messages cannot follow."""
        cursor = extend.cursor
        cursor.check_follows(self.name)
        if tools_hash is not None and tools_hash != cursor.tools:
            raise RenderError(
                "tools: they differ from those declared at the start, and message "
                f"{cursor.messages} cannot change them; pass None or the same, or render the whole "
                "conversation anew"
            )


def _check_some(messages: Any) -> None:
    """Refuses what is no list of messages."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not len(messages):
        raise RenderError(
            f"messages: expected a list of at least one message, got {messages!r}; every rendering "
            "adds a message"
        )


def _named(error: RenderError, count: int) -> int:
    """The number of the message that an error names; the last one where it names none."""
    found = re.match(r"message (\d+)", str(error))
    return int(found[1]) if found else count - 1
