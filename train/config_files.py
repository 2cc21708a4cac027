"""From YAML files and command lines to a ``TrainConfig``, and back.

Later layers win: the defaults of the dataclasses, the file (with ``!include other.yaml``), the
overrides. Whatever is wrong with any of them is one ``ConfigError`` that names the dotted field.
"""

import importlib
import typing
import warnings
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, overload

import draccus
import yaml
from draccus.parsers.yaml_loader import SafeLoaderWithInclusion

from mintjax.train.config import ConfigError, TrainConfig
from mintjax.train.config_schema import (
    KIND,
    allows_null,
    check,
    fields_of,
    is_choice,
    kind_of,
    look_up,
    type_name,
)

Config = TypeVar("Config")


class ConfigWarning(UserWarning):
    """Something a file says was set aside on purpose; the message names it."""


@overload
def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig: ...


@overload
def load_config(path: str | Path, overrides: Sequence[str], kind: type[Config]) -> Config: ...


def load_config(
    path: str | Path, overrides: Sequence[str] = (), kind: type[Any] = TrainConfig
) -> Any:
    """Read an experiment.

    Args:
        path: a YAML file; or the name of a shipped experiment, see ``find_config``.
        overrides: ``a.b=value``, ``--a.b=value`` or ``--a.b`` followed by ``value``.
            Values are read as YAML, except that a field of text takes its value verbatim.
        kind: the dataclass at the top.

    Returns:
        The checked configuration.

    Raises:
        ConfigError: if a file is missing or malformed, a key is unknown or given twice, or a value
            does not fit.

    Warns:
        ConfigWarning: if an override changes the ``type`` of a section, so that the file's fields
            of the other type are dropped.

    Example:
        >>> load_config("count_down", ["model.rank=8", "--steps", "5"]).steps
        5
    """
    _register_environments()
    file = find_config(path)
    raw = read_yaml(file)
    try:
        check(kind, raw, (), partial=True)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    for keys, text in _types_first(parse_overrides(overrides)):
        _override(kind, raw, keys, text)
    return from_dict(raw, kind)


@overload
def from_dict(raw: Mapping[str, Any]) -> TrainConfig: ...


@overload
def from_dict(raw: Mapping[str, Any], kind: type[Config]) -> Config: ...


def from_dict(raw: Mapping[str, Any], kind: type[Any] = TrainConfig) -> Any:
    """Return the configuration that nested mappings describe.

    Args:
        raw: what a YAML file holds.
        kind: the dataclass at the top.

    Raises:
        ConfigError: if a key is unknown or missing, or a value does not fit its field.

    Example:
        >>> from_dict({"name": "demo", "environment": {"type": "count_down"}}).steps
        10
    """
    _register_environments()
    check(kind, raw, ())
    try:
        return draccus.decode(kind, dict(raw))
    except draccus.ParsingError as error:
        cause = error.__cause__
        if isinstance(cause, ConfigError):
            raise cause from None
        keys = getattr(error, "key_path", ())
        if not keys:
            raise ConfigError(str(error)) from error
        field, value = look_up(kind, raw, tuple(keys))
        raise ConfigError(
            f"{'.'.join(keys)}: expected {type_name(field)}, got {value!r}"
        ) from error


def to_dict(config: Any) -> dict[str, Any]:
    """Return a configuration as nested mappings of plain values, every default resolved.

    Args:
        config: the configuration.

    Example:
        >>> to_dict(config)["loss"]
        {'type': 'ppo', 'ratio_min': 0.8, 'ratio_max': 1.2, 'negative_ratio_max': None}
    """
    return draccus.encode(config)


