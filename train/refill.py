"""Sampling many episodes in few rows: a row whose episode ends takes the next one, and no row waits for another's environment."""

from collections.abc import Callable, Sequence
from typing import Any

from mintjax.policy import Policy
from mintjax.renderers import AnyRenderer
from mintjax.renderers.registry import with_tokenizer
from mintjax.train.environment import EnvironmentContractError, EnvironmentSession
from mintjax.train.recognition import Maker
from mintjax.train.rollout_settings import Rollout, RolloutSettings
from mintjax.train.row_pool import RowPool
from mintjax.train.scheduler import GroupDone, Scheduler, Table


async def refill(
    policy: Policy,
    renderer: AnyRenderer,
    tokenizer: Any,
    make: Maker | Callable[..., Any],
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

    Episodes begin in the order of group and member, the seats of a game together. Their tokens are those that
    `mintjax.train.rollout.collect` samples side by side, and they end for the same reasons: the key of a sample comes from
    seed, step, group, seat, member and turn.

    An environment that is slow, or never answers, holds up its own row.

    Args:
        policy: samples every token.
        renderer: the chat format.
        tokenizer: the policy's, as renderers take it.
        make: an environment class, or whatever else :class:`mintjax.train.recognition.Maker` takes. Environments are made
            when their episodes are about to begin, those of the first group before.
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
        The episodes, by group, seat and member, and what they cost; no state, for the rows have been used again.

    Raises:
        EnvironmentContractError: where ``make`` is nothing that makes an environment, or games differ in their seats.
        ValueError: where there are no rows to sample in, fewer than a game has seats, or fewer rows and slots than
            ``group_done`` needs.

    Example:
        >>> settings = RolloutSettings(group_size=4, max_tokens=32, max_turns=3, rows=8)
        >>> episodes, *_ = await refill(policy, renderer, tokenizer, CountDown, range(3, 10), settings, seed=0)
    """
    if settings.rows < 1:
        raise ValueError(f"rows: expected at least 1, came {settings.rows}.")
    renderer = with_tokenizer(renderer, tokenizer)
    tables = [
        Table(group, member, task)
        for group, task in enumerate(tasks, first_group)
        for member in range(settings.group_size)
    ]
    sessions = _Sessions(make if isinstance(make, Maker) else Maker(make), settings.group_size)
    _check_places(settings, sessions.width, group_done)
    pool = RowPool(policy, renderer, settings.rows, settings, prefixes=settings.prefixes)
    scheduler = Scheduler(
        pool, renderer, sessions.take, settings, seed, step, int(policy.version), tables[::-1],
        sessions.width, group_done,
    )  # fmt: skip
    await scheduler.run(between or (lambda: None))
    episodes = [
        scheduler.episodes[table.group, table.member, seat]
        for first in range(0, len(tables), settings.group_size)
        for seat in range(sessions.width)
        for table in tables[first : first + settings.group_size]
    ]
    return Rollout(episodes, scheduler.stats, None)


class _Sessions:
    """Environments for one table after the other, one for each of its seats; a group's are made at once, to count them."""

    def __init__(self, make: Maker, group_size: int) -> None:
        self._make = make
        self._made = [make.sessions() for _ in range(group_size)]
        self.width = max(map(len, self._made))

    def take(self) -> list[EnvironmentSession]:
        made = self._made.pop(0) if self._made else self._make.sessions()
        if self.width % len(made):
            raise EnvironmentContractError(
                f"environment: expected games of {self.width} seats, as in the first group, came one of {len(made)}. Give "
                "all games of a run as many seats."
            )
        # One that cannot be made has a single session; it fails for all seats that the others have.
        return made * (self.width // len(made))


def _check_places(settings: RolloutSettings, width: int, group_done: GroupDone | None) -> None:
    """Refuses too few rows for a game, and too few rows and slots for a group whose caches are needed."""
    if settings.rows < width:
        raise ValueError(
            f"rows: a game has {width} seats, which need a row each; expected at least {width}, came {settings.rows}."
        )
    group = settings.group_size * width
    if group_done is not None and settings.rows + settings.kept_slots < group:
        raise ValueError(
            f"slots: {settings.rows} rows and {settings.kept_slots} slots cannot hold a group of {group}, whose gradient "
            "needs all of its caches; expected more rows or slots."
        )
