"""What a docstring says of a function and of its parameters: Google's, numpy's and reStructuredText's ways of writing it."""

import inspect
import re
from collections.abc import Sequence
from typing import NamedTuple

_PARAMETERS = ("args", "arguments", "parameters", "params", "other parameters", "keyword args")
_SECTIONS = (
    *_PARAMETERS, "returns", "return", "raises", "yields", "example", "examples", "note", "notes",
    "attributes", "see also", "warns", "warnings", "references", "todo", "methods", "receives",
)  # fmt: skip
_GOOGLE_ENTRY = re.compile(r"(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
_FIELD = re.compile(r":(\w+)(?:\s+([^:]*))?:\s*(.*)")


class Documented(NamedTuple):
    """What a docstring says.

    Attributes:
        description: all before the first section, lines as they are.
        parameters: what is said of each parameter, on one line.
    """

    description: str
    parameters: dict[str, str]


def parse_docstring(text: str) -> Documented:
    r"""Reads a docstring; which way it is written shows in its sections.

    Args:
        text: the docstring, indented or not.

    Returns:
        What it says; empty texts and dicts where it says nothing.

    Example:
        >>> parse_docstring("Adds.\n\nArgs:\n    x: The first\n        number.").parameters
        {'x': 'The first number.'}
    """
    lines = inspect.cleandoc(text).splitlines()
    description: list[str] = []
    parameters: dict[str, str] = {}
    start = 0
    while start < len(lines) and not _opens(lines, start):
        description.append(lines[start])
        start += 1
    while start < len(lines):
        end = start + 1
        while end < len(lines) and not _opens(lines, end):
            end += 1
        parameters |= _section(lines[start:end])
        start = end
    return Documented("\n".join(description).strip(), parameters)


def _opens(lines: Sequence[str], place: int) -> bool:
    """Whether a section, or a field of reStructuredText, begins at a line."""
    line = lines[place]
    if line[:1].isspace():
        return False
    if _FIELD.fullmatch(line):
        return True
    if line.endswith(":") and line[:-1].strip().lower() in _SECTIONS:
        return True
    return line.strip().lower() in _SECTIONS and _underlined(lines[place:])


def _underlined(lines: Sequence[str]) -> bool:
    """Whether the first line is a heading of numpy's way."""
    return len(lines) > 1 and re.fullmatch(r"-{3,}\s*", lines[1]) is not None


def _section(lines: Sequence[str]) -> dict[str, str]:
    """The parameters that a section tells of."""
    field = _FIELD.fullmatch(lines[0])
    if field:
        kind, named, first = field.groups()
        if kind not in ("param", "parameter", "arg", "argument") or not named:
            return {}
        return {named.split()[-1]: _joined([first, *lines[1:]])}
    if lines[0].rstrip(":").strip().lower() not in _PARAMETERS:
        return {}
    if _underlined(lines):
        return _entries(lines[2:], _NUMPY_ENTRY)
    return _entries(lines[1:], _GOOGLE_ENTRY)


def _entries(lines: Sequence[str], entry: re.Pattern[str]) -> dict[str, str]:
    """Name and text of each entry: they begin where the section's lines are indented least."""
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in lines:
        if not line.strip():
            continue
        indented = len(line) - len(line.lstrip()) > min(indents)
        begins = None if indented else entry.fullmatch(line.strip())
        if begins:
            names = [name.strip() for name in begins[1].split(",")]
            text = begins[2] if begins.re.groups > 1 else ""
            found |= {name: [text] for name in names}
        else:
            for name in names:
                found[name].append(line)
    return {name: _joined(texts) for name, texts in found.items()}


def _joined(lines: Sequence[str]) -> str:
    """Lines as one."""
    return " ".join(" ".join(lines).split())
