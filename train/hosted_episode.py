"""One episode with one environment, between the two sides: what it says is rendered, what the policy says is recorded.

Who samples, and what stands beside it in a batch, is not known here.
"""

import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from mintjax.renderers import Rendered, Renderer, RenderError
from mintjax.train.environment import AssistantMessage, EnvironmentSession, Step
from mintjax.train.sampler import Reply
from mintjax.types import Episode, Message, Turn


@dataclass
class HostedEpisode:
    """One episode as it grows; whatever its environment does wrong ends this episode and no other.

    Attributes:
        session: the environment.
        task: what ``reset`` gets.
        group: number of the task.
        member: number of the episode within its group.
        stop_reason: why it is over, None while it goes on.
        error: what its environment did wrong, as text.

    Example:
        >>> episode = HostedEpisode(EnvironmentSession(CountDown()), task=5, group=0, member=0)
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
    stop_reason: str | None = None
    error: str | None = None
    _news: list[Message] = field(default_factory=list)
    _conversation: Rendered | None = None
    _turns: list[Turn] = field(default_factory=list)

    async def open(self, seed: int) -> None:
        """Resets the environment."""
        try:
            self._news = await self.session.reset(self.task, seed)
        except Exception as error:
            self._fail(error)

    def render(self, renderer: Renderer) -> Rendered | None:
        """The new messages, rendered after all before them; None where the episode has ended, or fails here."""
        if self.stop_reason is not None:
            return None
        try:
            return renderer.render(
                self._news, tools=self.session.tools or None, extend=self._conversation
            )
        except RenderError as error:
            self._fail(error)
            return None

    async def answer(
        self, news: Rendered, reply: Reply, renderer: Renderer, temperature: float
    ) -> None:
        """Hands a reply to the environment and records the turn.

        Args:
            news: what `render` returned.
            reply: what was sampled after it.
            renderer: reads the reply.
            temperature: it was sampled at.
        """
        self._conversation = news.with_sampled(reply.ids)
        said = renderer.parse(reply.ids).message
        finish: Literal["stop", "length"] = "stop" if reply.stop == "stop" else "length"
        message: AssistantMessage = {**said, "finish_reason": finish}
        step: Step | None = None
        try:
            step = await self.session.step(message)
        except Exception as error:
            self._fail(error)
        # An opening may hold assistant messages, but those are the environment's: only the reply was sampled.
        turn = Turn(
            tokens=np.concatenate([news.ids, reply.ids]),
            sampled=np.arange(len(news) + len(reply.ids)) >= len(news),
            logprobs=np.concatenate([np.full(len(news), np.nan, np.float32), reply.logprobs]),
            temperature=temperature,
            messages=(*self._news, said),
            reward=step.reward if step else None,
            decode_stop=reply.stop,
            metrics=dict(step.metrics) if step else {},
            anchor=step.anchor if step else None,
        )
        self._turns.append(turn)
        if step:
            self._news, self.stop_reason = list(step.messages), step.stop_reason

    async def close(self) -> None:
        """Closes the environment; the episode is over, so a failure is only told."""
        try:
            await self.session.close()
        except Exception as error:
            warnings.warn(
                f"close of the environment of group {self.group}, member {self.member} raised "
                f"{type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    def record(self, version: int) -> Episode:
        """The episode as it was sampled; one that nothing ended has used up its turns."""
        reason = self.stop_reason or "max_turns"
        return Episode(tuple(self._turns), self.group, self.member, reason, self.error, version)

    def _fail(self, error: Exception) -> None:
        """Ends the episode with the text of what its environment did wrong."""
        self.stop_reason, self.error = "error", f"{type(error).__name__}: {error}"
