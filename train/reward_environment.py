"""Single turns: a row of a data set is answered once, and a function scores the answer."""

from collections.abc import Callable
from typing import Any

from mintjax.train.environment import AssistantMessage, Step
from mintjax.train.task_rows import opening_of, row_of, score, text_of
from mintjax.types import Message


class RewardEnvironment:
    """A row and a reward function as an environment.

    Example:
        >>> def exact(completion, answer):
        ...     return float(completion.strip() == answer)
        >>> environment = RewardEnvironment(exact)
        >>> await environment.reset({"prompt": "1 + 1?", "answer": "2"}, seed=0)
        [{'role': 'user', 'content': '1 + 1?'}]
    """

    def __init__(self, reward: Callable[..., Any]) -> None:
        """Takes ``reward(completion, **row)``, see :func:`mintjax.train.task_rows.score`."""
        self._reward = reward
        self._row: dict[str, Any] = {}

    async def reset(self, task: Any, seed: int) -> list[Message]:
        """Opens with the row's prompt.

        Args:
            task: a dict with ``prompt``, a text or messages, and whatever the reward function needs.
            seed: not used.
        """
        self._row = row_of(task)
        return opening_of(self._row)

    async def step(self, assistant: AssistantMessage) -> Step:
        """Scores the answer, which ends the episode with ``"answered"``."""
        reward = await score(self._reward, text_of(assistant), self._row)
        return Step([], reward, done=True, stop_reason="answered")
