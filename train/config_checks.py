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
