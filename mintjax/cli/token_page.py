"""Tokens of renderings as one HTML page that loads nothing from elsewhere."""

import html
from collections.abc import Sequence
from itertools import groupby

from mintjax.cli.token_text import heading
from mintjax.cli.token_view import Token
from mintjax.renderers import Source

# Name: what the legend says of it, its hue. The hues stay apart for colour-blind eyes.
_SOURCES = {
    Source.HEADER: ("words of the format before a message", "#9aa0a6"),
    Source.CONTENT: ("a caller's words", "#56b4e9"),
    Source.FORMAT: ("words of the format inside a message", "#cc79a7"),
    Source.GLUE: ("what closes a message", "#e69f00"),
    Source.PREFILL: ("first words of a reply, given", "#f0e442"),
    Source.SAMPLED: ("what the policy sampled", "#009e73"),
}
_STYLE = (
    """
:root { color-scheme: light dark; --ink: #1d1f21; --dim: #62676c; --paper: #fff; --line: #d5d8db; --tint: 26% }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --dim: #9aa0a6; --paper: #16181a; --line: #3a3e42; --tint: 38% }
}
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
body { max-width: 66rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.25rem } h2 { font-size: 1rem; margin: 2rem 0 .5rem }
h3 { font-size: .8rem; font-weight: 600; color: var(--dim); margin: 1rem 0 .2rem }
p, .legend { color: var(--dim); font-size: .85rem; margin: .3rem 0 }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: 0; list-style: none }
.legend b { color: var(--ink); font-weight: 400; padding: 0 .4em }
.tokens { border-left: 2px solid var(--line); padding-left: .8rem; font: 14px/1.9 ui-monospace, monospace }
.tokens { white-space: pre-wrap; overflow-wrap: anywhere; tab-size: 4 }
.tokens span, .legend b { border-radius: 3px; background: color-mix(in srgb, var(--hue) var(--tint), var(--paper)) }
.tokens span { margin-right: 1px; cursor: default }
.tokens i { font-style: normal; color: var(--dim) }
.trains { box-shadow: inset 0 -2px var(--ink) }
.tokens span:hover { outline: 2px solid var(--ink) }
.tokens span:hover::after { content: attr(data-tip); position: fixed; left: 1rem; bottom: 1rem }
.tokens span:hover::after { background: var(--ink); color: var(--paper); padding: .2rem .7rem; border-radius: 3px }
.tokens span:hover::after { font: 13px/1.6 system-ui, sans-serif; white-space: pre; pointer-events: none }
""".strip()
    + "\n"
    + "\n".join(
        f".{source.name.lower()} {{ --hue: {hue} }}" for source, (_, hue) in _SOURCES.items()
    )
)


def to_page(renderings: Sequence[Sequence[Token]], speakers: Sequence[str], *, title: str) -> str:
    """Writes a page: a legend, then every token in the colour of its source.

    A token that is pointed at tells its place, id, message, source and loss weight; those that train are underlined.

    Args:
        renderings: of one conversation, each its tokens in order.
        speakers: who says each message.
        title: what the page says on top.

    Returns:
        HTML; everything that a caller or a model said is escaped in it.

    Example:
        >>> Path("page.html").write_text(to_page([tokens], ["user"], title="qwen3"))
    """
    legend = "".join(
        f'<li><b class="{source.name.lower()}">{source.name.lower()}</b> {meaning}</li>'
        for source, (meaning, _) in _SOURCES.items()
    )
    legend += '<li><b class="trains">underlined</b> trains: its loss weight is not 0</li>'
    parts = []
    for number, tokens in enumerate(renderings, start=1):
        if len(renderings) > 1:
            parts.append(f"<h2>Rendering {number} of {len(renderings)}</h2>")
        trains = sum(token.weight > 0 for token in tokens)
        parts.append(f"<p>{len(tokens)} tokens, {trains} of them train</p>")
        for message, run in groupby(tokens, lambda token: token.message):
            parts.append(f"<h3>{html.escape(heading(message, speakers))}</h3>")
            parts.append(f'<div class="tokens">{"".join(map(_token, run))}</div>')
    body = "\n".join(parts)
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title>
<style>
{_STYLE}
</style></head>
<body>
<h1>{html.escape(title)}</h1>
<ul class="legend">{legend}</ul>
{body}
</body>
</html>
"""


def _token(token: Token) -> str:
    """One token."""
    source = token.source.name.lower()
    mask = "sampled" if token.sampled else "not sampled"
    belongs = "no message" if token.message < 0 else f"message {token.message}"
    tip = (
        f"token {token.place}, id {token.id}: {source}, {belongs}, {mask}, weight {token.weight:g}"
    )
    shown = html.escape(token.text).replace("\n", "<i>⏎</i>\n")
    if token.part:
        shown = "<i>·</i>"
    classes = f"{source} trains" if token.weight else source
    return f'<span class="{classes}" data-id="{token.id}" data-tip="{tip}">{shown}</span>'
