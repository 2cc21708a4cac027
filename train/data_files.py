"""JSONL files of examples: found, read, and told apart by the line where something is wrong."""

import json
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from mintjax.renderers.errors import RenderError
from mintjax.train.packing import Example

Read = Callable[[dict[str, Any]], list[Example]]
T = TypeVar("T")


class DataError(ValueError):
    """A data file that cannot be used; the message names the file, the line and the cure."""


def read_examples(path: str | Path, read: Read) -> list[Example]:
    """Read all examples of a file.

    Args:
        path: a JSONL file, or the name of one that is shipped with mintjax; see :func:`find_data`.
        read: turns the object of a line into examples.

    Returns:
        The examples of all lines, in order.

    Raises:
        DataError: where there is no such file, no line in it, or a line is no JSON object or cannot be read.

    Example:
        >>> examples = read_examples("sft_count_down.jsonl", partial(conversation, renderer=renderer))
    """
    file = find_data(path)
    examples = [example for where, row in _rows(file) for example in _named(where, read, row)]
    if not examples:
        raise DataError(f"{file}: expected an example a line, got an empty file")
    return examples


def find_data(path: str | Path) -> Path:
    """The file that a configuration means.

    Args:
        path: a file; or, where no such file exists, the bare name of one that is shipped with the package.

    Raises:
        DataError: if there is neither; the message names what is shipped.

    Example:
        >>> find_data("sft_count_down.jsonl").name
        'sft_count_down.jsonl'
    """
    given = Path(path)
    if given.is_file():
        return given
    with resources.as_file(resources.files("mintjax.configs")) as folder:
        shipped = {file.name: file for file in sorted(folder.glob("*.jsonl"))}
    if str(path) not in shipped:
        raise DataError(
            f"{given}: no such file; give a JSONL file or one that is shipped: {', '.join(shipped)}"
        )
    return shipped[str(path)]


def _rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Walk the objects of a file, each with the name of its place."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{file}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{where}: expected a JSON object, got {line.strip()!r}") from error
            if not isinstance(row, dict):
                raise DataError(f"{where}: expected a JSON object, got {row!r}")
            yield where, row


def _named(where: str, read: Callable[[dict[str, Any]], T], row: dict[str, Any]) -> T:
    """Read a row; say where it stands if that goes wrong."""
    try:
        return read(row)
    except (RenderError, DataError) as error:
        raise DataError(f"{where}: {error}") from error


def field_of(row: dict[str, Any], name: str) -> Any:
    """A field that a row must have.

    Raises:
        DataError: where it is missing.

    Example:
        >>> messages = field_of(row, "messages")
    """
    if name not in row:
        raise DataError(f"{name}: missing; the row has {', '.join(row) or 'no fields'}")
    return row[name]
