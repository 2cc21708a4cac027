"""Sampling a batch of episodes side by side: the policy speaks in all of them, then all environments answer."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mintjax.policy import Policy
from mintjax.renderers import Renderer
from mintjax.renderers.tokenizer import adapt
from mintjax.train.environment import Environment, EnvironmentSession
from mintjax.train.hosted_episode import HostedEpisode
from mintjax.train.refill import GroupDone, refill
from mintjax.train.rollout_settings import Rollout, RolloutSettings
from mintjax.train.sampler import Sampler
from mintjax.train.seeds import environment_seed, turn_keys


def rollout(
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
    """Sample ``group_size`` episodes of every task: all side by side, or in ``settings.rows`` rows that refill.

    Rows that refill are :func:`mintjax.train.refill.refill`'s; what follows is about episodes side by side.

    Turn by turn, the new messages of all episodes are fed in one segment, the replies are decoded together, and all
    environments step at once. Rows stand in the order of group and member, and the key of a sample comes from seed, step,
    group, member and turn, so that neither the speed of an environment nor the groups beside it change a token.

    An episode ends with its environment's own word, or with ``"max_turns"``; with ``"overflow"`` where the model's context
    has no room for the next messages and one sampled token; with ``"error"`` where its environment raises or says what
    cannot be rendered. The other episodes go on, and the turns it has are kept.

    Args:
        policy: samples every token.
        renderer: the chat format.
        tokenizer: the policy's, as renderers take it.
        make: returns a new environment, once for each episode.
        tasks: what ``reset`` gets; each task makes a group.
        settings: how to sample.
        seed: of the run.
        step: of the run; another step draws other samples.
        first_group: the number of the first task's group, where others of the step are sampled apart from these.
        group_done: what :func:`mintjax.train.refill.refill` is to do with a group that has ended; with ``settings.rows``.
        between: called before every turn; what it raises ends the rollout.

    Returns:
        The episodes, by group and member, what they cost, and the cache that they left.

    Raises:
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
    renderer = replace(renderer, tokenizer=adapt(tokenizer))
    groups = settings.groups or len(tasks)
    if len(tasks) > groups:
        raise ValueError(f"tasks: expected at most {groups} (settings.groups), came {len(tasks)}.")
    rows = [
        HostedEpisode(EnvironmentSession(make()), task, group, member)
        for group, task in enumerate(tasks, first_group)
        for member in range(settings.group_size)
    ]
    places = np.divmod(np.arange(groups * settings.group_size), settings.group_size)
    idle = [()] * (places[0].size - len(rows))
    sampler = Sampler(policy, renderer, places[0].size, settings, fan=settings.group_size)
    try:
        await asyncio.gather(*(row.open(environment_seed(seed, step, row.group)) for row in rows))
        for turn in range(settings.max_turns):
            if between is not None:
                between()
            news = [row.render(renderer) for row in rows]
            for place, row in enumerate(rows):
                new = news[place]
                if new is not None and sampler.room(place, new) < 1:
                    row.stop_reason, news[place] = "overflow", None
            if not any(news):
                break
            turns = np.full_like(places[0], turn)
            keys = turn_keys(np.uint32(seed), step, turns, first_group + places[0], places[1])
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
