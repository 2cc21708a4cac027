"""Sampling a batch of episodes side by side: the policy speaks in all of them, then all environments answer."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mintjax.policy import Policy
from mintjax.renderers import AnyRenderer
from mintjax.renderers.registry import with_tokenizer
from mintjax.train.hosted_episode import HostedEpisode
from mintjax.train.recognition import Maker
from mintjax.train.refill import refill
from mintjax.train.rollout_settings import Rollout, RolloutSettings
from mintjax.train.sampler import Sampler
from mintjax.train.scheduler import GroupDone
from mintjax.train.turn_keys import drawn_as, environment_seed, turn_keys


def rollout(
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
    """`collect` for callers that are not asynchronous themselves; the arguments and results are the same.

    Raises:
        RuntimeError: where an event loop is running already.

    Example:
        >>> settings = RolloutSettings(group_size=4, max_tokens=32, max_turns=3)
        >>> episodes, stats, state = rollout(policy, renderer, tokenizer, CountDown, [5, 7], settings, seed=0)
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(
            collect(
                policy, renderer, tokenizer, make, tasks, settings,
                seed=seed, step=step, first_group=first_group,
                group_done=group_done, between=between,
            )
        )  # fmt: skip
    raise RuntimeError("rollout: an event loop is running here; await collect(...) instead.")


async def collect(
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
    """Sample ``group_size`` episodes of every task: all side by side, or in ``settings.rows`` rows that refill.

    Rows that refill are :func:`mintjax.train.refill.refill`'s; what follows is about episodes side by side.

    Turn by turn, the new messages of all episodes are fed in one segment, the replies are decoded together, and all
    environments step at once. Rows stand in the order of group, seat and member, and the key of a sample comes from seed,
    step, group, seat, member and the episode's own turn, so that neither the speed of an environment nor the groups beside
    it change a token. A seat of a game that is not to move idles.

    An episode ends with its environment's own word, or with the name of the limit that it reached, as ``"max_turns"``; with
    ``"overflow"`` where the model's context has no room for the next messages and one sampled token; with ``"error"`` where
    its environment raises or says what cannot be rendered. The other episodes go on, and the turns it has are kept.

    Args:
        policy: samples every token.
        renderer: the chat format.
        tokenizer: the policy's, as renderers take it.
        make: an environment class, or whatever else :class:`mintjax.train.recognition.Maker` takes.
        tasks: what ``reset`` gets; each task makes a group.
        settings: how to sample.
        seed: of the run.
        step: of the run; another step draws other samples.
        first_group: the number of the first task's group, where others of the step are sampled apart from these.
        group_done: what :func:`mintjax.train.refill.refill` is to do with a group that has ended; with ``settings.rows``.
        between: called before every turn; what it raises ends the rollout.

    Returns:
        The episodes, by group, seat and member, what they cost, and the cache that they left.

    Raises:
        EnvironmentContractError: where ``make`` is nothing that makes an environment.
        ValueError: where there are more tasks than ``settings.groups``, or ``group_done`` comes without rows that refill.

    Example:
        >>> episodes, *_ = await collect(policy, renderer, tokenizer, CountDown, [5, 7], settings, seed=0)
        >>> [(episode.group, episode.member) for episode in episodes]
        [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    if settings.rows:
        return await refill(
            policy, renderer, tokenizer, make, tasks, settings,
            seed=seed, step=step, first_group=first_group, group_done=group_done, between=between,
        )  # fmt: skip
    if group_done is not None:
        raise ValueError(
            "group_done: expected None without settings.rows; the state that is returned has all groups."
        )
    renderer = with_tokenizer(renderer, tokenizer)
    groups = settings.groups or len(tasks)
    if len(tasks) > groups:
        raise ValueError(f"tasks: expected at most {groups} (settings.groups), came {len(tasks)}.")
    make = make if isinstance(make, Maker) else Maker(make)
    rows = _seated(make, tasks, settings, first_group)
    seats = max((row.seat + 1 for row in rows), default=1)
    size = settings.group_size
    groups_of, seat_of, member_of = np.unravel_index(
        np.arange(groups * seats * size), (groups, seats, size)
    )
    members = drawn_as(seat_of, member_of)
    idle = [()] * (groups_of.size - len(rows))
    sampler = Sampler(policy, renderer, groups_of.size, settings, fan=size)
    try:
        await asyncio.gather(*(row.open(environment_seed(seed, step, row.group)) for row in rows))
        while True:
            if between is not None:
                between()
            news = [row.render(renderer) for row in rows]
            for place, row in enumerate(rows):
                new = news[place]
                if new is not None and sampler.room(place, new) < 1:
                    row.stop_reason, news[place] = "overflow", None
            # Seats that wait for an episode that has ended learn of it, and have something to say the next time.
            ended = [row for row in rows if row.stop_reason is not None and not row.closed]
            await asyncio.gather(*(row.close() for row in ended))
            if not any(news) and not ended:
                break
            if not any(news):
                continue
            turns = np.array([row.turns for row in rows] + [0] * len(idle))
            keys = turn_keys(np.uint32(seed), step, turns, first_group + groups_of, members)
            fed = [() if new is None else new for new in news]
            replies = sampler.turn([*fed, *idle], keys)[: len(rows)]
            await asyncio.gather(
                *(
                    row.answer(new, reply, renderer, settings.temperature)
                    for row, new, reply in zip(rows, news, replies, strict=True)
                    if new is not None and reply is not None
                )
            )
    finally:
        await asyncio.gather(*(row.close() for row in rows))
    version = int(policy.version)
    return Rollout([row.record(version) for row in rows], sampler.stats, sampler.state)


def _seated(
    make: Maker, tasks: Sequence[Any], settings: RolloutSettings, first_group: int
) -> list[HostedEpisode]:
    """All episodes, by group, seat and member; the seats of one member play one game."""
    rows = []
    made = [[make.sessions() for _ in range(settings.group_size)] for _ in tasks]
    seats = max((len(sessions) for group in made for sessions in group), default=1)
    for group, (task, members) in enumerate(zip(tasks, made, strict=True), first_group):
        # One that cannot be made has a single session; it fails for all seats that the others have.
        full = [sessions * (seats // len(sessions)) for sessions in members]
        rows += [
            HostedEpisode(sessions[seat], task, group, member, settings, seat)
            for seat in range(seats)
            for member, sessions in enumerate(full)
        ]
    return rows
