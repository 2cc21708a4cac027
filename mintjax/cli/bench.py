"""``mintjax bench``: measure on this machine, and show each ratio as a row."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from mintjax.bench.rows import Benchmark, Row

_WIDTH = 120
_PICTURES = (".png", ".svg", ".pdf")


def bench(arguments: Sequence[str]) -> int:
    """Run ``mintjax bench``.

    Args:
        arguments: the command line after ``bench``.

    Returns:
        The exit status.

    Raises:
        SystemExit: where the command line cannot be used; its status is 2.

    Example:
        >>> bench(["rollout_vs_reprefill_8", "--json"])
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    from rich.console import Console

    from mintjax.bench.registry import BENCHMARKS
    from mintjax.train.compiles import keep_compiled

    if unknown := sorted(set(options.names) - BENCHMARKS.keys()):
        parser.error(f"NAME: no benchmark is called {unknown[0]!r}; --list names those there are")
    if options.list:
        _list(BENCHMARKS.values())
        return 0
    chosen = [BENCHMARKS[name] for name in options.names]
    if not chosen and options.plot is None:
        chosen = [benchmark for benchmark in BENCHMARKS.values() if not benchmark.by_name]
    keep_compiled()
    progress = Console(stderr=True)
    rows = _measured(chosen, options.runs, progress)
    if options.json:
        for row in rows:
            print(row.as_json(), flush=True)
    elif chosen:
        _show(rows)
    if options.plot is not None:
        _plot(options.plot, options.runs, progress)
    return 0


def _measured(chosen: "Sequence[Benchmark]", runs: int, progress: "Console") -> "Iterable[Row]":
    """Run benchmarks one after the other; what is being measured is seen in a terminal only."""
    for number, benchmark in enumerate(chosen, 1):
        with progress.status(f"{number}/{len(chosen)} {benchmark.name}"):
            row = benchmark.run(runs)
        yield row


def _show(rows: "Iterable[Row]") -> None:
    """Print rows as a table when all are there."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("benchmark", overflow="fold")
    for heading in ("ours", "other", "unit", "ratio", "90 % interval", "CPU ratio"):
        table.add_column(heading, justify="left" if heading == "unit" else "right")
    for row in rows:
        cpu = row.details.get("cpu_ratio")
        table.add_row(
            row.name,
            f"{row.ours:.4g}",
            f"{row.other:.4g}",
            row.unit,
            f"{row.ratio:.3f}",
            "{:.3f} .. {:.3f}".format(*row.spread),
            "" if cpu is None else f"{cpu:.3f}",
        )
    # What is no terminal has no width to fold names to.
    width = None if sys.stdout.isatty() else _WIDTH
    Console(highlight=False, width=width).print(table)


def _list(benchmarks: "Iterable[Benchmark]") -> None:
    """Print what can be measured, a line each."""
    for benchmark in benchmarks:
        when = "; only by name" if benchmark.by_name else ""
        print(f"{benchmark.name:38} {benchmark.about}{when}")


def _plot(path: Path, runs: int, progress: "Console") -> None:
    """Measure conversations of ever more turns, and draw them."""
    from mintjax.bench.turns_plot import TURNS, draw, measure

    points = []
    with progress.status("") as status:
        for turns in TURNS:
            status.update(f"{turns} turns")
            points.append(measure(turns, runs))
    draw(points, path)
    print(f"plot: {path}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="mintjax bench",
        description="Measure ratios of two things that are timed in turn in one run, on this machine.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a benchmark; by default all that take no minutes"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object a line")
    parser.add_argument(
        "--runs", type=_count, default=9, metavar="N", help="time each of the two N times (9)"
    )
    parser.add_argument(
        "--plot",
        type=_picture,
        metavar="FILE",
        help="draw time and memory against turns (.png, .svg, .pdf); without a NAME, measure nothing else",
    )
    parser.add_argument("--list", action="store_true", help="name the benchmarks and stop")
    return parser


def _count(text: str) -> int:
    """Return a number of runs, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


def _picture(text: str) -> Path:
    """Return the path of a picture, in a format that is sure to be written after minutes of measuring."""
    if Path(text).suffix not in _PICTURES:
        raise argparse.ArgumentTypeError(
            f"expected a file name that ends in {', '.join(_PICTURES)}, got {text!r}"
        )
    return Path(text)
