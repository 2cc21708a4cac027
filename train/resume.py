"""Where an interrupted run goes on: at its newest whole checkpoint, as if nothing came after it."""

import re
from pathlib import Path

from mintjax.train.checkpoints import Checkpoint, discard_unlisted, latest
from mintjax.train.durable import append_row, read_rows, write_rows
from mintjax.train.run_directory import RunDirectory


def resume(run: RunDirectory) -> Checkpoint | None:
    """Cut a run back to its newest whole checkpoint.

    Rows of ``metrics.jsonl`` past it move to ``metrics.jsonl.pre_resume``. Episodes and transcripts
    past it are deleted: going on writes them again. A new run directory is left as it is.

    Args:
        run: the run's directory, entered by ``open_run``.

    Returns:
        The checkpoint to restore; None where the run starts from the beginning.

    Warns:
        CheckpointWarning: if a newer checkpoint is damaged.

    Example:
        >>> checkpoint = resume(run)
        >>> first_step = checkpoint.step + 1 if checkpoint else 1
    """
    checkpoint = latest(run)
    # Without a checkpoint even row 0, the evaluation before the first step, is done again.
    last = checkpoint.step if checkpoint else -1
    _cut_metrics(run.metrics, last)
    for folder in (run.rollouts(0).parent, run.evaluation(0).parent, run.transcript(0).parent):
        for file in folder.iterdir():
            if (step := _step_of(file)) is None or step > last:
                file.unlink()
    discard_unlisted(run, after=last)
    return checkpoint


def _cut_metrics(path: Path, last: int) -> None:
    """Move the rows past a step aside."""
    rows = read_rows(path)
    kept = [row for row in rows if row["step"] <= last]
    aside = path.with_name(path.name + ".pre_resume")
    for row in rows[len(kept) :]:
        append_row(aside, row)
    if path.exists():
        write_rows(path, kept)


def _step_of(file: Path) -> int | None:
    """Return the step in a file's name; None for what a killed writer left."""
    match = re.fullmatch(r"step_(\d+)\.(jsonl|html)", file.name)
    return int(match[1]) if match else None
