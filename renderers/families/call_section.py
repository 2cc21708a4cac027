"""Tool calls in a section of control tokens: the shape that Kimi and DeepSeek share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mintjax.renderers.pieces import Own, Piece
from mintjax.renderers.reading import Attempt, Part, Reading, dump_json, load_json
from mintjax.types import ToolCall


@dataclass(frozen=True)
class CallSection:
    """The control tokens of a section, and what stands between two calls.

    Every call is ``call_begins``, its head, ``head_ends``, the rest of it, ``call_ends``.

    Attributes:
        begins: the section.
        call_begins: one call.
        head_ends: what parts its head from the rest.
        call_ends: one call.
        ends: the section.
        glue: the format's words between two calls.
    """

    begins: str
    call_begins: str
    head_ends: str
    call_ends: str
    ends: str
    glue: str = ""

    @property
    def controls(self) -> tuple[str, ...]:
        """The control tokens."""
        return self.begins, self.call_begins, self.head_ends, self.call_ends, self.ends

    def write(
        self, calls: Iterable[tuple[Sequence[Piece], Sequence[Piece]]], begins: str | None = None
    ) -> list[Piece]:
        """A section, of the head and the rest of every call; nothing where there are no calls.

        Args:
            calls: the two halves of each.
            begins: what stands before the first call; by default the token that begins a section.
        """
        pieces: list[Piece] = []
        for head, rest in calls:
            before = self.glue if pieces else self.begins if begins is None else begins
            pieces += [Own(before + self.call_begins), *head, Own(self.head_ends), *rest]
            pieces.append(Own(self.call_ends))
        return [*pieces, Own(self.ends)] if pieces else []

    def read(self, found: Sequence[Part], to_call: Callable[[str, str], ToolCall]) -> Reading:
        """The text of a reply, and its calls.

        A section of which no call can be read stays in the content as it was said; of any other,
        the calls that cannot be read do. A call outside a section is none.

        Args:
            found: the reply, cut at the section's control tokens.
            to_call: makes a call of the texts before and after ``head_ends``; ValueError where it
                cannot.
        """
        content, rest = "", list(found)
        attempts: list[Attempt] = []
        while rest:
            if rest[0].control not in (self.begins, self.call_begins):
                content += rest.pop(0).text
                continue
            ends = (n for n, part in enumerate(rest, 1) if part.control == self.ends)
            end = next(ends, len(rest))
            text, tried = self._read_section(rest[:end], to_call)
            content, rest = content + text, rest[end:]
            attempts += tried
        return Reading(content, None, tuple(attempts))

    def _read_section(
        self, section: list[Part], to_call: Callable[[str, str], ToolCall]
    ) -> tuple[str, list[Attempt]]:
        """What of a section stays in the content, and the attempts in it."""
        kept = ""
        ended = section[-1].control == self.ends
        attempts: list[Attempt] = []
        rest = section[1:] if section[0].control == self.begins else list(section)
        while rest:
            if rest[0].control != self.call_begins:
                part = rest.pop(0)
                kept += "" if part.control == self.ends or part.text == self.glue else part.text
                continue
            over = (self.call_begins, self.call_ends, self.ends)
            end = next((n for n in range(1, len(rest)) if rest[n].control in over), len(rest))
            closed = end < len(rest) and rest[end].control == self.call_ends
            whole, rest = rest[: end + closed], rest[end + closed :]
            attempt = Attempt(
                "malformed" if closed or rest else "unclosed",
                (whole[0].span[0], whole[-1].span[1]),
                _text(whole),
                error="the tool call is not closed",
            )
            if section[0].control != self.begins:
                attempt = attempt._replace(error=f"the tool call stands outside {self.begins}")
            elif closed:
                attempt = self._read_call(attempt, whole[1:-1], to_call)
            kept += "" if attempt.call else attempt.text
            attempts.append(attempt)
        if any(attempt.call for attempt in attempts):
            return kept, attempts
        if not attempts:
            span = (section[0].span[0], section[-1].span[1])
            status = "malformed" if ended else "unclosed"
            error = f"no tool call stands after {self.begins}"
            attempts = [Attempt(status, span, _text(section), error=error)]
        return _text(section), attempts

    def _read_call(
        self, attempt: Attempt, inside: list[Part], to_call: Callable[[str, str], ToolCall]
    ) -> Attempt:
        """An attempt, with the call that the parts between its tokens make or what is wrong."""
        edges = [n for n, part in enumerate(inside) if part.control == self.head_ends]
        if len(edges) != 1:
            error = f"the tool call needs one {self.head_ends}, and has {len(edges)}"
            return attempt._replace(error=error)
        head, rest = _text(inside[: edges[0]]), _text(inside[edges[0] + 1 :])
        try:
            return attempt._replace(status="ok", call=to_call(head, rest), error="")
        except ValueError as error:
            return attempt._replace(error=str(error))


def check_object(text: str) -> str:
    """Arguments as they were said, once they are known to be a JSON object.

    Raises:
        ValueError: saying what they are.

    Example:
        >>> check_object('{"x":1.0}')
        '{"x":1.0}'
    """
    given = load_json(text)
    if not isinstance(given, dict):
        raise ValueError("the tool call's arguments are no JSON object")
    dump_json(given).encode()  # an escape may make half of a surrogate pair
    return text


def _text(found: Sequence[Part]) -> str:
    """What some parts say, control tokens by name."""
    return "".join(part.text for part in found)
