"""Who is in which row, and who waits for whom, while many episodes are sampled in few rows.

A turn of the scheduler gives finished episodes' rows to new ones, extends the rows whose environments have answered, and
samples a piece of every reply that goes on. It runs in a thread, so that environments go on meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Array, Key

from mintjax.cache import State
from mintjax.renderers import AnyRenderer, Rendered
from mintjax.train.environment import EnvironmentSession
from mintjax.train.hosted_episode import HostedEpisode
from mintjax.train.rollout_settings import RolloutSettings
from mintjax.train.rollout_stats import RolloutStats
from mintjax.train.row_pool import RowPool
from mintjax.train.slots import Slots
from mintjax.train.turn_keys import drawn_as, environment_seed, turn_keys
from mintjax.types import Episode

GroupDone = Callable[[list[Episode], State | None], None]
Place = tuple[int, int, int]  # group, member, seat: the order in which episodes begin


@dataclass(eq=False)
class Table:
    """Episodes that wait for each other: those of all seats of a game, or one alone. They are given their rows together.

    Attributes:
        group: number of the task.
        member: number within the group.
        task: what ``reset`` gets.
        seats: those whose episodes go on, once it has opened.
        rows: by seat, once one of them has begun.
    """

    group: int
    member: int
    task: Any
    seats: "list[Seat]" = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class Seat:
    """An episode in the schedule; ``row`` is set once it has begun, ``news`` is what it is to read next."""

    table: Table
    episode: HostedEpisode
    row: int | None = None
    news: Rendered | None = None

    @property
    def place(self) -> Place:
        """Where it stands in the order of episodes."""
        return self.table.group, self.table.member, self.episode.seat


@dataclass
class Scheduler:
    """The state of a rollout in rows that refill. What its methods do on the device, they do while `run` waits for them.

    Attributes:
        pool: the rows.
        renderer: the chat format, bound to a tokenizer.
        sessions: makes the environments of a table, one for each of its ``width`` seats.
        settings: how to sample.
        seed: of the run.
        step: of the run.
        version: of the policy.
        queue: tables that have not opened, the next one last.
        width: seats of a table.
        group_done: gets each group that has ended, with its caches.
        episodes: those that have ended, by their places.

    Example:
        >>> scheduler = Scheduler(pool, renderer, make, settings, seed, step, version, queue, 1, None)
        >>> await scheduler.run(between=lambda: None)
        >>> scheduler.episodes[0, 0, 0].stop_reason
    """

    pool: RowPool
    renderer: AnyRenderer
    sessions: Callable[[], list[EnvironmentSession]]
    settings: RolloutSettings
    seed: int
    step: int
    version: int
    queue: list[Table]
    width: int
    group_done: GroupDone | None
    episodes: dict[Place, Episode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with free rows."""
        size = self.settings.group_size * self.width
        self.slots = Slots(self.pool, size, self.settings.kept_slots)
        self._rows: list[Seat | None] = [None] * self.settings.rows
        self._free = list(range(self.settings.rows))
        self._asked: dict[asyncio.Task[None], Seat] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._waiting: list[Seat] = []  # for other episodes
        self._opened: list[Seat] = []  # wait for a row, with their prompts
        self._answered: list[Seat] = []  # in rows, with their environments' news
        self._unbegun: list[Table] = []  # open, without rows
        self._live: set[Seat] = set()  # open, and not over
        self._piece_seconds = 0.0
        self._held_bytes = 0

    @property
    def stats(self) -> RolloutStats:
        """What the rollout cost."""
        used, held = self.slots.used_most, self._held_bytes
        return self.pool.stats._replace(slots_used=used, held_bytes=held)

    async def run(self, between: Callable[[], None]) -> None:
        """Plays all episodes; leaves no task and no environment open, however it ends."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "device") as device:
            try:
                while True:
                    between()
                    self._open_ahead()
                    await self._hear()
                    if self._work_to_do():
                        for seat in await loop.run_in_executor(device, self._work):
                            self._ask(seat, self._answer(seat))
                    elif self._waiting and not self._asked and not self._closing:
                        for seat in [*self._waiting]:  # for episodes that do not go on
                            self._finish(seat)
                    elif not (self._asked or self._closing or self.queue):
                        break
            finally:
                await self._leave()

    def _open_ahead(self) -> None:
        """Opens as many tables as rows are free for, and a few more, so that no row waits for an opening."""
        due = sum(len(table.seats) for table in self._unbegun)
        room = len(self._free) + (0 if self.slots.parked else self.pool.few) - due
        while self.queue and room > 0:
            table = self.queue.pop()
            chance = environment_seed(self.seed, self.step, table.group)
            for number, session in enumerate(self.sessions()):
                episode = HostedEpisode(
                    session, table.task, table.group, table.member, self.settings, number
                )
                table.seats.append(Seat(table, episode))
            self._unbegun.append(table)
            self._live.update(table.seats)
            for seat in table.seats:
                self._ask(seat, seat.episode.open(chance))
            room -= self.width

    def _ask(self, seat: Seat, question: Coroutine[Any, Any, None]) -> None:
        self._asked[asyncio.create_task(question)] = seat

    async def _answer(self, seat: Seat) -> None:
        """Hands a row's reply to its environment."""
        assert seat.row is not None and seat.news is not None  # it was sampled there
        reply = self.pool.reply(seat.row)
        await seat.episode.answer(seat.news, reply, self.renderer, self.settings.temperature)

    async def _hear(self) -> None:
        """Waits for environments as long as that costs no more than to go on without their rows, and takes what they say."""
        work = self._work_to_do()
        # Whoever waits for an episode that has ended learns of it when that is closed; so does the end of the rollout.
        tasks = {*self._asked, *(self._closing if self._waiting or not work else ())}
        if tasks:
            patience, until = None, asyncio.FIRST_COMPLETED
            if work:
                # The next piece runs their rows for nothing.
                seated = sum(seat.row is not None for seat in self._asked.values())
                idle = seated + min(len(self._free), len(self._asked) - seated)
                patience = self._piece_seconds * idle / len(self._rows)
                until = asyncio.ALL_COMPLETED
            await asyncio.wait(tasks, timeout=patience, return_when=until)
        heard = [task for task in self._asked if task.done()]
        seats = [self._asked.pop(task) for task in heard] + self._waiting
        closed = {task for task in self._closing if task.done()}
        self._closing -= closed
        for task in [*heard, *closed]:
            task.result()  # an environment's fault is in its episode; any other ends the rollout
        for seat in sorted(seats, key=_place):
            self._take(seat)

    def _take(self, seat: Seat) -> None:
        """Goes on with an episode whose environment has answered, or ends it."""
        episode, waited = seat.episode, seat in self._waiting
        news = episode.render(self.renderer)
        if news is not None and self.pool.room(seat.row, news) < 1:
            episode.stop_reason, news = "overflow", None
        seat.news = news
        if news is None and episode.stop_reason is None:
            if not waited:
                self._waiting.append(seat)
        elif news is None:
            self._finish(seat)
        else:
            if waited:
                self._waiting.remove(seat)
            (self._opened if seat.row is None else self._answered).append(seat)

    def _finish(self, seat: Seat) -> None:
        """Records an episode; its row is free at once, or when its cache has gone."""
        table, episode = seat.table, seat.episode
        if seat in self._waiting:
            self._waiting.remove(seat)
        self.episodes[seat.place] = episode.record(self.version)
        self._closing.add(asyncio.create_task(episode.close()))
        self._live.discard(seat)
        table.seats.remove(seat)
        if not table.seats and table in self._unbegun:
            self._unbegun.remove(table)
        row = table.rows.pop(episode.seat, None)
        kept = self.group_done is not None
        if kept:
            member = episode.seat * self.settings.group_size + table.member
            self.slots.finish(table.group, member, seat.row)
        if seat.row is not None:
            self._rows[seat.row] = None
        if row is not None and not (kept and seat.row is not None):
            self._free.append(row)

    def _work_to_do(self) -> bool:
        """Whether there is anything for the device."""
        return bool(
            self.pool.live
            or self._answered
            or self.slots.complete()
            or self._next()
            or (self.slots.movable and (self.queue or self._opened))
        )

    def _next(self) -> Seat | None:
        """The episode to begin next: the first whose table has rows, or can have them and leaves the groups before it room."""
        for seat in sorted(self._opened, key=_place):
            if seat.table.rows or self._has_room(seat.table):
                return seat
        return None

    def _has_room(self, table: Table) -> bool:
        """Whether a table can be given rows."""
        need = len(table.seats)
        if need > len(self._free):
            return False
        first = min(x.group for x in [*self._unbegun, *self.queue[-1:]])
        if self.group_done is None or table.group == first:
            return True
        begun = sum(seat is not None and seat.table.group > first for seat in self._rows)
        places = self.settings.rows + self.settings.kept_slots
        group = self.settings.group_size * self.width
        return self.slots.after(first) + begun + need <= places - group

    def _work(self) -> list[Seat]:
        """One turn on the device; the episodes whose replies have ended."""
        for group in self.slots.complete():
            state, rows = self.slots.release(group, self.settings.group_size)
            assert self.group_done is not None  # it fills the slots
            self.group_done(list(self._of(group)), state)
            self._free += rows
        if self.queue or self._opened:
            self._free += self.slots.free_rows()
        held = self.slots.bytes + self.pool.prompt_bytes
        self._held_bytes = max(self._held_bytes, held)
        self._free.sort()
        while (seat := self._next()) is not None:
            self._begin(seat)
        if self._answered:
            answered = [(seat.row, seat.news) for seat in self._answered]
            self.pool.feed({row: news for row, news in answered if row is not None and news})
            self._answered.clear()
        if not self.pool.live:
            return []
        start = time.perf_counter()
        ended = self.pool.draw(self._keys())
        self._piece_seconds = time.perf_counter() - start
        return [seat for row in ended if (seat := self._rows[row]) is not None]

    def _begin(self, seat: Seat) -> None:
        """Puts an episode into its row; the first of a table takes rows for all of it."""
        table = seat.table
        if not table.rows:
            table.rows = {x.episode.seat: self._free.pop(0) for x in table.seats}
            self._unbegun.remove(table)
        self._opened.remove(seat)
        seat.row = table.rows[seat.episode.seat]
        self._rows[seat.row] = seat
        assert seat.news is not None  # its prompt
        self.pool.begin(seat.row, seat.news)

    def _of(self, group: int) -> Iterable[Episode]:
        """A group's episodes, by seat and member."""
        for seat in range(self.width):
            for member in range(self.settings.group_size):
                yield self.episodes[group, member, seat]

    def _keys(self) -> Key[Array, " B"]:
        """The key of each row's sample; that of a row without an episode is never used."""
        places = [(0, 0, 0, 0) if x is None else (x.episode.turns, *x.place) for x in self._rows]
        turns, groups, members, seats = np.array(places).T
        return turn_keys(np.uint32(self.seed), self.step, turns, groups, drawn_as(seats, members))

    async def _leave(self) -> None:
        """Stops what still runs, and closes every environment that was opened."""
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)
        await asyncio.gather(*self._closing, *(seat.episode.close() for seat in self._live))


def _place(seat: Seat) -> Place:
    return seat.place
