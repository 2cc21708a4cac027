"""The text of ``mintjax train --help``: every dotted field, its type, its default and its use."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from mintjax.train.config import TrainConfig
from mintjax.train.config_schema import KIND, fields_of, is_choice, type_name

_WIDTH = 96


def help_text(config: type = TrainConfig) -> str:
    """Return the documentation of every field, one paragraph each.

    Args:
        config: the dataclass at the top.

    Returns:
        Lines of at most 96 characters, except where a type or default alone is longer.

    Example:
        >>> print(help_text(CheckpointConfig))
        every: int = 1
            Steps between two checkpoints; the last step always has one.
        ...
    """
    return "\n".join(_lines(config, ()))


def field_docs(section: type) -> dict[str, str]:
    """Return the text below each field of a dataclass.

    Args:
        section: a dataclass whose source can be read; its parents document inherited fields.

    Returns:
        The documentation by field name; a field without any is not in it.

    Example:
        >>> field_docs(CheckpointConfig)["keep_last"]
        'How many of the newest are kept.'
    """
    docs: dict[str, str] = {}
    for parent in reversed(section.__mro__):
        if not dataclasses.is_dataclass(parent):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            match statement, following:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    docs[name] = " ".join(text.split())
    return docs


def _lines(section: Any, path: tuple[str, ...], kind: str = "") -> Iterator[str]:
    """Walk a section and the sections below it."""
    docs = field_docs(section)
    types = fields_of(section)
    for field in dataclasses.fields(section):
        keys = (*path, field.name)
        below = types[field.name]
        if is_choice(below):
            yield from _choice_lines(below, keys, docs.get(field.name, ""))
        elif dataclasses.is_dataclass(below):
            yield from _lines(below, keys)
        else:
            yield from _entry(
                keys, type_name(below), _default(field), docs.get(field.name, ""), kind
            )


def _choice_lines(choice: Any, path: tuple[str, ...], doc: str) -> Iterator[str]:
    """Describe the kinds of a section and the fields of each."""
    known = choice.get_known_choices()
    default = choice.default_choice_name()
    shown = " (required)" if default is None else f" = {default}"
    kinds = "; ".join(
        f"{name}: {(inspect.getdoc(kind) or '').splitlines()[0]}" for name, kind in known.items()
    )
    yield from _entry((*path, KIND), " or ".join(known), shown, f"{doc} {kinds}", "")
    for name, kind in known.items():
        yield from _lines(kind, path, f" [{path[-1]}.{KIND}: {name}]")


def _entry(
    keys: tuple[str, ...], kind: str, default: str, doc: str, condition: str
) -> Iterator[str]:
    """Describe one field."""
    yield f"{'.'.join(keys)}: {kind}{default}{condition}"
    yield from textwrap.wrap(doc, _WIDTH, initial_indent="    ", subsequent_indent="    ")


def _default(field: dataclasses.Field[Any]) -> str:
    """Show a field's default as a YAML file would write it."""
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return " (required)"
    value = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
    return f" = {text}"
