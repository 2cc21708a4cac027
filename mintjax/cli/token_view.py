"""A rendering as tokens to look at: what each says, who wrote it, and whether it trains."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mintjax.renderers import Rendered, Source

_LONGEST = 4  # bytes of a character, and so tokens
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Token(NamedTuple):
    """One token.

    Attributes:
        place: its index in the rendering.
        id: its id.
        text: what it says, with characters that do not print by their codes; a character that takes several tokens
            stands with the first of them.
        part: whether it is one of the other tokens of such a character.
        source: who wrote it.
        message: number of the message that it belongs to; -1 for none.
        sampled: whether the policy emits it.
        weight: its loss weight.
    """

    place: int
    id: int
    text: str
    part: bool
    source: Source
    message: int
    sampled: bool
    weight: float


def tokens_of(rendered: Rendered, decode: Callable[[Sequence[int]], str]) -> list[Token]:
    r"""Reads a rendering token by token.

    Args:
        rendered: the rendering; what stands before it is left out.
        decode: ids to text, control tokens by name.

    Example:
        >>> [token.text for token in tokens_of(prompt, tokenizer.decode)][:3]
        ['<|im_start|>', 'user', '\n']
    """
    columns = zip(
        rendered.ids.tolist(),
        _texts(rendered, decode),
        rendered.source.tolist(),
        rendered.message.tolist(),
        rendered.sampled.tolist(),
        rendered.weights.tolist(),
        strict=True,
    )
    return [
        Token(place, token, visible(text or ""), text is None, Source(source), *rest)
        for place, (token, text, source, *rest) in enumerate(columns)
    ]


def visible(text: str) -> str:
    r"""A text with what does not print written as its code; line breaks and tabs stay.

    Example:
        >>> visible("a\x1b[0m")
        'a\\x1b[0m'
    """
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1]
        for letter in text
    )


def _texts(rendered: Rendered, decode: Callable[[Sequence[int]], str]) -> list[str | None]:
    """The text of each token; None for those that only finish a character."""
    ids, texts = rendered.ids.tolist(), []
    while len(texts) < len(ids):
        start = len(texts)
        ends = range(start + 1, min(start + _LONGEST, len(ids)) + 1)
        whole = next(
            (end for end in ends if not decode(ids[start:end]).endswith(_BROKEN)), start + 1
        )
        texts += [decode(ids[start:whole]), *[None] * (whole - start - 1)]
    return texts
