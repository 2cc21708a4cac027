"""What a jitted batch of episodes did, from arrays to the episodes that everything else takes."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool

from mintjax.decoding import Sample
from mintjax.renderers import Renderer
from mintjax.train.pure_environment import PureEnvironment, PureStep
from mintjax.train.rollout import RolloutSettings
from mintjax.train.text_table import News, messages_of
from mintjax.train.turn_record import record_turn
from mintjax.types import Episode, Turn


class TurnRecord(NamedTuple):
    """One turn of B rows.

    Attributes:
        live: rows that took part.
        news: what the environment said before it; nothing in the first turn, which the opening stands before.
        sample: what the policy said.
        step: what came of that, without the environment's state and news.
    """

    live: Bool[Array, " B"]
    news: News
    sample: Sample
    step: PureStep


class Played(NamedTuple):
    """All turns of B rows.

    Attributes:
        opening: of each row.
        turns: with an axis of turns before that of rows.
    """

    opening: News
    turns: TurnRecord


def record_episodes(
    played: Played,
    environment: PureEnvironment,
    renderer: Renderer,
    rows: int,
    settings: RolloutSettings,
    first_group: int,
    version: int,
) -> list[Episode]:
    """The episodes of the first rows, as the host's loop records them.

    Args:
        played: numpy's arrays.
        environment: for the names of what it says in numbers.
        renderer: reads replies.
        rows: how many episodes there are; rows after them fill the batch up.
        settings: they were sampled with.
        first_group: number of the first group.
        version: of the policy.

    Returns:
        One episode a row. One whose environment broke its contract ends with ``"error"``, and no other with it.

    Example:
        >>> episodes = record_episodes(jax.device_get(played), environment, renderer, 8, settings, 0, 0)
    """
    return [
        _episode(
            played,
            environment,
            renderer,
            row,
            settings,
            first_group + row // settings.group_size,
            version,
        )
        for row in range(rows)
    ]


def _episode(
    played: Played,
    environment: PureEnvironment,
    renderer: Renderer,
    row: int,
    settings: RolloutSettings,
    group: int,
    version: int,
) -> Episode:
    """One row's turns, and why they ended."""
    turns: list[Turn] = []
    stop, fault = None, ""
    live = played.turns.live[:, row]
    if not live[0]:
        fault = "init: its opening is no row of texts.openings; its tasks are numbered otherwise."
    for number in np.flatnonzero(live).tolist():
        step = _at(played.turns.step, number, row)
        if math.isinf(step.reward):
            fault = f"reward: expected a finite number, or nan where a turn has none; came {step.reward}."
            step = step._replace(reward=math.nan)
        elif step.done:
            stop = environment.stop_reasons[int(step.stop)]
        elif number + 1 < len(live) and not live[number + 1]:
            fault = "news: it goes on with what is no row of texts.answers; end the episode, or add the row."
        turns.append(_turn(played, environment, renderer, row, number, step, settings.temperature))
    if not (stop or fault) and len(turns) < settings.max_turns:
        fault = f"turns: it goes on after {environment.turns}, the most that it promises; raise that, or end there."
    member = row % settings.group_size
    reason = "error" if fault else stop or "max_turns"
    error = f"EnvironmentContractError: {fault}" if fault else None
    return Episode(tuple(turns), group, member, reason, error, version)


def _turn(
    played: Played,
    environment: PureEnvironment,
    renderer: Renderer,
    row: int,
    number: int,
    step: PureStep,
    temperature: float,
) -> Turn:
    """One turn of a row, its step's figures given as scalars."""
    texts = environment.texts
    if number == 0:
        news, said = _at(played.opening, row), texts.openings
    else:
        news, said = _at(played.turns.news, number, row), texts.answers
    sample = _at(played.turns.sample, number, row)
    put, ids = news.tokens[: news.length], sample.tokens[: sample.length]
    turn = record_turn(
        put,
        ids,
        sample.logprobs[: sample.length].astype(np.float32),
        messages=tuple(messages_of(said[int(news.row)])),
        parsed=renderer.parse(ids),
        temperature=temperature,
        decode_stop="stop" if sample.stopped else "length",
    )
    anchor = int(step.anchor)
    return replace(
        turn,
        reward=None if math.isnan(step.reward) else float(step.reward),
        metrics={n: float(x) for n, x in step.metrics.items() if not math.isnan(x)},
        anchor=None if anchor < 0 else environment.anchors[anchor],
    )


def _at(tree: Any, *place: int) -> Any:
    """One place of all arrays of a tree."""
    return jax.tree.map(lambda x: x[place], tree)
