"""One episode with one environment, between the two sides: what it says is rendered, what the policy says is recorded.

Who samples, and what stands beside it in a batch, is not known here.
"""

import asyncio
import time
import warnings
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from mintjax.renderers import AnyRenderer, Parsed, Rendered
from mintjax.train.environment import AssistantMessage, EnvironmentSession, Step, Waiting
from mintjax.train.episode_rules import EpisodeRules
from mintjax.train.sampler import Reply
from mintjax.train.tool_calls import refusal
from mintjax.train.turn_record import record_turn
from mintjax.types import Episode, Message, Turn

Answer = TypeVar("Answer")


@dataclass
class HostedEpisode:
    """One episode as it grows; whatever its environment does wrong ends this episode and no other.

    Attributes:
        session: the environment.
        task: what ``reset`` gets.
        group: number of the task.
        member: number of the episode within its group.
        rules: when it ends, and what comes of replies that cannot be read.
        seat: which player the policy is, in a game of several.
        stop_reason: why it is over, None while it goes on.
        error: what its environment did wrong, as text.
        closed: whether the environment has been closed.

    Example:
        >>> episode = HostedEpisode(EnvironmentSession(CountDown()), task=5, group=0, member=0, rules=rules)
        >>> await episode.open(seed=0)
        >>> news = episode.render(renderer)
        >>> await episode.answer(news, reply, renderer, temperature=1.0)
        >>> await episode.close()
        >>> episode.record(version=0).turns
    """

    session: EnvironmentSession
    task: Any
    group: int
    member: int
    rules: EpisodeRules
    seat: int = 0
    stop_reason: str | None = None
    error: str | None = None
    closed: bool = False
    _news: list[Message] = field(default_factory=list)
    _conversation: Rendered | None = None
    _tokens: int = 0
    _turns: list[Turn] = field(default_factory=list)
    _waiting: Waiting | None = None
    _deadline: float | None = None

    @property
    def turns(self) -> int:
        """How many replies it has had."""
        return len(self._turns)

    async def open(self, seed: int) -> None:
        """Resets the environment."""
        if self.rules.episode_timeout is not None:
            self._deadline = time.monotonic() + self.rules.episode_timeout
        self._take(await self._within("reset", self.session.reset(self.task, seed)))

    def render(self, renderer: AnyRenderer) -> Rendered | None:
        """The new messages, rendered after all before them.

        None where the episode has ended, or fails here; and where it waits for another episode, so that it has no
        `stop_reason` yet.
        """
        self._arrive()
        if self.stop_reason is None and self._late():
            self.stop_reason = "episode_timeout"
        if self.stop_reason is not None or self._waiting is not None:
            return None
        try:
            news = renderer.render(
                self._news, tools=self.session.tools or None, extend=self._conversation
            )
        except Exception as error:  # of whatever kind: messages and tools are the environment's
            self._fail(error)
            return None
        most = self.rules.max_episode_tokens
        if most and self._tokens + len(news) >= most:
            self.stop_reason = "max_episode_tokens"
            return None
        return news

    async def answer(
        self, news: Rendered, reply: Reply, renderer: AnyRenderer, temperature: float
    ) -> None:
        """Hands a reply to the environment and records the turn.

        Args:
            news: what `render` returned.
            reply: what was sampled after it.
            renderer: reads the reply.
            temperature: it was sampled at.
        """
        self._conversation = news.with_sampled(reply.ids)
        parsed = self._read(reply, renderer)
        turn = record_turn(
            news.ids,
            reply.ids,
            reply.logprobs,
            messages=tuple(self._news),
            parsed=parsed,
            temperature=temperature,
            decode_stop=reply.stop,
        )
        self._turns.append(turn)
        self._tokens += len(turn.tokens)
        if self.stop_reason is not None:
            return
        finish: Literal["stop", "length"] = "stop" if reply.stop == "stop" else "length"
        message: AssistantMessage = {**parsed.message, "finish_reason": finish}
        error = turn.parse_error
        if error is not None:
            message["parse_error"] = error
        if error is None or self.rules.parse_errors == "pass":
            self._take(await self._within("step", self.session.step(message)))
        else:
            end = self.rules.parse_errors == "end"
            self._take(
                Step(
                    [] if end else refusal(message, error),
                    self.rules.parse_error_reward,
                    done=end,
                    stop_reason="parse_error" if end else None,
                )
            )

    async def close(self) -> None:
        """Closes the environment, once; the episode is over, so a failure is only told."""
        if self.closed:
            return
        self.closed = True
        try:
            async with asyncio.timeout(self.rules.step_timeout):
                await self.session.close()
        except Exception as error:
            warnings.warn(
                f"close of the environment of group {self.group}, member {self.member} raised "
                f"{type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    def record(self, version: int) -> Episode:
        """The episode as it was sampled; one that nothing ended waits for another that does not go on."""
        reason, error = self.stop_reason, self.error
        if reason is None:
            reason = "error"
            error = (
                "the environment waits for another episode, and none of the batch goes on; settle the answer of its "
                "Waiting when the other ends"
            )
        return Episode(
            tuple(self._turns), self.group, self.member, reason, error, version, self.seat
        )

    def _read(self, reply: Reply, renderer: AnyRenderer) -> Parsed:
        """What a reply says."""
        try:
            return renderer.parse(reply.ids, tools=self.session.tools or None)
        except Exception as error:  # some formats read arguments by the environment's schemas
            self._fail(error)
            return renderer.parse(reply.ids)

    async def _within(self, member: str, call: Coroutine[Any, Any, Answer]) -> Answer | None:
        """What a call of the environment gives; None where that ended the episode."""
        step, left = self.rules.step_timeout, None
        if self._deadline is not None:
            left = max(0.0, self._deadline - time.monotonic())
        last = left is not None and (step is None or left <= step)
        clock = asyncio.timeout(left if last else step)
        try:
            async with clock:
                return await call
        except Exception as error:
            if not clock.expired():
                self._fail(error)
            elif last:
                self.stop_reason = "episode_timeout"
            else:
                self.stop_reason = "step_timeout"
                self.error = (
                    f"{member} did not return within {step:g} s (rollout.step_timeout). Raise that, or find what the "
                    "environment waits for"
                )
        return None

    def _take(self, answer: list[Message] | Step | Waiting | None) -> None:
        """Goes on from what the environment said; from None, the episode has ended."""
        if isinstance(answer, Waiting):
            self._waiting = answer
        elif isinstance(answer, Step):
            if self._turns:
                self._turns[-1] = replace(
                    self._turns[-1],
                    reward=answer.reward,
                    metrics=dict(answer.metrics),
                    anchor=answer.anchor,
                )
            self._news, self.stop_reason = list(answer.messages), answer.stop_reason
        elif answer is not None:
            self._news = answer
        if self.stop_reason is None and self.turns >= self.rules.max_turns and not self._waiting:
            self.stop_reason = "max_turns"

    def _arrive(self) -> None:
        """Goes on where what the environment waited for is there."""
        waiting = self._waiting
        if self.stop_reason is None and waiting is not None and waiting.answer.done():
            self._waiting = None
            try:
                self._take(self.session.arrived(waiting))
            except Exception as error:
                self._fail(error)

    def _late(self) -> bool:
        """Whether the time of the whole episode is up."""
        return self._deadline is not None and time.monotonic() > self._deadline

    def _fail(self, error: Exception) -> None:
        """Ends the episode with the text of what its environment did wrong."""
        self.stop_reason, self.error = "error", f"{type(error).__name__}: {error}"
