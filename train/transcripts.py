"""Episodes on disk and to read: JSON lines with every token, and pages with sampled tokens marked.

One row of ``rollouts/step_000010.jsonl`` is one episode; its turns hold arrays of one length, an
entry a token. What a token does not have is null there, never 0: a logprob of a token that was not
sampled, an advantage of one that was not trained on. Pages are made from rows, so they can be made
again from the files.

Model output is hostile to a page: everything is escaped in HTML, and a terminal gets
``rich.text.Text``, in which square brackets mean nothing.
"""

import html
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from rich.text import Text

from mintjax.train.advantages import Advantages
from mintjax.types import Episode, Turn

Decode = Callable[[Sequence[int]], str]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222 }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
summary { cursor: pointer; font-weight: 600; margin: .6rem 0 }
h2 { font-size: 1rem; margin: 1.2rem 0 .2rem }
.turn { border-left: 3px solid #bbb; padding-left: .8rem; margin: .6rem 0 }
.figures { color: #555; font-size: .85rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0; color: #666 }
mark { background: #d6e8ff; color: #000; border-bottom: 2px solid #0072b2 }
""".strip()


def episode_rows(
    step: int, episodes: Sequence[Episode], advantages: Advantages | None = None
) -> list[dict[str, Any]]:
    """Return episodes as rows of JSON values.

    Args:
        step: the optimizer step that they belong to.
        episodes: as they were sampled.
        advantages: theirs, in the same order; None where nothing is trained on them.

    Returns:
        One row an episode.

    Example:
        >>> write_rows(run.rollouts(10), episode_rows(10, episodes, advantages))
    """
    rows = []
    for i, episode in enumerate(episodes):
        turns = []
        for k, turn in enumerate(episode.turns):
            trained = advantages is not None and bool(advantages.trained[i][k])
            advantage = (
                float(advantages.values[i][k]) if advantages is not None and trained else None
            )
            turns.append(_turn_row(turn, advantage))
        rows.append(
            {
                "step": step,
                "group": episode.group,
                "member": episode.member,
                "seat": episode.seat,
                "reward": episode.reward,
                "stop_reason": episode.stop_reason,
                "error": episode.error,
                "policy_version": episode.policy_version,
                "turns": turns,
            }
        )
    return rows


def to_html(rows: Sequence[dict[str, Any]], decode: Decode, *, title: str) -> str:
    """Return a page of episodes, in groups; it loads nothing from elsewhere.

    Args:
        rows: from ``episode_rows`` or a rollouts file.
        decode: token ids to text, control tokens included.
        title: what the page says on top.

    Returns:
        HTML in which sampled tokens are marked; each tells its log probability and advantage when
        pointed at.

    Example:
        >>> page = to_html(rows, tokenizer.decode, title="count_down, step 10")
        >>> write_atomic(run.transcript(10), page)
    """
    groups = itertools.groupby(
        sorted(rows, key=lambda r: (r["group"], r["seat"], r["member"])), lambda r: r["group"]
    )
    body = "\n".join(_group_html(group, list(members), decode) for group, members in groups)
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style></head>
<body>
<h1>{html.escape(title)}</h1>
<p>Grey text was put in; <mark>marked text</mark> was sampled, the stop token included.</p>
{body}
</body>
</html>
"""


def to_text(row: dict[str, Any], decode: Decode) -> Text:
    """Return one episode for a terminal.

    Args:
        row: from ``episode_rows`` or a rollouts file.
        decode: token ids to text, control tokens included.

    Returns:
        Text in which sampled tokens are coloured and, where there is no colour, in ⟦brackets⟧.

    Example:
        >>> console.print(to_text(rows[0], tokenizer.decode))
    """
    text = Text()
    text.append(_episode_title(row), style="bold")
    for k, turn in enumerate(row["turns"], start=1):
        text.append(f"\n{_turn_title(k, turn)}\n", style="italic")
        for sampled, run in itertools.groupby(
            zip(turn["sampled"], turn["tokens"], strict=True), lambda pair: pair[0]
        ):
            piece = decode([token for _, token in run])
            if sampled:
                text.append(f"⟦{piece}⟧", style="bold blue")
            else:
                text.append(piece, style="dim")
    if row["error"]:
        text.append(f"\n{row['error']}", style="red")
    return text


def _turn_row(turn: Turn, advantage: float | None) -> dict[str, Any]:
    """Return one turn as JSON values."""
    logprobs = [float(x) if math.isfinite(x) else None for x in turn.logprobs]
    return {
        "messages": list(turn.messages),
        "reward": turn.reward,
        "decode_stop": turn.decode_stop,
        "parse_error": turn.parse_error,
        "temperature": turn.temperature,
        "metrics": {name: _finite(value) for name, value in turn.metrics.items()},
        "anchor": turn.anchor,
        "tokens": np.asarray(turn.tokens).tolist(),
        "sampled": np.asarray(turn.sampled).tolist(),
        "logprobs": logprobs,
        "advantages": [advantage if sampled else None for sampled in turn.sampled],
    }


def _finite(value: float) -> float | None:
    """Return a number that JSON has, or None."""
    return float(value) if math.isfinite(value) else None


def _group_html(group: int, rows: list[dict[str, Any]], decode: Decode) -> str:
    """Return one group, folded unless it is the first."""
    rewards = ", ".join(_figure(row["reward"]) for row in rows)
    episodes = "\n".join(_episode_html(row, decode) for row in rows)
    is_open = " open" if group == 0 else ""
    summary = f"<summary>Group {group}: rewards {rewards}</summary>"
    return f"<details{is_open}>{summary}\n{episodes}\n</details>"


def _episode_html(row: dict[str, Any], decode: Decode) -> str:
    """Return one episode."""
    turns = []
    for k, turn in enumerate(row["turns"], start=1):
        tokens = "".join(_piece_html(turn, places, text) for places, text in _pieces(turn, decode))
        title = html.escape(_turn_title(k, turn))
        turns.append(f'<div class="turn"><p class="figures">{title}</p><pre>{tokens}</pre></div>')
    error = f"<pre>{html.escape(row['error'])}</pre>" if row["error"] else ""
    return f"<h2>{html.escape(_episode_title(row))}</h2>\n" + "\n".join(turns) + error


def _piece_html(turn: dict[str, Any], places: range, text: str) -> str:
    """Return the text of a few tokens, marked where they were sampled."""
    if not turn["sampled"][places[0]]:
        return html.escape(text)
    notes = [
        f"token {turn['tokens'][i]}, logprob {_figure(turn['logprobs'][i])}, "
        f"advantage {_figure(turn['advantages'][i])}"
        for i in places
    ]
    return f'<mark title="{html.escape("; ".join(notes))}">{html.escape(text)}</mark>'


def _pieces(turn: dict[str, Any], decode: Decode) -> Iterator[tuple[range, str]]:
    """Cut a turn into the fewest tokens that decode to whole characters."""
    tokens, sampled = turn["tokens"], turn["sampled"]
    start = 0
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[start:end])
        # A character has at most 4 bytes, so 4 tokens; what is still broken then was sampled so.
        half = text.endswith("\N{REPLACEMENT CHARACTER}") and end - start < 4
        if half and end < len(tokens) and sampled[end] == sampled[start]:
            continue
        yield range(start, end), text
        start = end


def _episode_title(row: dict[str, Any]) -> str:
    """Say which episode it is and how it ended."""
    seat = f", seat {row['seat']}" if row["seat"] else ""
    return (
        f"group {row['group']}{seat}, member {row['member']}: reward {_figure(row['reward'])}, "
        f"stopped by {row['stop_reason']}"
    )


def _turn_title(number: int, turn: dict[str, Any]) -> str:
    """Say what a turn earned and how sampling ended."""
    advantage = next((a for a in turn["advantages"] if a is not None), None)
    return (
        f"turn {number}: reward {_figure(turn['reward'])}, advantage {_figure(advantage)}, "
        f"sampling ended by {turn['decode_stop']}"
    )


def _figure(value: float | None) -> str:
    """Show a number that may be missing."""
    return "none" if value is None else f"{value:.4g}"
