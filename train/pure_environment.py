"""What an environment promises that is pure functions over arrays, so that whole episodes run inside one jitted program.

It is a frozen pytree: its tables are leaves, its names and sizes static fields. One row at a time, in twenty lines:

    class Echo(struct.PyTreeNode):
        texts: TextTable
        words: SpokenWords
        turns: int = struct.field(pytree_node=False, default=2)
        stop_reasons: tuple[str, ...] = struct.field(pytree_node=False, default=("said", "gave_up"))
        anchors: tuple[str, ...] = struct.field(pytree_node=False, default=())

        def init(self, key, task):
            return (task, jnp.int32(0)), self.texts.opening(task)

        def step(self, state, ids, length):
            task, turn = state
            said = self.words.read(ids, length) == task
            done = said | (turn + 1 == self.turns)
            news = self.texts.after(jnp.int32(0), ids, length)
            return PureStep((task, turn + 1), news, said.astype(jnp.float32), done, jnp.where(said, 0, 1))

    words = ["yes", "no"]
    texts = text_table(renderer, [[user(f"Say {word}.")] for word in words], [[user("Again.")]])
    echo = Echo(texts, spoken_words(renderer, words))
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, Key

from mintjax.train.text_table import News, TextTable

NO_ANCHOR = np.int32(-1)


class PureStep(NamedTuple):
    """What came of one reply; the twin of `mintjax.train.environment.Step`.

    Attributes:
        state: what the environment carries to its next step.
        news: what it says next; not read where ``done``.
        reward: what the turn earned; nan is "no reward", which is not 0.
        done: whether the episode is over.
        stop: why, as a place in ``stop_reasons``; not read unless ``done``.
        anchor: the situation that the policy was in, as a place in ``anchors``; -1 is none.
        metrics: figures of this turn; nan where there is none.
    """

    state: Any
    news: News
    reward: Float32[Array, ""]
    done: Bool[Array, ""]
    stop: Int32[Array, ""]
    anchor: Int32[Array | np.generic, ""] = NO_ANCHOR
    metrics: Mapping[str, Float32[Array, ""]] = {}


@runtime_checkable
class PureEnvironment(Protocol):
    """A pytree whose two methods are pure functions of arrays; the module's text shows one."""

    @property
    def texts(self) -> TextTable:
        """All that it ever says."""
        ...

    @property
    def turns(self) -> int:
        """Most turns of an episode; static."""
        ...

    @property
    def stop_reasons(self) -> tuple[str, ...]:
        """Names of the reasons why an episode ends; static."""
        ...

    @property
    def anchors(self) -> tuple[str, ...]:
        """Names of the situations that turns of a group can be compared by; static, empty for none."""
        ...

    def init(self, key: Key[Array, ""], task: Int32[Array, "..."]) -> tuple[Any, News]:
        """Starts an episode; the key is made of the number that a host environment's ``reset`` gets as ``seed``."""
        ...

    def step(self, state: Any, ids: Int32[Array, " M"], length: Int32[Array, ""]) -> PureStep:
        """Takes the sampled ids, the stop token included, -1 at and past ``length``, and says what came of them."""
        ...
