"""Sampling many episodes in few rows: a row whose episode ends takes the next one, and no row waits for another's environment.

A turn of the scheduler gives finished episodes' rows to new ones, extends the rows whose environments have answered, and
samples a piece of every reply that goes on. It runs in a thread, so that environments go on meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mintjax.cache import State
from mintjax.policy import Policy
from mintjax.renderers import Rendered, Renderer
from mintjax.renderers.tokenizer import adapt
from mintjax.train.environment import Environment, EnvironmentSession
from mintjax.train.hosted_episode import HostedEpisode
from mintjax.train.rollout_settings import Rollout, RolloutSettings
from mintjax.train.row_pool import RowPool
from mintjax.train.seeds import environment_seed, turn_keys
from mintjax.train.slots import Slots
from mintjax.types import Episode

GroupDone = Callable[[list[Episode], State | None], None]


async def refill(
    policy: Policy,
    renderer: Renderer,
    tokenizer: Any,
    make: Callable[[], Environment],
    tasks: Sequence[Any],
    settings: RolloutSettings,
    *,
    seed: int,
    step: int = 0,
    first_group: int = 0,
    group_done: GroupDone | None = None,
    between: Callable[[], None] | None = None,
) -> Rollout:
    """Sample ``group_size`` episodes of every task in ``settings.rows`` rows.

    Episodes begin in the order of group and member. Their tokens are those that `mintjax.train.rollout.collect` samples
    side by side, and they end for the same reasons: the key of a sample comes from seed, step, group, member and turn.

    An environment that is slow, or never answers, holds up its own row.

    Args:
        policy: samples every token.
        renderer: the chat format.
        tokenizer: the policy's, as renderers take it.
        make: returns a new environment, once for each episode, when it is about to begin.
        tasks: what ``reset`` gets; each task makes a group.
        settings: how to sample, and in how many rows.
        seed: of the run.
        step: of the run.
        first_group: the number of the first task's group.
        group_done: gets the episodes of each group when all of them have ended, and a state with a row for each; in another
            thread, and no token is sampled until it returns. With it, caches of finished episodes wait in ``settings.slots``
            slots; where these are full they stay in their rows, and no episode begins there.
        between: called between two pieces; what it raises ends the rollout.

    Returns:
        The episodes, by group and member, and what they cost; no state, for the rows have been used again.

    Raises:
        ValueError: where there are no rows to sample in, or fewer rows and slots than ``group_done`` needs.

    Example:
        >>> settings = RolloutSettings(group_size=4, max_tokens=32, max_turns=3, rows=8)
        >>> episodes, *_ = await refill(policy, renderer, tokenizer, CountDown, range(3, 10), settings, seed=0)
    """
    if settings.rows < 1:
        raise ValueError(f"rows: expected at least 1, came {settings.rows}.")
    if group_done is not None and settings.rows + settings.kept_slots < settings.group_size:
        raise ValueError(
            f"slots: {settings.rows} rows and {settings.kept_slots} slots cannot hold a group of "
            f"{settings.group_size}, whose gradient needs all of its caches; expected more rows or slots."
        )
    version = int(policy.version)
    renderer = replace(renderer, tokenizer=adapt(tokenizer))
    waiting = [
        _Seat(group, member, task)
        for group, task in enumerate(tasks, first_group)
        for member in range(settings.group_size)
    ]
    pool = RowPool(policy, renderer, settings.rows, settings, prefixes=settings.prefixes)
    scheduler = _Scheduler(
        pool, renderer, make, settings, seed, step, version, waiting[::-1], group_done
    )
    with ThreadPoolExecutor(1, "device") as device:
        await scheduler.run(device, between or (lambda: None))
    episodes = [scheduler.episodes[seat.group, seat.member] for seat in waiting]
    return Rollout(episodes, scheduler.stats, None)


@dataclass(eq=False)
class _Seat:
    """An episode's place in the schedule."""

    group: int
    member: int
    task: Any
    episode: HostedEpisode | None = None
    row: int | None = None
    turn: int = 0
    news: Rendered | None = None


