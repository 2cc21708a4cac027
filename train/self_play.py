"""Games of several seats: one game, and for each seat an environment of its own that waits until the seat is to move."""

import asyncio
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mintjax.train.daemon_threads import call
from mintjax.train.environment import (
    AssistantMessage,
    EnvironmentContractError,
    Step,
    Waiting,
    check_reward,
)
from mintjax.types import Message


@dataclass(frozen=True)
class Position:
    """Where a game stands after a move.

    Attributes:
        to_move: the seat that moves next; None where the game is over.
        messages: what is new for each seat; a seat reads it when it is to move. For the first time that opens its
            conversation, so it needs some by then, and later for every move.
        rewards: what each seat has just earned; it goes to the seat's last turn. A seat that is left out earns nothing,
            which is not 0.
        stop_reason: why the game is over, one short word; given exactly where ``to_move`` is None.
        metrics: figures of the turn that was just taken.
        anchor: a name for the situation that the move was made in.

    Example:
        >>> Position(None, rewards={0: 1.0, 1: -1.0}, stop_reason="won").to_move
    """

    to_move: int | None
    messages: Mapping[int, Sequence[Message]] = field(default_factory=dict)
    rewards: Mapping[int, float | None] = field(default_factory=dict)
    stop_reason: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    anchor: str | None = None

    def __post_init__(self) -> None:
        """Refuse a position that contradicts itself."""
        if (self.to_move is None) != bool(self.stop_reason):
            expected = "a word, since nobody is to move" if self.to_move is None else "None"
            raise EnvironmentContractError(
                f"Position.stop_reason: expected {expected}; came {self.stop_reason!r}. A game is over where to_move is "
                "None, and says then why."
            )
        for seat, reward in self.rewards.items():
            check_reward(reward, f"Position.rewards[{seat!r}]")


class Game(Protocol):
    """A game of several seats, in turns; either method may be ``async``. A ``close()`` is optional.

    Attributes:
        seats: how many there are, numbered from 0.
    """

    seats: int

    def reset(self, task: Any, seed: int) -> Position | Awaitable[Position]:
        """Sets the game up; the same ``task`` and ``seed`` give the same position."""
        ...

    def step(self, seat: int, assistant: AssistantMessage) -> Position | Awaitable[Position]:
        """Takes the move of the seat that is to move."""
        ...


def seat_environments(game: Game) -> list["SeatEnvironment"]:
    """An environment for each seat of a game; they are for episodes of one batch.

    Where one of the episodes ends before the game does, since a limit is reached, say, the game is broken off: the others
    end with ``"seat_left"``. Where the game raises, all of them end with that error.

    Args:
        game: that nobody plays yet.

    Example:
        >>> first, second = seat_environments(Nim())
    """
    table = _Table(game)
    return [SeatEnvironment(table, seat) for seat in range(game.seats)]


class SeatEnvironment:
    """What one seat sees of a game: an environment whose answer comes when the seat is to move again."""

    def __init__(self, table: "_Table", seat: int) -> None:
        """Made by :func:`seat_environments`."""
        self._table, self._seat = table, seat

    @property
    def tools(self) -> Sequence[Any]:
        """The tool descriptions that the game offers, the same to every seat."""
        return getattr(self._table.game, "tools", ())

    async def reset(self, task: Any, seed: int) -> Waiting:
        """Takes the seat; the first one sets the game up."""
        if self._seat:
            return self._table.wait(self._seat)
        return await self._table.play(self._seat, self._table.game.reset, task, seed)

    async def step(self, assistant: AssistantMessage) -> Waiting:
        """Makes the seat's move."""
        return await self._table.play(
            self._seat, self._table.game.step, self._seat, assistant, moves=True
        )

    async def close(self) -> None:
        """Leaves the seat; the last one to leave closes the game."""
        await self._table.leave(self._seat)


@dataclass
class _Table:
    """A game, and what it has said to each seat that the seat has not read."""

    game: Any
    to_move: int | None = None
    over: Step | Exception | None = None
    waiting: dict[int, asyncio.Future[Step | Exception]] = field(default_factory=dict)
    messages: dict[int, list[Message]] = field(default_factory=dict)
    rewards: dict[int, list[float]] = field(default_factory=dict)
    moves: dict[int, Position] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)

    def wait(self, seat: int) -> Waiting:
        """What will be the next thing that the seat reads."""
        self.waiting[seat] = asyncio.get_running_loop().create_future()
        waiting = Waiting(self.waiting[seat])
        self._settle()
        return waiting

    async def play(self, seat: int, method: Any, *arguments: Any, moves: bool = False) -> Waiting:
        """Goes on to the next position, by a move of the seat or by setting the game up."""
        self.to_move = None
        waiting = self.wait(seat)
        try:
            position = self._checked(await call(method, *arguments))
        except Exception as error:
            self.over = error
        else:
            if moves:
                self.moves[seat] = position
            self._keep(position)
        self._settle()
        return waiting

    async def leave(self, seat: int) -> None:
        """Breaks the game off where it is not over."""
        if self.over is None:
            self.over = Step([], None, done=True, stop_reason="seat_left")
        self.left.add(seat)
        self._settle()
        close = getattr(self.game, "close", None)
        if close is not None and len(self.left) == self.game.seats:
            await call(close)

    def _checked(self, position: Any) -> Position:
        """A position that names seats there are, and gives the next to move something to read."""
        if not isinstance(position, Position):
            raise EnvironmentContractError(
                f"game: expected a mintjax.train.self_play.Position, came {type(position).__name__}. Return "
                "Position(to_move, messages, rewards, stop_reason)."
            )
        seats, to_move = range(self.game.seats), position.to_move
        named = [*position.messages, *position.rewards]
        for seat in named if to_move is None else [*named, to_move]:
            if seat not in seats:
                raise EnvironmentContractError(
                    f"Position: expected seats from 0 to {len(seats) - 1}, came {seat!r}. Name the seats so."
                )
        if to_move is not None and not (
            position.messages.get(to_move) or self.messages.get(to_move)
        ):
            raise EnvironmentContractError(
                f"Position.messages: expected some for seat {to_move}, which is to move, came none. Say something to it."
            )
        return position

    def _keep(self, position: Position) -> None:
        """Keeps what a position says until the seats read it."""
        for seat, messages in position.messages.items():
            self.messages.setdefault(seat, []).extend(messages)
        for seat, reward in position.rewards.items():
            if reward is not None:
                self.rewards.setdefault(seat, []).append(reward)
        self.to_move = position.to_move
        if position.to_move is None and self.over is None:
            self.over = Step([], None, done=True, stop_reason=position.stop_reason)

    def _settle(self) -> None:
        """Answers the seats that can be answered."""
        for seat, answer in self.waiting.items():
            if not answer.done() and (self.over or seat == self.to_move):
                answer.set_result(self._answer(seat))

    def _answer(self, seat: int) -> Step | Exception:
        """What a seat reads: the end, or that it is to move."""
        if isinstance(self.over, Exception):
            return self.over
        earned, move = self.rewards.pop(seat, []), self.moves.pop(seat, None)
        return Step(
            self.messages.pop(seat, []) if self.over is None else [],
            math.fsum(earned) if earned else None,
            done=self.over is not None,
            stop_reason=self.over.stop_reason if self.over else None,
            metrics=move.metrics if move else {},
            anchor=move.anchor if move else None,
        )
