"""All that a pure environment says, as ids: whole text runs, rendered once and held against the renderer.

Text between two control tokens is encoded in one pass, so no ids of a part can be joined to those of another. What an
environment can say is therefore a table of whole openings and of whole answers, one a row. An answer begins with what the
format writes after a reply, which depends on how the reply ended; so there is one set of answers for each stop token,
and one for replies that ended with none.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int, Int32

from mintjax.renderers import Rendered, Renderer, to_segment
from mintjax.types import Message

Text = tuple[tuple[str, str], ...]  # messages as pairs of role and content
_PROBE = 5  # tokens of the replies that a table is tried with


class TextTableError(ValueError):
    """A table of texts that cannot be made, or is not what the renderer writes; the text names the row and the cure."""


class News(NamedTuple):
    """What an environment says at once: one token segment.

    Attributes:
        tokens: int32 ``[S]``, right-padded; S is the table's.
        length: how many are real.
        row: of the table, for the record of what was said.
    """

    tokens: Int32[Array, " S"]
    length: Int32[Array, ""]
    row: Int32[Array, ""]


class TextTable(struct.PyTreeNode):
    """R openings and Q answers; made by :func:`text_table`.

    Attributes:
        openings: the openings as messages. Static.
        answers: the answers as messages. Static.
        opening_tokens: their ids, right-padded.
        opening_lengths: how many are real.
        answer_tokens: ids of each answer after each of E endings: a stop token each, and none at the end.
        answer_lengths: how many are real.
        stops: the E - 1 stop tokens.
    """

    openings: tuple[Text, ...] = struct.field(pytree_node=False)
    answers: tuple[Text, ...] = struct.field(pytree_node=False)
    opening_tokens: Int32[Array, "R P"]
    opening_lengths: Int32[Array, " R"]
    answer_tokens: Int32[Array, "E Q S"]
    answer_lengths: Int32[Array, "E Q"]
    stops: Int32[Array, " n"]

    def opening(self, row: Int[Array, ""]) -> News:
        """What the conversation begins with.

        Args:
            row: of the openings.

        Returns:
            The segment; of length 0 where the table has no such row.

        Example:
            >>> news = table.opening(jnp.int32(0))
        """
        return _news(self.opening_tokens, self.opening_lengths, row)

    def after(self, row: Int[Array, ""], ids: Int32[Array, " M"], length: Int[Array, ""]) -> News:
        """What is said after a reply, with what the format writes between the two.

        Args:
            row: of the answers.
            ids: the reply.
            length: how many ids are real.

        Returns:
            The segment; of length 0 where the table has no such row.

        Example:
            >>> news = table.after(jnp.int32(0), ids, length)
        """
        ending = self._ending(ids, length)
        return _news(self.answer_tokens[ending], self.answer_lengths[ending], row)

    def ended(self, ids: Int32[Array, " M"], length: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether a reply ended by itself: its last id is a stop token.

        Example:
            >>> exact = table.ended(ids, length) & (said == wanted)
        """
        return self._ending(ids, length) < self.stops.shape[0]

    def _ending(self, ids: Int32[Array, " M"], length: Int[Array, ""]) -> Int[Array, ""]:
        """Place of the stop token that a reply ended with, one past the last for none."""
        last = jnp.where(length > 0, ids[jnp.maximum(length - 1, 0)], -1)
        matches = jnp.append(self.stops == last, True)
        return jnp.argmax(matches)


def text_table(
    renderer: Renderer,
    openings: Sequence[Sequence[Message]],
    answers: Sequence[Sequence[Message]],
) -> TextTable:
    """Renders all texts of an environment, and holds the table against the renderer.

    Args:
        renderer: bound to the policy's tokenizer.
        openings: what a conversation can begin with, messages of role and text; at least one.
        answers: what can be said after a reply; none where episodes have a single turn.

    Returns:
        The table.

    Raises:
        TextTableError: where the renderer looks for texts to end a reply, a message is more than role and text, or what the
            renderer writes after a reply depends on more than its last id.

    Example:
        >>> table = text_table(renderer, [[{"role": "user", "content": "Say yes."}]], [])
        >>> table.opening_tokens.shape
        (1, 16)
    """
    if renderer.stop_strings:
        raise TextTableError(
            f"renderer: {renderer.name!r} ends a reply with the text {renderer.stop_strings[0]!r}, and a program of "
            f"arrays sees ids alone; take a renderer whose replies end with a token, as 'chatml', or play on the host "
            f"(rollout.where=host)"
        )
    texts = [
        tuple(_text(messages, kind, number) for number, messages in enumerate(rows))
        for kind, rows in (("openings", openings), ("answers", answers))
    ]
    begun = [renderer.render(messages) for messages in openings]
    stops = renderer.stop_tokens()
    after = [begun[0].with_sampled(ending) for ending in ([stop] for stop in stops)]
    after.append(begun[0].with_sampled([]))
    said = to_segment(begun)
    rows = [renderer.render(messages, extend=reply) for reply in after for messages in answers]
    following = to_segment(rows or [[]] * len(after))
    shape = (len(after), max(len(answers), 1))
    table = TextTable(
        openings=texts[0],
        answers=texts[1],
        opening_tokens=jnp.asarray(said.tokens),
        opening_lengths=jnp.asarray(said.length),
        answer_tokens=jnp.asarray(following.tokens.reshape(*shape, -1)),
        answer_lengths=jnp.asarray(following.length.reshape(shape)),
        stops=jnp.asarray(stops, jnp.int32),
    )
    check_texts(renderer, table)
    return table


