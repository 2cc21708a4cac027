"""What a run says as it goes: live in a terminal, plain lines elsewhere, all of it in run.log."""

import datetime
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

_FIGURES = {
    "rewards/turn/mean": "reward a turn",
    "eval/greedy/rewards/turn/mean": "greedy",
    "frac_reward_zero_std": "constant groups",
    "loss": "loss",
    "eval/loss": "held out",
    "rewards/accuracies": "right pairs",
    "grad_norm": "grad norm",
    "mismatch/logp_abs_mean": "mismatch",
    "time/step": "seconds",
}


class Reporter:
    """Prints a run's lines. Made by ``report``."""

    def __init__(self, console: Console, log: Path, bar: Progress | None, steps: int) -> None:
        """Bind the outputs; ``bar`` is there in a terminal only."""
        self._console = console
        self._log = log
        self._bar = bar
        self._steps = steps
        self._task = bar.add_task("starting", total=steps) if bar else None

    def phase(self, name: str) -> None:
        """Show what is being done now; seen in a terminal only.

        Args:
            name: a word or two, such as "rollout".

        Example:
            >>> reporter.phase("gradients")
        """
        if self._bar and self._task is not None:
            self._bar.update(self._task, description=name)

    def step(self, row: Mapping[str, Any]) -> None:
        """Print one line for a row of the metrics.

        Args:
            row: as ``append_metrics`` returned it.

        Example:
            >>> reporter.step(append_metrics(run.metrics, step, values))
        """
        figures = [
            f"{label} {row[name]:.4g}"
            for name, label in _FIGURES.items()
            if row.get(name) is not None
        ]
        self.say(f"step {row['step']}/{self._steps}  " + "  ".join(figures))
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=row["step"])

    def say(self, line: str | Text) -> None:
        """Print a line; model output in it is never read as markup.

        Args:
            line: the line or lines.

        Example:
            >>> reporter.say("resuming after step 10")
        """
        text = Text(line) if isinstance(line, str) else line
        # soft_wrap: a log that is no terminal has no width to wrap or crop to.
        self._console.print(text, soft_wrap=True)
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{now} {text.plain}\n")


@contextmanager
def report(log: Path, steps: int, *, console: Console | None = None) -> Iterator[Reporter]:
    """Print a run's lines until the block ends.

    Args:
        log: the file that keeps every line with its time.
        steps: optimizer steps in all.
        console: where to print; None is standard output. Processes other than the first pass
            ``Console(quiet=True)``.

    Yields:
        What to print with.

    Example:
        >>> with report(run.log, config.steps) as reporter:
        ...     reporter.say("hello")
    """
    console = console or Console(highlight=False)
    if not console.is_terminal:
        yield Reporter(console, log, None, steps)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield Reporter(console, log, bar, steps)
