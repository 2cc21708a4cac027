"""The fields a configuration may have: walking them, naming their types, checking raw values.

A raw value is what YAML gives: nested mappings of numbers, texts, booleans, nulls and lists. The
checks are for what draccus would let pass (null where a value must be, true for a number, a number
for a text) or would report without a suggestion (an unknown key).
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import draccus

from mintjax.train.config import ConfigError, TrainConfig

KIND = draccus.CHOICE_TYPE_KEY


def fields_of(section: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name, annotations resolved.

    Args:
        section: a dataclass.

    Example:
        >>> fields_of(CheckpointConfig)
        {'every': <class 'int'>, 'keep_last': <class 'int'>, 'keep_best': <class 'bool'>}
    """
    hints = typing.get_type_hints(section)
    return {field.name: hints[field.name] for field in dataclasses.fields(section)}


def is_choice(kind: Any) -> bool:
    """Return whether a type is a section that comes in several kinds.

    Args:
        kind: the type of a field.

    Example:
        >>> is_choice(Loss), is_choice(Ppo)
        (True, False)
    """
    return isinstance(kind, type) and draccus.ChoiceRegistry in kind.__bases__


def type_name(kind: Any) -> str:
    """Return a field's type in words.

    Args:
        kind: the type of a field.

    Example:
        >>> type_name(float | None)
        'float or null'
    """
    if kind is type(None):
        return "null"
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(str, typing.get_args(kind)))
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return " or ".join(type_name(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return f"[{', '.join(map(type_name, typing.get_args(kind)))}]"
    if kind is ...:
        return "..."
    if is_choice(kind):
        return f"a section with type: {' or '.join(kind.get_known_choices())}"
    if dataclasses.is_dataclass(kind):
        return "a section"
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def dotted_fields(
    section: Any = TrainConfig, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Walk every field of every kind of section.

    Args:
        section: a dataclass or a choice.
        path: keys that lead to it.

    Yields:
        The keys of each field that holds a value.

    Example:
        >>> [".".join(keys) for keys in dotted_fields(CheckpointConfig, ("checkpoint",))]
        ['checkpoint.every', 'checkpoint.keep_last', 'checkpoint.keep_best']
    """
    if is_choice(section):
        yield (*path, KIND)
        for kind in section.get_known_choices().values():
            yield from dotted_fields(kind, path)
        return
    for name, kind in fields_of(section).items():
        if is_choice(kind) or dataclasses.is_dataclass(kind):
            yield from dotted_fields(kind, (*path, name))
        else:
            yield (*path, name)


def look_up(section: Any, raw: Any, keys: tuple[str, ...]) -> tuple[Any, Any]:
    """Return the type of the field that keys lead to, and what a raw configuration holds there.

    Args:
        section: the dataclass or choice at the top.
        raw: nested mappings; they decide which kind of a choice the keys lead through.
        keys: the dotted path of the field, split.

    Returns:
        The type, and the raw value or None where there is none.

    Raises:
        ConfigError: if the path leads nowhere; the message suggests the nearest field.

    Example:
        >>> look_up(TrainConfig, {"seed": 3}, ("seed",))
        (<class 'int'>, 3)
    """
    top = section
    for depth, key in enumerate(keys):
        if is_choice(section) and key == KIND:
            section = str
        elif is_choice(section) or dataclasses.is_dataclass(section):
            kind = kind_of(section, raw, keys[:depth])
            if key not in fields_of(kind):
                raise _unknown(kind, key, keys[:depth], top)
            section = fields_of(kind)[key]
        else:
            raise ConfigError(
                f"{'.'.join(keys)}: {'.'.join(keys[:depth])} has no fields of its own"
            )
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    return section, raw


def kind_of(section: Any, raw: Any, path: tuple[str, ...]) -> Any:
    """Return the dataclass that a section's mapping stands for.

    Args:
        section: a dataclass, which stands for itself, or a choice.
        raw: the section's mapping; its ``type`` decides.
        path: keys that lead to it, for the message.

    Raises:
        ConfigError: if the type is missing where there is no default, or unknown.

    Example:
        >>> kind_of(Loss, {}, ("loss",))
        <class 'mintjax.train.losses.Ppo'>
    """
    if not is_choice(section):
        return section
    where = ".".join((*path, KIND))
    known = section.get_known_choices()
    name = raw.get(KIND, section.default_choice_name()) if isinstance(raw, Mapping) else None
    name = section.default_choice_name() if name is None else name
    if name is None:
        raise ConfigError(f"{where}: missing; expected {' or '.join(known)}")
    if name not in known:
        raise ConfigError(
            f"{where}: expected {' or '.join(known)}, got {name!r}{_nearest(str(name), known)}"
        )
    return known[name]


def check(
    section: Any, raw: Any, path: tuple[str, ...], *, partial: bool = False, top: Any = None
) -> None:
    """Raise unless a raw section has known fields only, all it must have, and fitting values.

    Args:
        section: the dataclass or choice.
        raw: the section's mapping.
        path: keys that lead to it.
        partial: whether required fields may still be missing.
        top: the dataclass that the path begins at, whose fields are suggested; None is the section itself.

    Raises:
        ConfigError: naming the dotted field, what was expected and what came.

    Example:
        >>> check(TrainConfig, {"seeed": 1}, (), partial=True)
        Traceback (most recent call last):
        mintjax.train.config_checks.ConfigError: seeed: unknown field of TrainConfig; did you mean seed?
    """
    where = ".".join(path)
    top = top or section
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where}: expected {type_name(section)}, got {raw!r}")
    if partial and is_choice(section) and KIND not in raw and section.default_choice_name() is None:
        return
    kind = kind_of(section, raw, path)
    known = fields_of(kind)
    for key, value in raw.items():
        if key == KIND and is_choice(section):
            continue
        if key not in known:
            raise _unknown(kind, key, path, top)
        _check_field(known[key], value, (*path, key), partial, top)
    for field in dataclasses.fields(kind):
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if required and field.name not in raw and not partial:
            raise ConfigError(
                f"{'.'.join((*path, field.name))}: missing; expected {type_name(known[field.name])}"
            )


def _check_field(kind: Any, value: Any, path: tuple[str, ...], partial: bool, top: Any) -> None:
    """Check one value against its field, or the section below it."""
    if is_choice(kind) or dataclasses.is_dataclass(kind):
        check(kind, value, path, partial=partial, top=top)
        return
    parts = typing.get_args(kind) if allows_null(kind) else (kind,)
    plain = tuple(part for part in parts if isinstance(part, type))
    problem = f"{'.'.join(path)}: expected {type_name(kind)}, got {value!r}"
    if value is None and not allows_null(kind):
        raise ConfigError(problem)
    if isinstance(value, bool) and bool not in parts:
        raise ConfigError(problem)
    if value is not None and str in parts and not isinstance(value, plain):
        raise ConfigError(f"{problem}; put it in quotes if it is meant as text")


def allows_null(kind: Any) -> bool:
    """Return whether null is a legal value of a type.

    Args:
        kind: the type of a field.

    Example:
        >>> allows_null(float | None)
        True
    """
    return type(None) in typing.get_args(kind)


def _unknown(kind: type, key: Any, path: tuple[str, ...], top: Any) -> ConfigError:
    """Return the error for a key that a section does not have, with the nearest that exists."""
    where = ".".join((*path, str(key)))
    hint = _nearest(str(key), fields_of(kind), path)
    if not hint:
        same_leaf = [".".join(keys) for keys in dotted_fields(top) if keys[-1] == str(key)]
        hint = (
            f"; did you mean {same_leaf[0]}?"
            if same_leaf
            else f"; it has {', '.join(fields_of(kind))}"
        )
    return ConfigError(f"{where}: unknown field of {kind.__name__}{hint}")


def _nearest(name: str, known: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Return a suggestion for a misspelt name, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {'.'.join((*path, near[0]))}?" if near else ""
