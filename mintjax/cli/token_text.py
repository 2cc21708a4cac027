"""Tokens of a rendering for a terminal."""

from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from mintjax.cli.token_view import Token
from mintjax.renderers import Source

STYLES = {
    Source.HEADER: "bright_black",
    Source.CONTENT: "blue",
    Source.FORMAT: "magenta",
    Source.GLUE: "yellow",
    Source.PREFILL: "cyan",
    Source.SAMPLED: "green",
}


def legend() -> Text:
    """The colours, and the mark of what trains.

    Example:
        >>> legend().plain
        'header content format glue prefill sampled trains'
    """
    names = [(source.name.lower(), style) for source, style in STYLES.items()]
    return Text(" ").join(Text(name, style) for name, style in [*names, ("trains", "underline")])


def to_text(tokens: Sequence[Token], speakers: Sequence[str]) -> Text:
    """Tokens in the colours of their sources, a heading before each message; what trains is underlined.

    Args:
        tokens: of one rendering.
        speakers: who says each message; the generation prompt's is one past the last.

    Example:
        >>> console.print(to_text(tokens_of(prompt, tokenizer.decode), ["user"]))
    """
    text = Text()
    for number, run in groupby(tokens, lambda token: token.message):
        text.append(f"{heading(number, speakers)}\n", style="bold")
        for token in run:
            trains = " underline" if token.weight else ""
            text.append(token.text.replace("\n", "⏎\n"), style=STYLES[token.source] + trains)
        text.append("" if text.plain.endswith("\n") else "\n")
    return text


def heading(number: int, speakers: Sequence[str]) -> str:
    """A message's number and role.

    Example:
        >>> heading(0, ["user"])
        'message 0, user'
    """
    if number < 0:
        return "of no message"
    if number < len(speakers):
        return f"message {number}, {speakers[number]}"
    return f"message {number}, assistant, to come"
