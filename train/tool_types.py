"""Type hints as JSON schemas, and JSON values as what the hints promise.

The schemas are those that transformers' ``get_json_schema`` writes, since chat models have been trained on tools that were
described so; dataclasses and typed dicts are added.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Sequence, Set
from enum import Enum
from typing import Any, Literal, NamedTuple, Union

from mintjax.train.tool_schema import ToolSchemaError

_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


class ToolArgumentError(ValueError):
    """Arguments that a tool does not take: the text, which the policy reads, says which and what it takes."""


class Kind(NamedTuple):
    """What a type hint comes to.

    Attributes:
        schema: as JSON.
        read: takes a JSON value and the name of the place it stands in; returns what the hint promises, or raises
            `ToolArgumentError`.
    """

    schema: dict[str, Any]
    read: Callable[[Any, str], Any]


def kind_of(hint: Any, where: str) -> Kind:
    """What a type hint comes to.

    Args:
        hint: a resolved type hint.
        where: the parameter, for errors.

    Raises:
        ToolSchemaError: where JSON has no form for it.

    Example:
        >>> kind_of(list[int], "add: parameter 'numbers'").schema
        {'type': 'array', 'items': {'type': 'integer'}}
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return Kind({}, lambda value, place: value)
    if isinstance(hint, type) and hint in _NAMES:
        return Kind({"type": _NAMES[hint]}, lambda value, place: _plain(hint, value, place))
    if origin is Literal:
        return _choice(list(inner), list(inner), where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice([member.value for member in hint], list(hint), where)
    if origin in (Union, types.UnionType):
        return _union([kind_of(one, where) for one in inner], type(None) in inner)
    if hint is list or origin is list:
        return _list(kind_of(inner[0], where) if inner else None)
    if hint is tuple or (origin is tuple and ... not in inner):
        return _tuple([kind_of(one, where) for one in inner])
    if hint is dict or (origin is dict and inner[0] is str):
        return _dict(kind_of(inner[1], where) if inner else None)
    if typing.is_typeddict(hint):
        required: Any = hint.__required_keys__
        return _object(hint, list(typing.get_type_hints(hint)), required, dict, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        fields = [x for x in dataclasses.fields(hint) if x.init]
        missing = dataclasses.MISSING
        required = {x.name for x in fields if x.default is missing and x.default_factory is missing}
        return _object(hint, [x.name for x in fields], required, hint, where)
    raise ToolSchemaError(
        f"{where}: expected a type that JSON has, came {hint!r}. Use str, int, float, bool, None, list[...], dict[str, ...], "
        "tuple[...] of fixed length, Literal, Enum, unions of these, a dataclass or a TypedDict."
    )


def _plain(kind: type, value: Any, place: str) -> Any:
    """A text, number, boolean or null."""
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind is int and type(value) is float and value.is_integer():
        return int(value)  # JSON has one kind of number: 3.0 is an integer
    if kind is not float and type(value) is kind:
        return value
    raise _unfit(place, _NAMES[kind], value)


def _choice(values: list[Any], stands_for: list[Any], where: str) -> Kind:
    """One of some values."""
    if not values or any(type(value) not in _NAMES for value in values):
        raise ToolSchemaError(
            f"{where}: expected texts, numbers, booleans or None to choose from, came {values!r}. Name at least one such."
        )
    names = list(dict.fromkeys(_NAMES[type(value)] for value in values))

    def read(value: Any, place: str) -> Any:
        for one, meant in zip(values, stands_for, strict=True):
            if type(value) is type(one) and value == one:
                return meant
        raise _unfit(place, "one of " + ", ".join(map(repr, values)), value)

    return Kind({"type": names[0] if len(names) == 1 else names, "enum": values}, read)


def _union(kinds: Sequence[Kind], nullable: bool) -> Kind:
    """The first of some kinds that fits."""
    schemas = [kind.schema for kind in kinds if kind.schema != {"type": "null"}]
    plain = all(one.keys() == {"type"} and isinstance(one["type"], str) for one in schemas)
    schema: dict[str, Any]
    if len(schemas) == 1:
        schema = dict(schemas[0])
    elif plain:
        names = sorted({one["type"] for one in schemas})
        schema = {"type": names[0] if len(names) == 1 else names}
    else:
        schema = {"anyOf": schemas}
    if nullable:
        schema["nullable"] = True

    def read(value: Any, place: str) -> Any:
        errors = []
        for kind in kinds:
            try:
                return kind.read(value, place)
            except ToolArgumentError as error:
                errors.append(str(error))
        raise ToolArgumentError(" or ".join(errors))

    return Kind(schema, read)


def _list(item: Kind | None) -> Kind:
    """A list of any length."""

    def read(value: Any, place: str) -> list[Any]:
        if not isinstance(value, list):
            raise _unfit(place, "array", value)
        if item is None:
            return value
        return [item.read(one, f"{place}[{number}]") for number, one in enumerate(value)]

    return Kind({"type": "array"} | ({"items": item.schema} if item else {}), read)


def _tuple(items: Sequence[Kind]) -> Kind:
    """A list of fixed length."""

    def read(value: Any, place: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or (items and len(value) != len(items)):
            raise _unfit(place, f"array of {len(items)}" if items else "array", value)
        if not items:
            return tuple(value)
        pairs = enumerate(zip(items, value, strict=True))
        return tuple(item.read(one, f"{place}[{number}]") for number, (item, one) in pairs)

    inner = {"prefixItems": [item.schema for item in items]} if items else {}
    return Kind({"type": "array"} | inner, read)


def _dict(item: Kind | None) -> Kind:
    """Values by name."""

    def read(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _unfit(place, "object", value)
        if item is None:
            return value
        return {name: item.read(one, f"{place}.{name}") for name, one in value.items()}

    return Kind({"type": "object"} | ({"additionalProperties": item.schema} if item else {}), read)


def _object(
    hint: Any, names: Sequence[str], needed: Set[str], make: Callable[..., Any], where: str
) -> Kind:
    """The fields of a dataclass or a typed dict."""
    hints = typing.get_type_hints(hint)
    named = {name: kind_of(hints[name], f"{where}.{name}") for name in names}
    required = [name for name in names if name in needed]

    def read(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _unfit(place, "object", value)
        return make(**read_named(value, named, required, place))

    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: kind.schema for name, kind in named.items()},
    }
    return Kind(schema | ({"required": required} if required else {}), read)


def read_named(
    values: dict[str, Any], named: dict[str, Kind], required: Sequence[str], place: str
) -> dict[str, Any]:
    """Named JSON values as what their hints promise.

    Args:
        values: as they came.
        named: the kind of each that there may be.
        required: those that must be there.
        place: whose they are, for errors.

    Raises:
        ToolArgumentError: where one is unknown, missing or unfit.

    Example:
        >>> read_named({"x": 1.0}, {"x": kind_of(int, "f: parameter 'x'")}, ["x"], "f")
        {'x': 1}
    """
    for name in values:
        if name not in named:
            known = ", ".join(named) or "none"
            raise ToolArgumentError(f"{place}: {name!r} is unknown; there are: {known}")
    for name in required:
        if name not in values:
            raise ToolArgumentError(f"{place}: {name!r} is missing; it is required")
    return {name: named[name].read(value, f"{place}: {name}") for name, value in values.items()}


def _unfit(place: str, expected: str, value: Any) -> ToolArgumentError:
    """An error of one value."""
    return ToolArgumentError(f"{place}: expected {expected}, came {value!r}")
