"""What users write environments as: classes, functions, games, TRL's classes and reward functions, told apart."""

import inspect
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

from mintjax.train.environment import EnvironmentContractError, EnvironmentSession
from mintjax.train.reward_environment import RewardEnvironment
from mintjax.train.self_play import seat_environments
from mintjax.train.tools import make_tool
from mintjax.train.trl_environment import TrlEnvironment, tool_names

_KNOWN = (
    "Give a class with reset(task, seed) and step(assistant); a class of games, with seats, reset(task, seed) and "
    "step(seat, assistant); a TRL environment class, with reset(**row) and get_reward(); a function without arguments "
    "that makes an instance of one of these; or a reward function, reward(completion, **row)."
)


class Maker:
    """Makes what one episode, or the episodes of all seats of one game, are played with.

    It keeps the instances of TRL classes that no episode uses, and hands them out again.

    Example:
        >>> make = Maker(CountDown)
        >>> (session,) = make.sessions()
    """

    def __init__(self, given: Any, *, reward: Callable[..., Any] | None = None) -> None:
        """Takes a class or a function.

        Args:
            given: an environment class, a class of games (see :class:`mintjax.train.self_play.Game`), a TRL environment
                class, a function that makes an instance of one of these, or a reward function.
            reward: ``reward(completion, **row)`` for a TRL class without ``get_reward``.

        Raises:
            EnvironmentContractError: where it is none of these.
            ToolSchemaError: where a TRL class has a public method that cannot be described.

        Example:
            >>> make = Maker(lambda: CountDown(turns=2))
        """
        self._reward = reward
        self._seats = 0
        self._idle: list[Any] = []
        self._make: Callable[[], Any] = _checked(given, reward)

    def sessions(self) -> list[EnvironmentSession]:
        """A session for each seat; one whose environment cannot be made raises why when it is reset."""
        try:
            made = self._idle.pop() if self._idle else self._make()
            return [EnvironmentSession(one) for one in self._environments(made)]
        except Exception as error:
            return [EnvironmentSession(_Broken(error))]

    def _environments(self, made: Any) -> list[Any]:
        """What the episodes of one making play with."""
        kind = kind_of_environment(made)
        if kind == "game":
            self._seats = self._seats or made.seats
            if made.seats != self._seats:
                raise EnvironmentContractError(
                    f"{type(made).__name__}.seats: expected {self._seats}, as in the first game, came {made.seats}. Give "
                    "all games of a run as many seats."
                )
            return list(seat_environments(made))
        if kind == "trl":
            return [TrlEnvironment(made, reward=self._reward, release=self._idle.append)]
        if kind == "environment":
            return [made]
        raise EnvironmentContractError(
            f"environment: expected one of a known kind, came {type(made).__name__}. {_KNOWN}"
        )


class _Broken:
    """An environment that could not be made."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def reset(self, task: Any, seed: int) -> Any:
        raise self._error

    async def step(self, assistant: Any) -> Any:
        raise self._error


def kind_of_environment(made: Any) -> str | None:
    """What an environment is written as: ``"environment"``, ``"game"``, ``"trl"``, or None for nothing that is known.

    Args:
        made: an instance or a class.

    Example:
        >>> kind_of_environment(CountDown())
        'environment'
    """
    if not callable(getattr(made, "reset", None)):
        return None
    steps = callable(getattr(made, "step", None))
    if steps and hasattr(made, "seats"):
        return "game"
    if not steps or (hasattr(made, "get_reward") and "seed" not in _parameters(made.reset)):
        return "trl"
    return "environment"


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters."""
    return tuple(inspect.signature(function).parameters)


def _checked(given: Any, reward: Callable[..., Any] | None) -> Callable[[], Any]:
    """What makes an instance, or an error that names what was given."""
    if isinstance(given, type):
        kind = kind_of_environment(given)
        if kind == "environment" or kind == "game":
            return given
        if kind == "trl" and (reward is not None or hasattr(given, "get_reward")):
            for name in tool_names(given):
                # Of no instance yet, so that an error is told now and not in every episode.
                method = inspect.getattr_static(given, name)
                free = isinstance(method, staticmethod)
                make_tool(method.__func__ if free else MethodType(method, given))
            return given
        came = f"the class {given.__name__}"
        if kind == "trl":
            came += ", which has reset, but neither step nor get_reward"
    elif inspect.isroutine(given) or isinstance(given, partial):
        first, *_ = [*inspect.signature(given).parameters.values(), None]
        if first is None or first.default is not inspect.Parameter.empty:
            return given
        if first.name == "completion":
            return partial(RewardEnvironment, given)
        came = f"the function {getattr(given, '__name__', given)!r} of {first.name!r}"
        if first.name in ("completions", "prompts"):
            came += ", which scores a batch: here one completion is scored at a time"
    elif kind_of_environment(given):
        came = f"an instance of {type(given).__name__}; every episode needs one of its own"
    else:
        came = repr(given)
    raise EnvironmentContractError(
        f"environment: expected a class or a function, came {came}. {_KNOWN}"
    )
