"""A rendered part of a conversation: its own ids, who wrote each, and where they stand."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np

from mintjax.renderers.errors import RenderError
from mintjax.renderers.format import Channel
from mintjax.renderers.messages import Call
from mintjax.renderers.pieces import Source, Tokens
from mintjax.renderers.sampled import check_stop, to_ids


@dataclass(frozen=True)
class Cursor:
    """What the next extension has to know of a conversation: a few small fields, never history.

    Attributes:
        renderer: name of the renderer that wrote the conversation.
        tools: hash of the tools that were declared; empty where none were.
        stops: ids of the stop tokens.
        messages: how many messages the conversation has, a reply that is being awaited included.
        awaiting: true while the stream ends with a generation prompt.
        ending: how the last message's text ends, as far as it counts for the next header
            (``Format.between``).
        begins: the channel that the awaited reply begins in.
        called: how many tool calls replies have made, but for those that were sampled last.
        calls: the tool calls of the last reply where it was given as text.
        sampled: int32 ``[n]``, the ids of the last reply where the policy spoke it; None where it
            was given as text.
    """

    renderer: str
    tools: str
    stops: tuple[int, ...]
    messages: int
    awaiting: bool
    ending: str = ""
    begins: Channel = "content"
    called: int = 0
    calls: tuple[Call, ...] = ()
    sampled: np.ndarray | None = field(default=None, repr=False, compare=False)

    def check_follows(self, renderer: str) -> None:
        """Refuses to be extended by another renderer, or before its reply has come.

        Raises:
            RenderError: naming the renderers, or the reply that is awaited.
        """
        if self.renderer != renderer:
            raise RenderError(
                f"extend: written by renderer {self.renderer!r}, and this is {renderer!r}; extend "
                "with the same one"
            )
        if self.awaiting:
            raise RenderError(
                f"extend: message {self.messages - 1} (assistant) is still awaited; give its "
                "sampled ids by with_sampled(ids), an empty list where nothing was sampled"
            )


class Rendered(Sequence[int]):
    """The ids that one rendering, extension or sample added, linked to what stands before them.

    Attributes:
        ids: int32 ``[n]``; its own ids.
        sampled: bool ``[n]``; true on ids that the policy emitted, its stop token included. Where
            an assistant message was given as text, true on what the policy would have to emit after
            this renderer's generation prompt.
        message: int32 ``[n]``; number of the message that the id belongs to, counted from the start
            of the conversation; -1 for what belongs to none (BOS, a default system prompt). A
            generation prompt belongs to the reply that it asks for.
        source: int8 ``[n]``; who wrote the id, a ``Source``.
        start: how many ids of the conversation stand before these.
        cursor: what an extension needs to know.
        before: the conversation before these ids; None at its start.
    """

    def __init__(
        self,
        tokens: Tokens,
        cursor: Cursor,
        before: "Rendered | None" = None,
        weights: np.ndarray | None = None,
    ) -> None:
        """Links tokens to the conversation before them. The arrays become read-only."""
        self.ids, self.sampled, self.message, self.source = tokens
        self._weights = weights
        for array in tokens if weights is None else (*tokens, weights):
            array.flags.writeable = False
        self.cursor = cursor
        self.before = before
        self.start: int = 0 if before is None else before.start + len(before)

    @property
    def weights(self) -> np.ndarray:
        """Loss weights, float32 ``[n]``: 1 on sampled ids, unless a supervised rendering chose."""
        # Made when they are asked for: a turn that is only sampled from needs none.
        if self._weights is None:
            self._weights = self.sampled.astype(np.float32)
            self._weights.flags.writeable = False
        return self._weights

    def __len__(self) -> int:
        """How many ids of its own."""
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        """One own id as an int, or a slice of them as a list."""
        return self.ids[index].tolist()

    def __iter__(self) -> Iterator[int]:
        """The own ids as ints."""
        return iter(self.ids.tolist())

    def __repr__(self) -> str:
        """Where it stands and how long it is; ids would fill the screen."""
        return f"Rendered({len(self)} ids from {self.start}, {self.cursor.messages} messages)"

    def whole(self) -> "Rendered":
        """The conversation from its first id to the last of these, as one ``Rendered``.

        Example:
            >>> list(answered.whole()) == [*prompt, *answered]
            True
        """
        chain: list[Rendered] = []
        link: Rendered | None = self
        while link is not None:
            chain.append(link)
            link = link.before
        chain.reverse()
        return Rendered(
            Tokens(
                np.concatenate([link.ids for link in chain]),
                np.concatenate([link.sampled for link in chain]),
                np.concatenate([link.message for link in chain]),
                np.concatenate([link.source for link in chain]),
            ),
            self.cursor,
            weights=np.concatenate([link.weights for link in chain]),
        )

    def with_sampled(self, ids: Any) -> "Rendered":
        """The conversation after the policy spoke.

        Its own ids are the sampled ones; nothing before them is copied.

        Args:
            ids: int ``[n]``, what the policy emitted, verbatim: the stop token where it emitted
                one, nothing after it. No ids at all are a reply that was cut off at once.

        Raises:
            RenderError: where no reply is awaited, where ids follow a stop token, or where an entry
                is no id.

        Example:
            >>> answered = prompt.with_sampled([6023, 151645])
            >>> following = renderer.render([{"role": "user", "content": "and?"}], extend=answered)
        """
        number = self.cursor.messages - 1
        if not self.cursor.awaiting:
            raise RenderError(
                f"message {number}: no reply is awaited here; render the next messages with "
                "extend=, which ends with a generation prompt, and give that the sampled ids (all "
                "of one reply at once)"
            )
        where = f"message {number} (assistant)"
        sampled = to_ids(ids, where)
        check_stop(sampled, self.cursor.stops, where)
        shape = sampled.shape
        tokens = Tokens(
            sampled,
            np.ones(shape, bool),
            np.full(shape, number, np.int32),
            np.full(shape, Source.SAMPLED, np.int8),
        )
        return Rendered(tokens, replace(self.cursor, awaiting=False, sampled=sampled), self)
