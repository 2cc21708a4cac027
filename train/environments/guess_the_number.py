"""Guess the number: the policy guesses, and is told whether the secret number is higher or lower."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mintjax.renderers import Renderer
from mintjax.train.config import EnvironmentConfig, register_environment, require
from mintjax.train.environment import AssistantMessage, Step
from mintjax.train.environments.shuffled import shuffled_numbers
from mintjax.train.reply_text import NOTHING, said
from mintjax.train.task_rows import text_of
from mintjax.types import Message

if TYPE_CHECKING:
    from mintjax.train.environments.pure_guess_the_number import PureGuessTheNumber

STOP_REASONS = ("found", "not_found")


class GuessTheNumber:
    """One episode: at most ``turns`` guesses at one number.

    A task is the secret number. There is no chance in the environment: the seed changes nothing. A guess is a reply of one
    number, but for white space around it, that the policy ended by itself; any other reply costs a turn too.

    Example:
        >>> environment = GuessTheNumber(1, 9)
        >>> opening = await environment.reset(task=7, seed=0)
        >>> step = await environment.step({"role": "assistant", "content": "5", "finish_reason": "stop"})
        >>> step.messages[0]["content"], step.anchor
        ('Higher.', '1..9')
    """

    def __init__(self, low: int, high: int, turns: int = 4, worked_example: int = 0) -> None:
        """Make an environment.

        Args:
            low: the lowest number that is guessed at.
            high: the highest.
            turns: guesses in one episode.
            worked_example: the conversation opens with a game in which this number was found; 0 is none.
        """
        self._low, self._high, self._worked_example = low, high, worked_example
        self._words = words(low, high)
        self._rewards = rewards(turns)
        self._secret = self._turn = 0
        self._least, self._most = low, high

    async def reset(self, task: int, seed: int) -> list[Message]:
        """Ask for the first guess.

        Args:
            task: the secret number.
            seed: not used.

        Returns:
            The system message, the worked game where there is one, and the request.

        Raises:
            ValueError: where ``task`` is not among the numbers.
        """
        if not self._low <= task <= self._high:
            raise ValueError(
                f"task: expected a number from {self._low} to {self._high}, came {task}."
            )
        self._secret, self._turn = task, 0
        self._least, self._most = self._low, self._high
        return opening(self._low, self._high, self._worked_example)

    async def step(self, assistant: AssistantMessage) -> Step:
        """Take a guess.

        Args:
            assistant: the reply, with its ``finish_reason``.

        Returns:
            The answer; the reward of :func:`rewards` where the number is found, else 0; the metrics ``clear``, whether the
            reply was a guess, and, of the last turn, ``found``; the numbers that are still possible as the anchor.
        """
        anchor = f"{self._least}..{self._most}"
        ended = assistant["finish_reason"] == "stop"
        place = said(text_of(assistant), self._words) if ended else NOTHING
        guess = self._low + place
        found = guess == self._secret and place != NOTHING
        reward = self._rewards[self._turn] if found else 0.0
        metrics = {"clear": float(place != NOTHING)}
        self._turn += 1
        if found or self._turn == len(self._rewards):
            metrics["found"] = float(found)
            reason = STOP_REASONS[0 if found else 1]
            return Step([], reward, done=True, stop_reason=reason, metrics=metrics, anchor=anchor)
        answer = 2
        if place != NOTHING and guess < self._secret:
            answer, self._least = 0, max(self._least, guess + 1)
        elif place != NOTHING:
            answer, self._most = 1, min(self._most, guess - 1)
        said_next = answers(self._low, self._high)[answer]
        return Step(said_next, reward, done=False, metrics=metrics, anchor=anchor)


@register_environment("guess_the_number")
@dataclass(frozen=True)
class GuessTheNumberConfig(EnvironmentConfig):
    """Guess a number, being told "Higher." or "Lower."; the fewer guesses, the higher the reward."""

    numbers: tuple[int, int] = (1, 9)
    """Lowest and highest number that can be the secret one."""
    turns: int = 4
    """Guesses in one episode; the k-th earns 1 - (k - 1) / turns where it is right."""
    worked_example: int = 0
    """Open every conversation with a game in which this number was found by halving; 0 is none."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        low, high = self.numbers
        require(self.turns >= 1, "environment.turns", "at least 1", self.turns)
        require(
            0 < low < high, "environment.numbers", "[low, high] with 0 < low < high", self.numbers
        )
        require(
            self.worked_example == 0 or low <= self.worked_example <= high,
            "environment.worked_example",
            f"0, or one from {low} to {high} (environment.numbers)",
            self.worked_example,
        )

    def make(self) -> GuessTheNumber:
        """Return a new environment for one episode."""
        return GuessTheNumber(*self.numbers, self.turns, self.worked_example)

    def tasks(self, position: int, count: int, seed: int) -> list[int]:
        """Some of the run's secret numbers (:func:`mintjax.train.environments.shuffled.shuffled_numbers`).

        Example:
            >>> sorted(GuessTheNumberConfig(numbers=(3, 5)).tasks(position=0, count=3, seed=0))
            [3, 4, 5]
        """
        return shuffled_numbers(*self.numbers, position, count, seed)

    def pure(self, renderer: Renderer) -> "PureGuessTheNumber":
        """Return the same environment as functions over arrays."""
        from mintjax.train.environments.pure_guess_the_number import pure_guess_the_number

        return pure_guess_the_number(renderer, self.numbers, self.turns, self.worked_example)


def words(low: int, high: int) -> list[str]:
    """All guesses, the lowest first.

    Example:
        >>> words(1, 3)
        ['1', '2', '3']
    """
    return [str(number) for number in range(low, high + 1)]


def rewards(turns: int) -> list[float]:
    """What finding the number earns, by the turn; in single precision, as both twins pay it.

    Example:
        >>> rewards(4)
        [1.0, 0.75, 0.5, 0.25]
    """
    return [float(np.float32(1 - turn / turns)) for turn in range(turns)]


def opening(low: int, high: int, worked_example: int) -> list[Message]:
    """What a conversation begins with.

    Args:
        low: the lowest number.
        high: the highest.
        worked_example: the number that was found in the game before; 0 is none.

    Returns:
        The system message, the game before, the request.

    Example:
        >>> [message["content"] for message in opening(1, 9, 7)][1:]
        ['Guess.', '5', 'Higher.', '7', 'Right. Now another number. Guess.']
    """
    rule = f"Find the secret number from {low} to {high}. Say one number."
    messages: list[Message] = [{"role": "system", "content": rule}, _user("Guess.")]
    if not worked_example:
        return messages
    least, most, guess = low, high, 0
    while guess != worked_example:
        guess = (least + most) // 2
        messages.append({"role": "assistant", "content": str(guess)})
        if guess < worked_example:
            least = guess + 1
            messages += answers(low, high)[0]
        elif guess > worked_example:
            most = guess - 1
            messages += answers(low, high)[1]
    return [*messages, _user("Right. Now another number. Guess.")]


def answers(low: int, high: int) -> list[Sequence[Message]]:
    """What is said of a guess that is too low, of one that is too high, and of what is no guess.

    Example:
        >>> answers(1, 9)[2][0]["content"]
        'Say one number from 1 to 9.'
    """
    return [
        [_user(text)] for text in ("Higher.", "Lower.", f"Say one number from {low} to {high}.")
    ]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
