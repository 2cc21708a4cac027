"""Guess the number as functions over arrays: the twin of `mintjax.train.environments.guess_the_number`."""

from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, Int32, Key

from mintjax.renderers import Renderer
from mintjax.train.environments.guess_the_number import (
    STOP_REASONS,
    answers,
    opening,
    rewards,
    words,
)
from mintjax.train.pure_environment import PureStep
from mintjax.train.spoken_words import SpokenWords, spoken_words
from mintjax.train.text_table import News, TextTable, text_table


class Game(NamedTuple):
    """A game under way; numbers are counted from the lowest one."""

    secret: Int32[Array, ""]
    turn: Int32[Array, ""]
    least: Int32[Array, ""]
    most: Int32[Array, ""]


class PureGuessTheNumber(struct.PyTreeNode):
    """See `mintjax.train.environments.guess_the_number.GuessTheNumber`; a task is the secret number.

    Attributes:
        texts: the one opening; "Higher.", "Lower.", and what is said of no guess.
        guesses: the numbers, from the lowest on.
        rewards: of a right guess, by the turn.
        numbers: lowest and highest.
        anchors: "least..most" of what is still possible, by least and then most.
        stop_reasons: how episodes end.
    """

    texts: TextTable
    guesses: SpokenWords
    rewards: Float32[Array, " T"]
    numbers: tuple[int, int] = struct.field(pytree_node=False)
    anchors: tuple[str, ...] = struct.field(pytree_node=False)
    stop_reasons: tuple[str, ...] = struct.field(pytree_node=False, default=STOP_REASONS)

    @property
    def turns(self) -> int:
        """Guesses in one episode."""
        return self.rewards.shape[0]

    def init(self, key: Key[Array, ""], task: Int32[Array, ""]) -> tuple[Game, News]:
        """See `mintjax.train.pure_environment.PureEnvironment`."""
        low, high = self.numbers
        outside = (task < low) | (task > high)
        game = Game(task - low, jnp.int32(0), jnp.int32(0), jnp.int32(high - low))
        return game, self.texts.opening(jnp.where(outside, -1, 0))

    def step(self, state: Game, ids: Int32[Array, " M"], length: Int32[Array, ""]) -> PureStep:
        """See `mintjax.train.pure_environment.PureEnvironment`."""
        secret, turn, least, most = state
        place = self.guesses.read(ids, length)
        clear = self.texts.ended(ids, length) & (place >= 0)
        found, low = clear & (place == secret), clear & (place < secret)
        last = turn + 1 == self.turns
        answer = jnp.where(low, 0, jnp.where(clear, 1, 2))
        count = self.numbers[1] - self.numbers[0] + 1
        return PureStep(
            state=Game(
                secret,
                turn + 1,
                jnp.where(low, jnp.maximum(least, place + 1), least),
                jnp.where(clear & ~low, jnp.minimum(most, place - 1), most),
            ),
            news=self.texts.after(answer, ids, length),
            reward=jnp.where(found, self.rewards[turn], 0),
            done=found | last,
            stop=jnp.where(found, 0, 1),
            anchor=least * count + most,
            metrics={
                "clear": clear.astype(jnp.float32),
                "found": jnp.where(found | last, found.astype(jnp.float32), jnp.nan),
            },
        )


def pure_guess_the_number(
    renderer: Renderer, numbers: tuple[int, int], turns: int, worked_example: int
) -> PureGuessTheNumber:
    """Renders all that the game can say.

    Args:
        renderer: bound to the policy's tokenizer.
        numbers: lowest and highest.
        turns: guesses in one episode.
        worked_example: the number found in the game before; 0 is none.

    Example:
        >>> environment = pure_guess_the_number(renderer, (1, 9), turns=4, worked_example=0)
    """
    every = range(numbers[0], numbers[1] + 1)
    return PureGuessTheNumber(
        texts=text_table(renderer, [opening(*numbers, worked_example)], answers(*numbers)),
        guesses=spoken_words(renderer, words(*numbers)),
        rewards=jnp.asarray(rewards(turns), jnp.float32),
        numbers=numbers,
        anchors=tuple(f"{least}..{most}" for least in every for most in every),
    )
