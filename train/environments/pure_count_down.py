"""Count-down as functions over arrays: the twin of `mintjax.train.environments.count_down`, graded exactly."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int32, Key

from mintjax.renderers import Renderer
from mintjax.train.environments.count_down import expected_reply, opening, request
from mintjax.train.pure_environment import PureStep
from mintjax.train.spoken_words import SpokenWords, spoken_words
from mintjax.train.text_table import News, TextTable, text_table

State = tuple[Int32[Array, ""], Int32[Array, ""]]  # the first number, and the turn


class PureCountDown(struct.PyTreeNode):
    """See `mintjax.train.environments.count_down.CountDown`; a task is the first number.

    Attributes:
        texts: openings by their number from ``numbers[0]`` on, requests by theirs from ``first`` on.
        replies: the right ones, by the number that they start from, from ``first`` on.
        numbers: lowest and highest number that an episode starts from.
        turns: counts asked for.
        stop_reasons: how episodes end.
        anchors: none.
    """

    texts: TextTable
    replies: SpokenWords
    numbers: tuple[int, int] = struct.field(pytree_node=False)
    turns: int = struct.field(pytree_node=False)
    stop_reasons: tuple[str, ...] = struct.field(pytree_node=False, default=("finished",))
    anchors: tuple[str, ...] = struct.field(pytree_node=False, default=())

    @property
    def first(self) -> int:
        """The lowest number that a count starts from."""
        return self.numbers[0] - self.turns + 1

    def init(self, key: Key[Array, ""], task: Int32[Array, ""]) -> tuple[State, News]:
        """See `mintjax.train.pure_environment.PureEnvironment`."""
        return (task, jnp.int32(0)), self.texts.opening(task - self.numbers[0])

    def step(self, state: State, ids: Int32[Array, " M"], length: Int32[Array, ""]) -> PureStep:
        """See `mintjax.train.pure_environment.PureEnvironment`."""
        start, turn = state
        said = self.replies.read(ids, length) + self.first
        right = self.texts.ended(ids, length) & (said == start - turn)
        reward = right.astype(jnp.float32)
        following = start - turn - 1
        return PureStep(
            state=(start, turn + 1),
            news=self.texts.after(following - self.first, ids, length),
            reward=reward,
            done=turn + 1 == self.turns,
            stop=jnp.int32(0),
            metrics={"exact": reward},
        )


def pure_count_down(
    renderer: Renderer, numbers: tuple[int, int], turns: int, worked_example: int
) -> PureCountDown:
    """Renders all that count-down can say.

    Args:
        renderer: bound to the policy's tokenizer.
        numbers: lowest and highest number that an episode starts from.
        turns: counts asked for in one episode.
        worked_example: number of the solved turn; 0 is none.

    Example:
        >>> environment = pure_count_down(renderer, (3, 9), turns=3, worked_example=0)
    """
    low, high = numbers
    counts = range(low - turns + 1, high + 1)
    texts = text_table(
        renderer,
        [opening(number, worked_example) for number in range(low, high + 1)],
        [[request(number)] for number in counts],
    )
    replies = spoken_words(renderer, [expected_reply(number) for number in counts])
    return PureCountDown(texts, replies, numbers, turns)