def to_yaml(config: Any) -> str:
    """Return a configuration as YAML that ``load_config`` reads back to an equal one.

    Args:
        config: the configuration.

    Example:
        >>> Path("copy.yaml").write_text(to_yaml(config))
        >>> load_config("copy.yaml") == config
        True
    """
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def find_config(path: str | Path) -> Path:
    """Return the file that a command line means.

    Args:
        path: a file; or, where no such file exists, ``NAME``, ``NAME.yaml`` or
            ``configs/NAME.yaml`` of an experiment that is shipped with the package.

    Raises:
        ConfigError: if there is neither; the message names what is shipped. Also if a ``NAME``
            means a shipped experiment while a different ``NAME.yaml`` lies beside it.

    Example:
        >>> find_config("count_down").name
        'count_down.yaml'
    """
    given = Path(path)
    if given.is_file():
        return given
    with resources.as_file(resources.files("mintjax.configs")) as folder:
        shipped = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
    bare = given.parent in (Path(), Path("configs")) and given.suffix in ("", ".yaml")
    if not bare or given.stem not in shipped:
        raise ConfigError(
            f"{given}: no such file; give a YAML file or one of the shipped experiments: "
            f"{', '.join(shipped)}"
        )
    found = shipped[given.stem]
    local = given.with_suffix(".yaml")
    if local.is_file() and not local.samefile(found):
        raise ConfigError(
            f"{given}: this names both the file {local} and a shipped experiment; "
            f"write {local} for the file"
        )
    return found


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file whose top is a mapping.

    Args:
        path: the file; ``!include other.yaml`` in it is relative to it.

    Raises:
        ConfigError: if it is not valid YAML, has a key twice, is no mapping, or includes a file
            that is not there.

    Example:
        >>> read_yaml(Path("configs/count_down.yaml"))["name"]
        'count_down'
    """
    try:
        with path.open(encoding="utf-8") as stream:
            raw = yaml.load(stream, _Loader)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: {error.filename}: no such file") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: an !include leads back to the file it is in") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected fields and values, got {raw!r}")
    return raw


def parse_overrides(arguments: Sequence[str]) -> list[tuple[tuple[str, ...], str]]:
    """Split command line arguments into dotted fields and the text of their values.

    Args:
        arguments: ``a.b=value``, ``--a.b=value`` or ``--a.b`` followed by ``value``.

    Returns:
        The keys of each field and its value, in order.

    Raises:
        ConfigError: if an argument has none of the three forms, or a field comes twice.

    Example:
        >>> parse_overrides(["seed=1", "--model.rank", "8"])
        [(('seed',), '1'), (('model', 'rank'), '8')]
    """
    found: dict[tuple[str, ...], str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not equals and argument.startswith("--"):
            if (following := next(rest, None)) is None:
                raise ConfigError(
                    f"{argument}: expected a value after it, got the end of the command line"
                )
            value = following
        elif not equals:
            raise ConfigError(f"{argument}: expected field=value or --field value")
        keys = tuple(name.split("."))
        if keys in found:
            raise ConfigError(f"{name}: given twice on the command line; keep one of them")
        found[keys] = value
    return list(found.items())


class _Loader(SafeLoaderWithInclusion):
    """YAML with ``!include`` in which a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"the key {key.value!r} is given twice; keep one of them",
                    key.start_mark,
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _register_environments() -> None:
    """Import the shipped environments: each registers its configuration."""
    importlib.import_module("mintjax.train.environments")


def _types_first(overrides: list[tuple[tuple[str, ...], str]]) -> list[tuple[tuple[str, ...], str]]:
    """Order overrides so that a section's type is known before its fields are set."""
    return sorted(overrides, key=lambda override: override[0][-1] != KIND)


def _override(top: Any, raw: dict[str, Any], keys: tuple[str, ...], text: str) -> None:
    """Set one field of nested mappings from the text of a command line."""
    kind, _ = look_up(top, raw, keys)
    section: Any = top
    target = raw
    for depth, key in enumerate(keys[:-1], start=1):
        section = fields_of(kind_of(section, target, keys[: depth - 1]))[key]
        target = target.setdefault(key, {})
        if not isinstance(target, dict):
            raise ConfigError(f"{'.'.join(keys[:depth])}: expected a section, got {target!r}")
    if keys[-1] == KIND and is_choice(section):
        before = target.get(KIND, section.default_choice_name())
        changed = before not in (None, text)
        stale = [key for key in target if key != KIND]
        if changed and stale:
            warnings.warn(
                f"{'.'.join(keys[:-1])}: the command line changes its type from {before} to "
                f"{text}, so what the file says of {', '.join(stale)} is dropped",
                ConfigWarning,
                stacklevel=3,
            )
        if changed:
            target.clear()
    target[keys[-1]] = _value(text, kind, keys)


def _value(text: str, kind: Any, keys: tuple[str, ...]) -> Any:
    """Read the text of a value as its field's type asks."""
    parts = typing.get_args(kind) if allows_null(kind) else (kind,)
    verbatim = str in parts or any(typing.get_origin(part) is typing.Literal for part in parts)
    if verbatim and not (text == "null" and allows_null(kind)):
        return text
    try:
        return yaml.load(text, _Loader) if text else text
    except yaml.YAMLError as error:
        raise ConfigError(f"{'.'.join(keys)}: expected {type_name(kind)}, got {text!r}") from error