@dataclass
class _Scheduler:
    """Who is where; what its methods do on the device, they do while `run` waits for them."""

    pool: RowPool
    renderer: Renderer
    make: Callable[[], Environment]
    settings: RolloutSettings
    seed: int
    step: int
    version: int
    queue: list[_Seat]
    """Episodes that have not begun, the next one last."""
    group_done: GroupDone | None
    opened: list[_Seat] = field(default_factory=list)
    """Episodes that wait for a row, with their prompts."""
    answered: list[_Seat] = field(default_factory=list)
    """Episodes in rows, with their environments' news."""
    asked: dict[asyncio.Task[None], _Seat] = field(default_factory=dict)
    """Episodes whose environments have been asked."""
    closing: list[asyncio.Task[None]] = field(default_factory=list)
    episodes: dict[tuple[int, int], Episode] = field(default_factory=dict)
    piece_seconds: float = 0.0
    held_bytes: int = 0

    def __post_init__(self) -> None:
        self.seats: list[_Seat | None] = [None] * self.settings.rows
        self.free = list(range(self.settings.rows))
        self.slots = Slots(self.pool, self.settings.group_size, self.settings.kept_slots)

    @property
    def stats(self):
        """What the rollout cost."""
        return self.pool.stats._replace(slots_used=self.slots.used_most, held_bytes=self.held_bytes)

    async def run(self, device: ThreadPoolExecutor, between: Callable[[], None]) -> None:
        """Plays all episodes; leaves no task and no environment open, however it ends."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                between()
                self._reset_ahead()
                await self._hear()
                if self._work_to_do():
                    for seat in await loop.run_in_executor(device, self._work):
                        self._ask(seat, self._answer(seat))
                elif not self.asked and not self.queue:
                    break
        finally:
            await self._leave()

    def _reset_ahead(self) -> None:
        """Asks as many environments for their opening as rows are free, and a few more, so that no row waits for one."""
        begun = len(self.opened) + sum(seat.row is None for seat in self.asked.values())
        ahead = 0 if self.slots.parked else self.pool.few
        for _ in range(min(len(self.queue), len(self.free) + ahead - begun)):
            seat = self.queue.pop()
            seat.episode = HostedEpisode(
                EnvironmentSession(self.make()), seat.task, seat.group, seat.member
            )
            chance = environment_seed(self.seed, self.step, seat.group)
            self._ask(seat, seat.episode.open(chance))

    def _ask(self, seat: _Seat, question: Coroutine[Any, Any, None]) -> None:
        self.asked[asyncio.create_task(question)] = seat

    async def _answer(self, seat: _Seat) -> None:
        """Hands a row's reply to its environment."""
        assert seat.episode is not None and seat.row is not None and seat.news is not None
        reply = self.pool.reply(seat.row)
        seat.turn += 1
        await seat.episode.answer(seat.news, reply, self.renderer, self.settings.temperature)

    async def _hear(self) -> None:
        """Waits for environments as long as that costs no more than to go on without their rows, and takes what they say."""
        if not self.asked:
            return
        patience = None
        if self._work_to_do():
            # The next piece runs their rows for nothing.
            seated = sum(seat.row is not None for seat in self.asked.values())
            idle = seated + min(len(self.free), len(self.asked) - seated)
            patience = self.piece_seconds * idle / len(self.seats)
        wait = asyncio.ALL_COMPLETED if patience is not None else asyncio.FIRST_COMPLETED
        done, _ = await asyncio.wait(self.asked, timeout=patience, return_when=wait)
        for seat in sorted((self.asked.pop(task) for task in done), key=_place):
            self._take(seat)
        for task in done:
            task.result()  # an environment's fault is in its episode; any other ends the rollout

    def _take(self, seat: _Seat) -> None:
        """Goes on with an episode whose environment has answered, or ends it."""
        episode = seat.episode
        assert episode is not None  # it was asked
        news = None
        if seat.turn < self.settings.max_turns:
            news = episode.render(self.renderer)
            if news is not None and self.pool.room(seat.row, news) < 1:
                episode.stop_reason, news = "overflow", None
        seat.news = news
        if news is None:
            self._finish(seat)
        elif seat.row is None:
            self.opened.append(seat)
        else:
            self.answered.append(seat)

    def _finish(self, seat: _Seat) -> None:
        """Records an episode; its row is free at once, or when its cache has gone."""
        episode = seat.episode
        assert episode is not None  # it was asked
        self.episodes[seat.group, seat.member] = episode.record(self.version)
        self.closing.append(asyncio.create_task(episode.close()))
        if seat.row is not None:
            self.seats[seat.row] = None
        if self.group_done is not None:
            self.slots.finish(seat.group, seat.member, seat.row)
        elif seat.row is not None:
            self.free.append(seat.row)

    def _work_to_do(self) -> bool:
        """Whether there is anything for the device."""
        return bool(
            self.pool.live
            or self.answered
            or self.slots.complete()
            or (self.free and self._next())
            or (self.slots.movable and (self.queue or self.opened))
        )

    def _next(self) -> _Seat | None:
        """The episode to begin next: the first that has opened and leaves room for the groups before it to end."""
        if not self.opened:
            return None
        seat = min(self.opened, key=_place)
        if self.group_done is None:
            return seat
        resetting = [x for x in self.asked.values() if x.row is None]
        first = min(x.group for x in [*self.opened, *resetting, *self.queue[-1:]])
        begun = sum(x is not None and x.group > first for x in self.seats)
        places = self.settings.rows + self.settings.kept_slots - self.settings.group_size
        leaves_room = self.slots.after(first) + begun < places
        return seat if seat.group == first or leaves_room else None

    def _work(self) -> list[_Seat]:
        """One turn on the device; the episodes whose replies have ended."""
        for group in self.slots.complete():
            state, rows = self.slots.release(group)
            members = range(self.settings.group_size)
            assert self.group_done is not None  # it fills the slots
            self.group_done([self.episodes[group, member] for member in members], state)
            self.free += rows
        if self.queue or self.opened:
            self.free += self.slots.free_rows()
        self.held_bytes = max(self.held_bytes, self.slots.bytes + self.pool.prompt_bytes)
        self.free.sort()
        while self.free and (seat := self._next()) is not None:
            assert seat.news is not None  # its prompt
            self.opened.remove(seat)
            row = self.free.pop(0)
            self.seats[row], seat.row = seat, row
            self.pool.begin(row, seat.news)
        if self.answered:
            self.pool.feed(
                {
                    seat.row: seat.news
                    for seat in self.answered
                    if seat.row is not None and seat.news
                }
            )
            self.answered.clear()
        if not self.pool.live:
            return []
        start = time.perf_counter()
        ended = self.pool.draw(self._keys())
        self.piece_seconds = time.perf_counter() - start
        return [seat for row in ended if (seat := self.seats[row]) is not None]

    def _keys(self):
        """The key of each row's sample; that of a row without an episode is never used."""
        places = np.array(
            [(0, 0, 0) if seat is None else (seat.turn, *_place(seat)) for seat in self.seats]
        )
        return turn_keys(np.uint32(self.seed), self.step, *places.T)

    async def _leave(self) -> None:
        """Stops what still runs, and closes every environment that was made."""
        asked = [*self.asked]
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        left = [*self.asked.values(), *self.opened, *self.answered, *self.seats]
        unclosed = {id(seat): seat for seat in left if seat and _place(seat) not in self.episodes}
        closes = [seat.episode.close() for seat in unclosed.values() if seat.episode is not None]
        await asyncio.gather(*self.closing, *closes)


def _place(seat: _Seat) -> tuple[int, int]:
    return seat.group, seat.member
