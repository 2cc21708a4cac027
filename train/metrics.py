"""metrics.jsonl: one row a step, the step's own figures and those of an evaluation after it.

A step's row is written before its checkpoint, so a checkpoint never lacks the figures that led to
it. Row 0 holds the evaluation before the first step. JSON has no NaN and no infinity: such a value
is written as null, which plots leave out.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat

from mintjax.train.durable import append_row, read_rows

_MACHINE = ("time/", "perf/")


def append_metrics(path: Path, step: int, values: Mapping[str, SupportsFloat]) -> dict[str, Any]:
    """Append one step's figures and wait until they are on the disk.

    Args:
        path: the metrics file.
        step: optimizer steps taken so far; 0 is before the first.
        values: figures by name; numpy and jax scalars are accepted. Integers stay integers.

    Returns:
        The row as it was written, ``step`` first.

    Raises:
        TypeError: if a value is not a number; the message names it.

    Example:
        >>> append_metrics(run.metrics, 1, {"reward": 0.5, "grad_norm": float("nan")})
        {'step': 1, 'reward': 0.5, 'grad_norm': None}
    """
    row: dict[str, Any] = {"step": step}
    for name, value in values.items():
        row[name] = _number(name, value)
    append_row(path, row)
    return row


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics file in the order of their steps.

    Args:
        path: the metrics file; one that is not there has no rows.

    Raises:
        ValueError: if a line in the middle is not JSON.

    Example:
        >>> [row["reward"] for row in read_metrics(run.metrics) if row.get("reward") is not None]
    """
    return read_rows(path)


def reproducible(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a row that a resumed run repeats to the last digit.

    Args:
        row: a row of the metrics file.

    Returns:
        The row without ``time/*`` and ``perf/*``, which measure the machine.

    Example:
        >>> reproducible({"step": 1, "reward": 0.5, "time/step": 3.1})
        {'step': 1, 'reward': 0.5}
    """
    return {name: value for name, value in row.items() if not name.startswith(_MACHINE)}


def _number(name: str, value: SupportsFloat) -> int | float | None:
    """Return a Python number for any scalar, and None for one that is not finite."""
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"metric {name!r}: expected a number, got {value!r}") from error
    if not math.isfinite(number):
        return None
    return int(number) if isinstance(value, int) else number