def check_texts(renderer: Renderer, table: TextTable) -> None:
    """Holds every row of a table against what the renderer writes, after replies of all kinds of ids.

    Args:
        renderer: the one that the table is to be of.
        table: any table.

    Raises:
        TextTableError: naming the first row that differs, and both sides.

    Example:
        >>> check_texts(renderer, table)
    """
    begun = []
    for row, text in enumerate(table.openings):
        begun.append(renderer.render(messages_of(text)))
        held = np.asarray(table.opening_tokens[row])[: int(table.opening_lengths[row])]
        _same(f"openings[{row}]", held, begun[-1], "Make the table anew with text_table")
    tokens, lengths = np.asarray(table.answer_tokens), np.asarray(table.answer_lengths)
    rows = [messages_of(text) for text in table.answers]
    for place, (ending, body) in enumerate(_replies(renderer)):
        # Every answer is tried after every ending; what else a reply may hold changes no answer more than another.
        for row, messages in list(enumerate(rows))[: None if place < len(lengths) * 2 else 1]:
            reply = begun[(place + row) % len(begun)].with_sampled([*body, *ending])
            kind = len(lengths) - 1 if not ending else renderer.stop_tokens().index(ending[0])
            held = tokens[kind, row][: lengths[kind, row]]
            _same(
                f"answers[{row}] after the reply {[*body, *ending]}",
                held,
                renderer.render(messages, extend=reply),
                "Make the table anew with text_table; if that says the same, what this format writes after a reply "
                "depends on more than its last id: play on the host (rollout.where=host)",
            )


def messages_of(text: Text) -> list[Message]:
    """A row of a table as messages.

    Example:
        >>> messages_of((("user", "Say yes."),))
        [{'role': 'user', 'content': 'Say yes.'}]
    """
    return [{"role": role, "content": content} for role, content in text]


def _news(tokens: Int32[Array, "R S"], lengths: Int32[Array, " R"], row: Int[Array, ""]) -> News:
    """A row; of length 0 where there is none, since a look-up past the end would give another one in silence."""
    row = jnp.asarray(row, jnp.int32)
    inside = (row >= 0) & (row < len(lengths))
    return News(tokens[row], jnp.where(inside, lengths[row], 0), row)


def _replies(renderer: Renderer) -> Iterator[tuple[list[int], list[int]]]:
    """Replies to try, as their ending and what stands before it: each ending after ordinary ids, then after control tokens."""
    view, stops = renderer.tokenizer, renderer.stop_tokens()
    assert view is not None  # a renderer without one renders nothing
    random = np.random.default_rng(0)
    endings = [*([stop] for stop in stops), []]
    ordinary = np.setdiff1d(np.arange(view.size), [*stops, *view.control.values()])
    for _ in range(2):
        yield from ((ending, random.choice(ordinary, _PROBE).tolist()) for ending in endings)
    names = (*renderer.form.controls, *renderer.form.channels)
    for token in sorted({view.control[name] for name in names} - set(stops)):
        yield from ((ending, [int(ordinary[0]), token]) for ending in endings)


def _same(what: str, held: np.ndarray, written: Rendered, cure: str) -> None:
    if held.tolist() != list(written):
        raise TextTableError(
            f"{what}: the table has {held.tolist()}, and the renderer writes {list(written)}. {cure}"
        )


def _text(messages: Sequence[Message], kind: str, number: int) -> Text:
    """Messages as pairs, which a static field can hold."""
    for message in messages:
        content = message.get("content")
        if set(message) != {"role", "content"} or not isinstance(content, str):
            raise TextTableError(
                f"{kind}[{number}]: expected messages of role and text alone, came {message!r}; say it as text, or play "
                f"on the host (rollout.where=host)"
            )
    if not messages or messages[-1]["role"] == "assistant":
        raise TextTableError(
            f"{kind}[{number}]: expected a last message that the policy answers, came "
            f"{messages[-1] if messages else None!r}; end with a user message"
        )
    return tuple((message["role"], str(message["content"])) for message in messages)
