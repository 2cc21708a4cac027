"""Grid walk as functions over arrays: the twin of `mintjax.train.environments.grid_walk`."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int32, Key

from mintjax.renderers import Renderer
from mintjax.train.environments.grid_walk import (
    ARRIVED,
    NEARER,
    OTHER,
    STOP_REASONS,
    WORDS,
    answer,
    moved,
    named,
    opening,
)
from mintjax.train.pure_environment import PureStep
from mintjax.train.spoken_words import SpokenWords, spoken_words
from mintjax.train.text_table import News, TextTable, text_table

State = tuple[Int32[Array, ""], Int32[Array, ""], Int32[Array, ""]]  # cell, goal, turn


class PureGridWalk(struct.PyTreeNode):
    """See `mintjax.train.environments.grid_walk.GridWalk`; a task is the start and the goal.

    Attributes:
        texts: openings by start and then goal; answers by cell, those to a step before those to none.
        words: what a step is called.
        moves: cell that each word leads to, from each cell.
        size: rows, and columns.
        turns: steps in one episode.
        anchors: the cells.
        stop_reasons: how episodes end.
    """

    texts: TextTable
    words: SpokenWords
    moves: Int32[Array, "4 N"]
    size: int = struct.field(pytree_node=False)
    turns: int = struct.field(pytree_node=False)
    anchors: tuple[str, ...] = struct.field(pytree_node=False)
    stop_reasons: tuple[str, ...] = struct.field(pytree_node=False, default=STOP_REASONS)

    def init(self, key: Key[Array, ""], task: Int32[Array, "2"]) -> tuple[State, News]:
        """See `mintjax.train.pure_environment.PureEnvironment`."""
        start, goal = task
        cells = self.size**2
        outside = (start == goal) | ((task < 0) | (task >= cells)).any()
        row = jnp.where(outside, -1, start * cells + goal)
        return (start, goal, jnp.int32(0)), self.texts.opening(row)

    def step(self, state: State, ids: Int32[Array, " M"], length: Int32[Array, ""]) -> PureStep:
        """See `mintjax.train.pure_environment.PureEnvironment`."""
        cell, goal, turn = state
        word = self.words.read(ids, length)
        clear = self.texts.ended(ids, length) & (word >= 0)
        there = jnp.where(clear, self.moves[word, cell], cell)
        arrived, last = there == goal, turn + 1 == self.turns
        nearer = self._distance(there, goal) < self._distance(cell, goal)
        reward = jnp.where(arrived, ARRIVED, jnp.where(nearer, NEARER, OTHER))
        return PureStep(
            state=(there, goal, turn + 1),
            news=self.texts.after(jnp.where(clear, there, self.size**2 + there), ids, length),
            reward=reward.astype(jnp.float32),
            done=arrived | last,
            stop=jnp.where(arrived, 0, 1),
            anchor=cell,
            metrics={
                "clear": clear.astype(jnp.float32),
                "arrived": jnp.where(arrived | last, arrived.astype(jnp.float32), jnp.nan),
            },
        )

    def _distance(self, here: Int32[Array, ""], there: Int32[Array, ""]) -> Int32[Array, ""]:
        """Steps from one cell to another."""
        rows = here // self.size - there // self.size
        return abs(rows) + abs(here % self.size - there % self.size)


def pure_grid_walk(renderer: Renderer, size: int, turns: int) -> PureGridWalk:
    """Renders all that can be said on the grid.

    Args:
        renderer: bound to the policy's tokenizer.
        size: rows, and columns.
        turns: steps in one episode.

    Example:
        >>> environment = pure_grid_walk(renderer, size=4, turns=8)
    """
    cells = range(size**2)
    return PureGridWalk(
        texts=text_table(
            renderer,
            [opening(size, start, goal) for start in cells for goal in cells],
            [answer(size, cell, clear=clear) for clear in (True, False) for cell in cells],
        ),
        words=spoken_words(renderer, WORDS),
        moves=jnp.array([[moved(size, cell, word) for cell in cells] for word in range(4)]),
        size=size,
        turns=turns,
        anchors=tuple(named(size, cell) for cell in cells),
    )
