"""What a command line says of an experiment: a file, fields to override, and what to do with an earlier run."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from mintjax.train.config import TrainConfig

Config = TypeVar("Config")


@overload
def read_experiment(arguments: Sequence[str]) -> "TrainConfig": ...


@overload
def read_experiment(arguments: Sequence[str], kind: type[Config]) -> Config: ...


def read_experiment(arguments: Sequence[str], kind: type[Any] | None = None) -> Any:
    """The configuration that a command's arguments describe.

    Args:
        arguments: ``CONFIG.yaml`` and overrides, without the command's own options.
        kind: the dataclass at the top; None is ``TrainConfig``.

    Raises:
        ConfigError: where there is no file first, or the configuration cannot be used.

    Example:
        >>> read_experiment(["count_down", "steps=1"]).steps
        1
    """
    from mintjax.train.config import ConfigError, TrainConfig
    from mintjax.train.config_files import load_config

    if not arguments or arguments[0].startswith("-") or "=" in arguments[0]:
        got = arguments[0] if arguments else "nothing"
        raise ConfigError(f"CONFIG.yaml: expected a file first, got {got}; see --help")
    return load_config(arguments[0], arguments[1:], kind or TrainConfig)


def run_experiment(
    arguments: Sequence[str],
    usage: str,
    start: Callable[..., Any],
    kind: type[Any] | None = None,
) -> int:
    """What a command does that trains: shows its help, or reads an experiment and starts it.

    Args:
        arguments: the command line after the command's name.
        usage: the help, but for the fields.
        start: called with the configuration and ``overwrite``.
        kind: the dataclass at the top; None is ``TrainConfig``.

    Returns:
        The exit status.

    Raises:
        ConfigError: if the configuration cannot be used.

    Example:
        >>> run_experiment(["count_down", "steps=1"], _USAGE, run)
    """
    if {"-h", "--help"} & set(arguments):
        from mintjax.train.config import TrainConfig
        from mintjax.train.config_help import help_text

        print(usage + help_text(kind or TrainConfig))
        return 0
    rest = [argument for argument in arguments if argument != "--overwrite"]
    config = read_experiment(rest) if kind is None else read_experiment(rest, kind)
    start(config, overwrite="--overwrite" in arguments)
    return 0
