"""Conversations to train on: as few renderings as show every trained reply as it would be sampled."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from mintjax.renderers.emitter import Style, emit
from mintjax.renderers.errors import RenderError
from mintjax.renderers.format import Format, Tools
from mintjax.renderers.messages import Spoken
from mintjax.renderers.pieces import Source, Tokens
from mintjax.renderers.rendered import Rendered
from mintjax.renderers.tokenizer import Tokenizer


class TrainOnWhat(StrEnum):
    """Which messages of a conversation train.

    LAST_ASSISTANT_MESSAGE: the last reply. LAST_ASSISTANT_TURN: all replies after the last user
    message. ALL_ASSISTANT_MESSAGES: every reply. ALL_MESSAGES: every message. ALL_TOKENS: every
    message, and headers too. ALL_USER_AND_SYSTEM_MESSAGES: those. CUSTOMIZED: the messages whose key
    ``trainable`` is True; every message has to have it then.
    """

    LAST_ASSISTANT_MESSAGE = "last_assistant_message"
    LAST_ASSISTANT_TURN = "last_assistant_turn"
    ALL_ASSISTANT_MESSAGES = "all_assistant_messages"
    ALL_MESSAGES = "all_messages"
    ALL_TOKENS = "all_tokens"
    ALL_USER_AND_SYSTEM_MESSAGES = "all_user_and_system_messages"
    CUSTOMIZED = "customized"


def chosen(messages: Sequence[tuple[int, Any]], train_on: str) -> list[int]:
    """Numbers of the messages that train, ascending.

    Args:
        messages: the conversation, at least one message, each with its number and checked already.
        train_on: a ``TrainOnWhat`` or its value.

    Raises:
        RenderError: where the choice is unknown, chooses nothing, or does not go with the key
            ``trainable``.

    Example:
        >>> chosen([(0, user), (1, reply), (2, user), (3, reply)], "all_assistant_messages")
        [1, 3]
    """
    choices = [choice.value for choice in TrainOnWhat]
    if train_on not in choices:
        raise RenderError(f"train_on: expected one of {', '.join(choices)}, got {train_on!r}")
    what = TrainOnWhat(train_on)
    _check_trainable(messages, what)
    roles = {number: message["role"] for number, message in messages}
    replies = [number for number, role in roles.items() if role == "assistant"]
    match what:
        case TrainOnWhat.LAST_ASSISTANT_MESSAGE:
            numbers = replies[-1:]
        case TrainOnWhat.LAST_ASSISTANT_TURN:
            asked = max((number for number, role in roles.items() if role == "user"), default=-1)
            numbers = [number for number in replies if number > asked]
        case TrainOnWhat.ALL_ASSISTANT_MESSAGES:
            numbers = replies
        case TrainOnWhat.ALL_MESSAGES | TrainOnWhat.ALL_TOKENS:
            numbers = list(roles)
        case TrainOnWhat.ALL_USER_AND_SYSTEM_MESSAGES:
            numbers = [number for number, role in roles.items() if role in ("user", "system")]
        case TrainOnWhat.CUSTOMIZED:
            numbers = [number for number, message in messages if message["trainable"]]
    if not numbers:
        raise RenderError(
            f"train_on: {what.value!r} chooses none of these messages, whose roles are "
            f"{', '.join(roles.values())}; choose what is there, or leave the conversation out"
        )
    return numbers


def supervise(
    form: Format,
    tokenizer: Tokenizer,
    spoken: Sequence[Spoken],
    *,
    tools: Tools,
    tools_hash: str,
    style: Style,
    trained: Sequence[int],
    headers: bool,
) -> list[Rendered]:
    """Renders a conversation to train on; see ``Renderer.supervised``.

    Args:
        form: the chat format.
        tokenizer: its vocabulary.
        spoken: the messages, at least one.
        tools: what the conversation declares.
        tools_hash: what the cursor records of them.
        style: how the renderer writes a conversation.
        trained: numbers of the messages that train, ascending, at least one.
        headers: whether every token trains that such a message brings.

    Example:
        >>> supervise(form, view, spoken, tools=(), tools_hash="", style=style, trained=[1, 3],
        ...           headers=False)
        [Rendered(19 ids from 0, 4 messages)]
    """
    replies = {message.number for message in spoken if message.role == "assistant"}
    ends = [number for number in trained if number in replies or number == trained[-1]]

    def up_to(end: int) -> Rendered:
        """The conversation that ends with what trains in message ``end``."""
        return emit(
            form,
            tokenizer,
            [message for message in spoken if message.number <= end],
            tools=tools,
            tools_hash=tools_hash,
            before=None,
            prefill="",
            style=style._replace(supervised=True),
        )

    examples: list[_Example] = []
    shown = [up_to(end) for end in ends]
    for place in reversed(range(len(ends))):
        rendered, before = shown[place], shown[place - 1] if place else None
        unit = range(ends[place - 1] + 1 if place else 0, ends[place] + 1)
        if headers:
            mask = _from(rendered, before, unit.start)
        else:
            mask = _bodies(rendered, [number for number in trained if number in unit], replies)
        home = next((one for one in examples if _starts(one.rendered, rendered)), None)
        if home is None:
            home = _Example(rendered, np.zeros(len(rendered), np.float32))
            examples.append(home)
        home.weights[: len(mask)] += mask
    return [_weighted(example) for example in reversed(examples)]


class _Example(NamedTuple):
    """A rendering, and the loss weights of its ids as they are being gathered."""

    rendered: Rendered
    weights: np.ndarray


def _starts(whole: Rendered, part: Rendered) -> bool:
    """Whether the ids of one rendering are those that another begins with."""
    return np.array_equal(whole.ids[: len(part)], part.ids)


def _bodies(rendered: Rendered, numbers: Sequence[int], replies: set[int]) -> np.ndarray:
    """Marks of what some messages say: of a reply the sampled ids, of others all but the header."""
    said = [number for number in numbers if number in replies]
    given = [number for number in numbers if number not in replies]
    written = rendered.source != Source.HEADER
    return (np.isin(rendered.message, said) & rendered.sampled) | (
        np.isin(rendered.message, given) & written
    )


def _from(rendered: Rendered, before: Rendered | None, first: int) -> np.ndarray:
    """Marks of all ids after those of the rendering before, or from message ``first`` on."""
    places = np.arange(len(rendered))
    if before is None:
        return places >= 0
    if _starts(rendered, before):
        return places >= len(before)
    return places >= int(np.argmax(rendered.message >= first))


def _weighted(example: _Example) -> Rendered:
    """The rendering with its loss weights."""
    one = example.rendered
    tokens = Tokens(one.ids, one.sampled, one.message, one.source)
    return Rendered(tokens, one.cursor, weights=example.weights)


def _check_trainable(messages: Sequence[tuple[int, Any]], what: TrainOnWhat) -> None:
    """Refuses the key ``trainable`` where nothing reads it, and its absence where it is read."""
    for number, message in messages:
        where = f"message {number} ({message['role']})"
        if what != TrainOnWhat.CUSTOMIZED and "trainable" in message:
            raise RenderError(
                f"{where}: trainable is read by train_on='customized' alone, and this is "
                f"{what.value!r}; remove the key, or choose 'customized'"
            )
        if what == TrainOnWhat.CUSTOMIZED and not isinstance(message.get("trainable"), bool):
            raise RenderError(
                f"{where}: train_on='customized' needs the key trainable, True or False, on every "
                f"message, got {message.get('trainable')!r}"
            )
