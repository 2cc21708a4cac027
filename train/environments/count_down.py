"""Count-down: say "N, N-1, ..., 1", then the same from N-1 and from N-2."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal

from mintjax.renderers import Renderer
from mintjax.train.config import EnvironmentConfig, register_environment, require
from mintjax.train.environment import AssistantMessage, Step
from mintjax.train.environments.shuffled import shuffled_numbers
from mintjax.train.reply_text import said
from mintjax.train.task_rows import text_of
from mintjax.types import Message

if TYPE_CHECKING:
    from mintjax.train.environments.pure_count_down import PureCountDown

SYSTEM = "Count down from the given number."
PARTIAL_CREDIT = 0.9  # of the similarity, so that nothing but the exact reply earns 1
CUT_PENALTY = 0.1  # for a reply that did not end by itself


class CountDown:
    """One episode of count-down: ``turns`` numbers, each one less than the last, each reply graded.

    A task is the first number. The environment has no chance in it: the seed changes nothing.

    Example:
        >>> environment = CountDown()
        >>> (await environment.reset(task=5, seed=0))[-1]["content"]
        'Start from 5'
        >>> reply = {"role": "assistant", "content": "5, 4, 3, 2, 1", "finish_reason": "stop"}
        >>> (await environment.step(reply)).reward
        1.0
    """

    def __init__(
        self,
        turns: int = 3,
        worked_example: int = 0,
        grading: Literal["similarity", "exact"] = "similarity",
    ) -> None:
        """Make an environment.

        Args:
            turns: numbers asked for in one episode.
            worked_example: the conversation opens with one solved turn from this number; 0 is none.
            grading: by :func:`grade`, or by :func:`grade_exact`.

        Raises:
            ValueError: where ``turns`` is less than 1.
        """
        if turns < 1:
            raise ValueError(f"turns: expected at least 1, came {turns}.")
        self._turns = turns
        self._worked_example = worked_example
        self._grade = grade if grading == "similarity" else grade_exact
        self._start = 0
        self._turn = 0

    async def reset(self, task: int, seed: int) -> list[Message]:
        """Ask for the first count.

        Args:
            task: the number to start from, at least ``turns``.
            seed: not used.

        Returns:
            The system message, the worked turn where there is one, and the first request.

        Raises:
            ValueError: where ``task`` is below ``turns``, so that a later turn would start below 1.
        """
        if task < self._turns:
            raise ValueError(
                f"task: expected a number of at least {self._turns}, since each of {self._turns} "
                f"turns starts one lower; came {task}. Raise the number or ask for fewer turns."
            )
        self._start, self._turn = task, 0
        return opening(task, self._worked_example)

    async def step(self, assistant: AssistantMessage) -> Step:
        """Grade the reply and ask for the next count.

        Args:
            assistant: the reply, with its ``finish_reason``.

        Returns:
            The reward by the grading, the metric ``exact``, and the next request unless this was the last.
        """
        reward = self._grade(
            text_of(assistant), self._start - self._turn, ended=assistant["finish_reason"] == "stop"
        )
        metrics = {"exact": float(reward == 1)}
        self._turn += 1
        if self._turn == self._turns:
            return Step([], reward, done=True, stop_reason="finished", metrics=metrics)
        return Step([request(self._start - self._turn)], reward, done=False, metrics=metrics)


@register_environment("count_down")
@dataclass(frozen=True)
class CountDownConfig(EnvironmentConfig):
    """Count down from a number, then from the two numbers below it."""

    numbers: tuple[int, int] = (3, 9)
    """Lowest and highest number that an episode starts from."""
    turns: int = 3
    """Counts asked for in one episode; each starts one lower than the last."""
    worked_example: int = 0
    """Open every conversation with one solved turn that counts down from this number; 0 is none."""
    grading: Literal["similarity", "exact"] = "similarity"
    """What a reply earns: by how much it is like the right one, or 1 for the right one and 0 for any other."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        low, high = self.numbers
        require(self.turns >= 1, "environment.turns", "at least 1", self.turns)
        worked = self.worked_example
        require(worked >= 0, "environment.worked_example", "at least 0", worked)
        require(
            self.turns <= low <= high,
            "environment.numbers",
            f"[low, high] with {self.turns} (environment.turns) <= low <= high",
            self.numbers,
        )

    def make(self) -> CountDown:
        """Return a new environment for one episode."""
        return CountDown(self.turns, self.worked_example, self.grading)

    def tasks(self, position: int, count: int, seed: int) -> list[int]:
        """Some of the run's numbers, which never end: all come once, in shuffled order, before any comes again.

        Args:
            position: how many numbers come before these.
            count: how many to return.
            seed: seed of the run.

        Returns:
            ``count`` numbers.

        Example:
            >>> sorted(CountDownConfig(numbers=(3, 5)).tasks(position=0, count=3, seed=0))
            [3, 4, 5]
        """
        return shuffled_numbers(*self.numbers, position, count, seed)

    def pure(self, renderer: Renderer) -> "PureCountDown":
        """Return the same environment as functions over arrays.

        Raises:
            ConfigError: where replies are graded by their similarity, which arrays cannot compute.
        """
        from mintjax.train.environments.pure_count_down import pure_count_down

        require(
            self.grading == "exact",
            "environment.grading",
            "exact with rollout.where=jit (difflib compares texts, not arrays; or take rollout.where=host)",
            self.grading,
        )
        return pure_count_down(renderer, self.numbers, self.turns, self.worked_example)


