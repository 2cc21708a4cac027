"""Nim with one heap: two seats take sticks in turn, and whoever takes the last one wins."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mintjax.train.config import EnvironmentConfig, register_environment, require
from mintjax.train.environment import AssistantMessage
from mintjax.train.self_play import Position
from mintjax.train.task_rows import text_of
from mintjax.types import Message


class Nim:
    """One game, for self-play; see :class:`mintjax.train.self_play.Game`.

    A task is the number of sticks. The winner earns 1 and the loser -1. A reply that is not one number from 1 to ``most``
    ends the game with ``"illegal"``: its seat earns -1, and the other one 0, since it has not won anything.

    Example:
        >>> game = Nim(most=3)
        >>> game.reset(task=4, seed=0).messages[0][0]["content"]
        'There are 4 sticks. Take 1 to 3; whoever takes the last one wins. Answer with the number alone.'
    """

    seats = 2

    def __init__(self, most: int = 3) -> None:
        """Makes a game.

        Args:
            most: sticks that may be taken at once.

        Raises:
            ValueError: where ``most`` is less than 1.
        """
        if most < 1:
            raise ValueError(f"most: expected at least 1, came {most}.")
        self._most = most
        self._left = 0

    async def reset(self, task: int, seed: int) -> Position:
        """Lays the sticks out.

        Args:
            task: how many.
            seed: not used: the game has no chance in it.

        Raises:
            ValueError: where there is no stick.
        """
        if task < 1:
            raise ValueError(f"task: expected at least 1 stick, came {task}.")
        self._left = task
        return Position(0, {0: [self._request("")]})

    async def step(self, seat: int, assistant: AssistantMessage) -> Position:
        """Takes sticks."""
        anchor, said = str(self._left), text_of(assistant).strip()
        taken = int(said) if re.fullmatch(r"[0-9]{1,9}", said) else 0
        legal = 1 <= taken <= min(self._most, self._left)
        metrics = {"legal": float(legal)}
        if not legal:
            rewards = {seat: -1.0, 1 - seat: 0.0}
            return Position(
                None, rewards=rewards, stop_reason="illegal", metrics=metrics, anchor=anchor
            )
        self._left -= taken
        if not self._left:
            rewards = {seat: 1.0, 1 - seat: -1.0}
            return Position(
                None, rewards=rewards, stop_reason="won", metrics=metrics, anchor=anchor
            )
        messages = {1 - seat: [self._request(f"The other player took {taken}. ")]}
        return Position(1 - seat, messages, metrics=metrics, anchor=anchor)

    def _request(self, before: str) -> Message:
        most = min(self._most, self._left)
        text = (
            f"{before}There are {self._left} sticks. Take 1 to {most}; whoever takes the last one wins. Answer with the "
            "number alone."
        )
        return {"role": "user", "content": text}


@register_environment("nim")
@dataclass(frozen=True)
class NimConfig(EnvironmentConfig):
    """Take sticks from a heap in turn, against oneself; whoever takes the last one wins."""

    sticks: tuple[int, int] = (4, 12)
    """Fewest and most sticks that a game starts with."""
    most: int = 3
    """Sticks that may be taken at once."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        low, high = self.sticks
        require(self.most >= 1, "environment.most", "at least 1", self.most)
        require(
            1 <= low <= high, "environment.sticks", "[low, high] with 1 <= low <= high", self.sticks
        )

    def make(self) -> Nim:
        """Return a new game."""
        return Nim(self.most)

    def tasks(self, position: int, count: int, seed: int) -> Sequence[int]:
        """Some of the run's heaps, drawn anew for each group.

        Example:
            >>> NimConfig(sticks=(5, 5)).tasks(position=0, count=2, seed=0)
            [5, 5]
        """
        low, high = self.sticks
        places = range(position, position + count)
        return [int(np.random.default_rng([seed, x]).integers(low, high + 1)) for x in places]
