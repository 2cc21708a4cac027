"""How a section of a configuration refuses a value."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the field and what was expected."""


def require(holds: bool, path: str, expected: str, got: object) -> None:
    """Raise ConfigError unless a field holds what it must.

    Args:
        holds: whether the field is good.
        path: its dotted path, as a command line would name it.
        expected: what it must be, in words.
        got: what it is.

    Raises:
        ConfigError: if ``holds`` is false.

    Example:
        >>> require(steps >= 1, "steps", "at least 1", steps)
    """
    if not holds:
        raise ConfigError(f"{path}: expected {expected}, got {got!r}")


def check_run(name: str, steps: int, seed: int) -> None:
    """Raise ConfigError unless a run can be named, counted and drawn so.

    Args:
        name: of the run and its directory.
        steps: optimizer steps in all.
        seed: of the run.

    Raises:
        ConfigError: naming the field.

    Example:
        >>> check_run("demo", 10, 0)
    """
    plain = name not in ("", ".", "..") and not set(name) & set("/\\")
    require(plain, "name", "a directory name without slashes", name)
    require(steps >= 1, "steps", "at least 1", steps)
    require(0 <= seed < 2**32, "seed", "from 0 to 2**32 - 1", seed)