def expected_reply(number: int) -> str:
    """The reply that earns 1.

    Args:
        number: where the count starts.

    Returns:
        The numbers down to 1, with a comma and a space between.

    Example:
        >>> expected_reply(3)
        '3, 2, 1'
    """
    return ", ".join(str(n) for n in range(number, 0, -1))


def grade(reply: str, number: int, *, ended: bool) -> float:
    """How good a reply is.

    A reply that is exact, but for white space around it, and that the policy ended by itself earns 1. Any other earns
    0.9 times its similarity to the expected one, less 0.1 where it was cut. The similarity is that of difflib over
    numbers, words and punctuation marks: twice the matching pieces, over the pieces of both. It grows with every right
    number and comma and falls with every piece of chatter, so a model that never succeeds is still told better from
    worse.

    Args:
        reply: what the policy said.
        number: where the count starts.
        ended: whether the policy ended its turn by itself.

    Returns:
        The reward, from -0.1 to 1.

    Example:
        >>> grade("3, 2, 1", 3, ended=True), grade("3 2", 3, ended=False)
        (1.0, 0.4142857142857143)
    """
    expected = expected_reply(number)
    if ended and reply.strip() == expected:
        return 1.0
    similarity = SequenceMatcher(None, _pieces(expected), _pieces(reply), autojunk=False).ratio()
    return PARTIAL_CREDIT * similarity - (0.0 if ended else CUT_PENALTY)


def grade_exact(reply: str, number: int, *, ended: bool) -> float:
    """How good a reply is where nothing but the right one counts.

    Args:
        reply: what the policy said.
        number: where the count starts.
        ended: whether the policy ended its turn by itself.

    Returns:
        1 where it is the expected reply but for ASCII white space around it, and was not cut; else 0.

    Example:
        >>> grade_exact(" 3, 2, 1", 3, ended=True), grade_exact("3, 2", 3, ended=True)
        (1.0, 0.0)
    """
    return float(ended and said(reply, [expected_reply(number)]) == 0)


def opening(number: int, worked_example: int) -> list[Message]:
    """What a conversation begins with.

    Args:
        number: where the first count starts.
        worked_example: where the solved turn's count starts; 0 is none.

    Returns:
        The system message, the solved turn, the first request.

    Example:
        >>> opening(5, 0)[-1]["content"]
        'Start from 5'
    """
    messages: list[Message] = [{"role": "system", "content": SYSTEM}]
    if worked_example:
        answer: Message = {"role": "assistant", "content": expected_reply(worked_example)}
        messages += [request(worked_example), answer]
    return [*messages, request(number)]


def request(number: int) -> Message:
    """What asks for a count from a number."""
    return {"role": "user", "content": f"Start from {number}"}


def _pieces(text: str) -> Sequence[str]:
    """Split a text into numbers, words and punctuation marks."""
    return re.findall(r"\d+|[^\W\d]+|[^\w\s]", text)
