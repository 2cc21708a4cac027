"""Time and memory against the turns of a conversation: a plot of what each further turn costs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mintjax.bench.clock import interleaved
from mintjax.bench.gradient_plans import PACKED, PACKED_REMAT, temporary
from mintjax.bench.models import SMALL, random_batch, random_policy, tokens_of
from mintjax.bench.rollouts import RolloutSize, carried, observations, run_again
from mintjax.models.config import ModelConfig
from mintjax.train.plan import Plan

TURNS = (1, 2, 4, 8, 16, 32)
# Okabe and Ito's colours, told apart by colour-blind readers; lines and markers differ too.
_OURS, _OTHER, _THIRD = ("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#56B4E9", "^", ":")


class Point(NamedTuple):
    """What conversations of so many turns cost.

    Attributes:
        turns: how many.
        tokens: of one conversation.
        carried: seconds of a rollout over a carried cache.
        run_again: seconds of a rollout that runs every prompt again.
        segments: MiB of the compiler's memory for one conversation's gradient, by the segment scan.
        packed_remat: the same by a packed row with remat.
        packed: the same by a packed row.
    """

    turns: int
    tokens: int
    carried: float
    run_again: float
    segments: float
    packed_remat: float
    packed: float


def measure(turns: int, runs: int, model: ModelConfig = SMALL) -> Point:
    """Measures conversations of so many turns, 4 side by side.

    Args:
        turns: how many.
        runs: how often each rollout is timed.
        model: what samples and is trained.

    Returns:
        What they cost.

    Example:
        >>> points = [measure(turns, runs=9) for turns in TURNS]
    """
    policy, news = random_policy(model), observations(RolloutSize(model, turns))
    ours, other = interleaved(
        lambda: carried(policy, news), lambda: run_again(policy, news), runs=runs
    )
    batch = random_batch(model, 1, tokens_of(turns))
    plans = (Plan("segments"), PACKED_REMAT, PACKED)
    memory = (temporary(policy, batch, plan) / 2**20 for plan in plans)
    return Point(turns, tokens_of(turns), ours.seconds, other.seconds, *memory)


def draw(points: Sequence[Point], path: Path) -> None:
    """Draws both, time on the left and memory on the right.

    Args:
        points: at least one.
        path: the picture; its ending says which format.

    Example:
        >>> draw([measure(turns, runs=9) for turns in TURNS], Path("turns.png"))
    """
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    time, memory = figure.subplots(1, 2)
    _lines(time, points, "seconds of a rollout, 4 conversations", [
        ("carried cache", lambda p: p.carried, _OURS),
        ("every prompt run again", lambda p: p.run_again, _OTHER),
    ])  # fmt: skip
    _lines(memory, points, "MiB for the gradient of one conversation", [
        ("segment scan", lambda p: p.segments, _OURS),
        ("packed row, remat", lambda p: p.packed_remat, _OTHER),
        ("packed row", lambda p: p.packed, _THIRD),
    ])  # fmt: skip
    figure.savefig(path, dpi=150)


def _lines(
    axes: Axes,
    points: Sequence[Point],
    what: str,
    lines: Sequence[tuple[str, Callable[[Point], float], tuple[str, str, str]]],
) -> None:
    """Draws lines over the turns, and writes what they are."""
    for label, figure_of, (color, marker, style) in lines:
        axes.plot(
            [point.turns for point in points],
            [figure_of(point) for point in points],
            color=color,
            marker=marker,
            linestyle=style,
            label=label,
        )
    axes.set_xlabel("turns")
    axes.set_ylabel(what)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
