"""Grid walk: go to a goal, one step up, down, left or right a turn."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mintjax.renderers import Renderer
from mintjax.train.config import EnvironmentConfig, register_environment, require
from mintjax.train.environment import AssistantMessage, Step
from mintjax.train.reply_text import NOTHING, said
from mintjax.train.task_rows import text_of
from mintjax.types import Message

if TYPE_CHECKING:
    from mintjax.train.environments.pure_grid_walk import PureGridWalk

WORDS = ("up", "down", "left", "right")
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # rows and columns
ARRIVED, NEARER, OTHER = 1.0, 0.25, -0.25  # what a turn earns
STOP_REASONS = ("arrived", "too_late")


class GridWalk:
    """One episode: at most ``turns`` steps on a square grid.

    A task is the cell that the walk starts in and that of the goal, counted row by row from 0. There is no chance in the
    environment: the seed changes nothing. A step is a reply of one word, but for case and white space around it, that the
    policy ended by itself. Any other reply, and a step off the grid, leaves it where it is.

    Example:
        >>> environment = GridWalk(size=4, turns=8)
        >>> opening = await environment.reset(task=(0, 5), seed=0)
        >>> step = await environment.step({"role": "assistant", "content": "down", "finish_reason": "stop"})
        >>> step.messages[0]["content"], step.reward, step.anchor
        ('You are at row 2, column 1.', 0.25, 'row 1, column 1')
    """

    def __init__(self, size: int, turns: int) -> None:
        """Make an environment.

        Args:
            size: rows, and columns.
            turns: steps in one episode.
        """
        self._size, self._turns = size, turns
        self._cell = self._goal = self._turn = 0

    async def reset(self, task: tuple[int, int], seed: int) -> list[Message]:
        """Say where the walk starts and where it is to go.

        Args:
            task: start and goal.
            seed: not used.

        Returns:
            The system message and the request.

        Raises:
            ValueError: where they are no two different cells.
        """
        start, goal = task
        if start == goal or not all(0 <= cell < self._size**2 for cell in task):
            raise ValueError(
                f"task: expected two cells from 0 to {self._size**2 - 1}, came {task}."
            )
        self._cell, self._goal, self._turn = start, goal, 0
        return opening(self._size, start, goal)

    async def step(self, assistant: AssistantMessage) -> Step:
        """Take a step.

        Args:
            assistant: the reply, with its ``finish_reason``.

        Returns:
            Where the walk is now; 1 for arriving, 0.25 for coming nearer, -0.25 otherwise; the metric ``clear``, whether
            the reply was a step, and, of the last turn, ``arrived``; the cell that the step was taken in as the anchor.
        """
        anchor = named(self._size, self._cell)
        ended = assistant["finish_reason"] == "stop"
        word = said(text_of(assistant), WORDS) if ended else NOTHING
        before = self._distance()
        if word != NOTHING:
            self._cell = moved(self._size, self._cell, word)
        arrived = self._cell == self._goal
        reward = ARRIVED if arrived else NEARER if self._distance() < before else OTHER
        metrics = {"clear": float(word != NOTHING)}
        self._turn += 1
        if arrived or self._turn == self._turns:
            metrics["arrived"] = float(arrived)
            reason = STOP_REASONS[0 if arrived else 1]
            return Step([], reward, done=True, stop_reason=reason, metrics=metrics, anchor=anchor)
        messages = answer(self._size, self._cell, clear=word != NOTHING)
        return Step(messages, reward, done=False, metrics=metrics, anchor=anchor)

    def _distance(self) -> int:
        """Steps to the goal."""
        here, there = divmod(self._cell, self._size), divmod(self._goal, self._size)
        return abs(here[0] - there[0]) + abs(here[1] - there[1])


@register_environment("grid_walk")
@dataclass(frozen=True)
class GridWalkConfig(EnvironmentConfig):
    """Walk to a goal on a small grid; every turn is paid, and named by the cell that it was in."""

    size: int = 4
    """Rows, and columns."""
    turns: int = 8
    """Steps in one episode."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.size >= 2, "environment.size", "at least 2", self.size)
        require(self.turns >= 1, "environment.turns", "at least 1", self.turns)

    def make(self) -> GridWalk:
        """Return a new environment for one episode."""
        return GridWalk(self.size, self.turns)

    def tasks(self, position: int, count: int, seed: int) -> list[tuple[int, int]]:
        """Some of the run's walks: start and goal of each group, two different cells.

        Example:
            >>> len(GridWalkConfig().tasks(position=0, count=3, seed=0))
            3
        """
        pairs = []
        for place in range(position, position + count):
            start, goal = np.random.default_rng([seed, place]).permutation(self.size**2)[:2]
            pairs.append((int(start), int(goal)))
        return pairs

    def pure(self, renderer: Renderer) -> "PureGridWalk":
        """Return the same environment as functions over arrays."""
        from mintjax.train.environments.pure_grid_walk import pure_grid_walk

        return pure_grid_walk(renderer, self.size, self.turns)


def moved(size: int, cell: int, word: int) -> int:
    """The cell that a step leads to; the same one at the edge.

    Args:
        size: rows, and columns.
        cell: where the walk is.
        word: number of the word in ``WORDS``.

    Example:
        >>> moved(4, 0, WORDS.index("down")), moved(4, 0, WORDS.index("up"))
        (4, 0)
    """
    row, column = (a + b for a, b in zip(divmod(cell, size), MOVES[word], strict=True))
    return row * size + column if 0 <= row < size and 0 <= column < size else cell


def opening(size: int, start: int, goal: int) -> list[Message]:
    """What a conversation begins with.

    Example:
        >>> opening(4, 0, 5)[1]["content"]
        'You are at row 1, column 1. The goal is at row 2, column 2.'
    """
    rule = f"Walk to the goal on a grid of {size} rows and {size} columns. Say up, down, left or right."
    request = f"You are at {named(size, start)}. The goal is at {named(size, goal)}."
    return [{"role": "system", "content": rule}, {"role": "user", "content": request}]


def answer(size: int, cell: int, *, clear: bool) -> list[Message]:
    """What is said after a step, or after a reply that was none.

    Example:
        >>> answer(4, 0, clear=False)[0]["content"]
        'Say up, down, left or right. You are at row 1, column 1.'
    """
    hint = "" if clear else "Say up, down, left or right. "
    return [{"role": "user", "content": f"{hint}You are at {named(size, cell)}."}]


def named(size: int, cell: int) -> str:
    """A cell in words.

    Example:
        >>> named(4, 5)
        'row 2, column 2'
    """
    row, column = divmod(cell, size)
    return f"row {row + 1}, column {column + 1}"
