"""Files that survive a kill: atomic replacement, and JSON lines with one torn row at most."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, so that a rename survives a power cut.

    Args:
        path: an existing directory.

    Example:
        >>> os.rename(partial, final); sync_directory(final.parent)
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, text: str) -> None:
    """Replace a file in one step: a reader sees the old text or the new one, never half of it.

    Args:
        path: the file; its directory exists.
        text: its new content, written as UTF-8.

    Example:
        >>> write_atomic(run.path / "config.yaml", to_yaml(config))
    """
    aside = path.with_name(path.name + ".partial")
    with aside.open("wb") as file:
        file.write(text.encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_directory(path.parent)


def to_line(row: Mapping[str, Any]) -> str:
    """Return a row as one line of JSON, newline included.

    Args:
        row: JSON values only; a NaN or an infinity is refused, since JSON has none.

    Raises:
        ValueError: if a number is not finite.

    Example:
        >>> to_line({"step": 1}).rstrip()
        '{"step": 1}'
    """
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a JSON lines file and wait until it is on the disk.

    A torn row that a killed writer left at the end is cut off first.

    Args:
        path: the file; made if it is not there.
        row: JSON values only.

    Raises:
        ValueError: if a number is not finite.

    Example:
        >>> append_row(run.path / "metrics.jsonl", {"step": 1, "reward": 0.5})
    """
    line = to_line(row).encode("utf-8")
    with path.open("a+b") as file:
        file.truncate(_whole_length(file))
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a JSON lines file; a last row without its newline was torn by a kill and is left out.

    Args:
        path: the file; one that is not there has no rows.

    Returns:
        The rows, in order.

    Raises:
        ValueError: if any other line is not JSON; a kill cannot cause that, so it is not skipped.

    Example:
        >>> read_rows(run.path / "metrics.jsonl")[-1]["step"]
        10
    """
    if not path.exists():
        return []
    rows = []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: expected one JSON object, got {line[:80]!r} ({error}); "
                "repair or delete that line"
            ) from error
    return rows


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace a JSON lines file in one step.

    Args:
        path: the file; its directory exists.
        rows: its new content.

    Raises:
        ValueError: if a number is not finite.

    Example:
        >>> write_rows(index, [row for row in read_rows(index) if row["step"] <= 10])
    """
    write_atomic(path, "".join(map(to_line, rows)))


def _whole_length(file: Any) -> int:
    """Return how many bytes of an open file are whole rows."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    file.seek(0)
    return file.read().rfind(b"\n") + 1
