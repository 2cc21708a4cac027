"""The reward plot of a run: what sampling earned at each step, and what greedy decoding earned."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mintjax.train.metrics import read_metrics
from mintjax.train.run_directory import RunDirectory

# Okabe and Ito's colours, told apart by colour-blind readers; lines and markers differ too.
_SAMPLED, _GREEDY, _TURN = "#0072B2", "#D55E00", "#56B4E9"
_TURN_STYLES = ("--", "-.", ":", (0, (7, 1, 1, 1, 1, 1)))


def reward(run: RunDirectory, *, title: str) -> tuple[Path, Path]:
    """Draw the mean reward a turn over the steps, and save it.

    Both axes mean the same for every point: the rollout of step n is of the policy after n - 1
    updates, so it stands at n - 1; an evaluation after step n stands at n.

    Args:
        run: the run's directory; its ``metrics.jsonl`` has ``rewards/turn/mean`` and
            ``rewards/turn_1/mean`` and so on, and ``eval/greedy/rewards/turn/mean`` where there
            was an evaluation.
        title: what stands above the plot.

    Returns:
        The paths of ``plots/reward.svg`` and ``plots/reward.png``.

    Raises:
        ValueError: if no row has a reward.

    Example:
        >>> reward(run, title=f"{config.name}: {config.advantage}, {config.model.name}")
    """
    rows = read_metrics(run.metrics)
    sampled = _points(rows, "rewards/turn/mean", updates=-1)
    if not sampled:
        raise ValueError(
            f"{run.metrics}: expected rows with rewards/turn/mean, got none; "
            "a plot needs at least one step"
        )
    greedy = _points(rows, "eval/greedy/rewards/turn/mean", updates=0)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    turns = _turn_curves(rows)
    for i, (turn, curve) in enumerate(turns.items()):
        axes.plot(
            *_columns(curve),
            color=_TURN,
            linewidth=1,
            linestyle=_TURN_STYLES[i % len(_TURN_STYLES)],
            label=f"sampled, turn {turn} only",
        )
    axes.plot(
        *_columns(sampled),
        color=_SAMPLED,
        linewidth=2,
        marker="o",
        markersize=4,
        label="sampled, mean of turns",
    )
    if greedy:
        axes.plot(
            *_columns(greedy),
            color=_GREEDY,
            linestyle="none",
            marker="D",
            markersize=8,
            label="greedy evaluation",
        )
    axes.set_xlabel("optimizer steps taken")
    axes.set_ylabel("mean reward a turn")
    axes.set_title(title, parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    paths = run.plot("reward.svg"), run.plot("reward.png")
    # A fixed salt and no date: the same run draws the same file.
    with matplotlib.rc_context({"svg.hashsalt": "mintjax"}):
        figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=150)
    return paths


def _points(rows: Sequence[dict[str, Any]], name: str, updates: int) -> list[tuple[int, float]]:
    """Return where a metric stands and its value, in the rows that have it."""
    return [(row["step"] + updates, row[name]) for row in rows if row.get(name) is not None]


def _turn_curves(rows: Sequence[dict[str, Any]]) -> dict[int, list[tuple[int, float]]]:
    """Return the points of every single turn, by its number."""
    names = {name for row in rows for name in row}
    found = {int(m[1]): m[0] for n in names if (m := re.fullmatch(r"rewards/turn_(\d+)/mean", n))}
    return {turn: _points(rows, found[turn], updates=-1) for turn in sorted(found)}


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    """Split points into what to draw along either axis."""
    return [x for x, _ in points], [y for _, y in points]
