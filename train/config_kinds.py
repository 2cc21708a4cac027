"""Sections of a configuration that come in kinds, told by their ``type`` key.

A kind is a frozen dataclass that does the work itself: a loss is its own configuration. What it needs to be one is here,
so that it knows nothing of the rest of a configuration, nor of the library that reads it.
"""

from collections.abc import Callable
from typing import TypeVar

from draccus import ChoiceRegistry

Kind = TypeVar("Kind", bound=type)

Kinds = ChoiceRegistry
"""Base of a section's base class; `registering` adds the kinds."""


def registering(section: type[Kinds], name: str) -> Callable[[Kind], Kind]:
    """Return a class decorator that makes a dataclass the kind of a section called ``name``.

    Args:
        section: the base class.
        name: what ``type`` says in a YAML file.

    Raises:
        TypeError: if the class has another base, so that no field of the section could hold it.
        ValueError: if the name is taken by another class.

    Example:
        >>> @registering(Loss, "mine")
        ... @dataclass(frozen=True)
        ... class Mine(Loss): ...
    """

    def register(kind: Kind) -> Kind:
        if not issubclass(kind, section):
            raise TypeError(
                f"{kind.__name__}: expected a class derived from {section.__name__} to register as {name!r}; "
                f"write class {kind.__name__}({section.__name__})"
            )
        section.register_subclass(name, kind)
        return kind

    return register


def kind_name(value: Kinds) -> str:
    """Return the name that a value's class is registered under.

    Args:
        value: of a kind.

    Raises:
        ValueError: if it is not registered.

    Example:
        >>> kind_name(Ppo())
        'ppo'
    """
    return value.get_choice_name(type(value))
