"""Whole episodes inside one jitted program: the policy and a pure environment speak in turn, for a batch of groups.

One `lax.scan` over turns holds the sampler's loop and the environment's step. A group's opening is run once and shared by
its episodes. Rows whose episode is over do not move, and turns in which all are over skip what costs anything.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int

from mintjax.cache import (
    ContextOverflowError,
    State,
    bucket,
    check_overflow,
    fork,
    init_state,
    row_capacity,
)
from mintjax.decoding import DecodeParams, decode, padded_stops
from mintjax.extension import extend
from mintjax.models.config import ModelConfig
from mintjax.policy import Policy
from mintjax.renderers import AnyRenderer, Renderer
from mintjax.train.config import ConfigError, TrainConfig
from mintjax.train.config_rollout import RolloutConfig, longest_conversation
from mintjax.train.episode_rules import EpisodeRules
from mintjax.train.pure_environment import PureEnvironment
from mintjax.train.pure_record import Played, TurnRecord, record_episodes
from mintjax.train.rollout_settings import Rollout, RolloutSettings
from mintjax.train.rollout_stats import RolloutStats
from mintjax.train.text_table import News
from mintjax.train.turn_keys import environment_seed, turn_keys
from mintjax.types import Segment


class _Carry(NamedTuple):
    """What one turn hands to the next; the prefix of the state stays outside, since it does not change."""

    state: State
    worlds: Any
    news: News
    live: Bool[Array, " B"]


class _Chance(NamedTuple):
    """What the samples are drawn from, for G groups of which some may be there to fill up."""

    seed: Int[ArrayLike, ""]
    step: Int[ArrayLike, ""]
    groups: Int[ArrayLike, " G"]
    environment_seeds: Int[ArrayLike, " G"]
    real: Bool[ArrayLike, " G"]


def pure_environment(
    config: TrainConfig, model: ModelConfig, renderer: AnyRenderer
) -> PureEnvironment | None:
    """The environment of a run whose episodes run inside jit; None where they run on the host.

    Args:
        config: the run.
        model: for its context.
        renderer: bound to the policy's tokenizer.

    Returns:
        The environment, its texts rendered and checked.

    Raises:
        ConfigError: where the environment has no pure twin, or a rule needs the host.
        TextTableError: where the renderer's replies end with a text.
        ContextOverflowError: where the longest episode that there can be does not fit the model's context.

    Example:
        >>> environment = pure_environment(config, policy.config, renderer)
    """
    if config.rollout.where == "host":
        return None
    if not isinstance(renderer, Renderer):
        raise ConfigError(
            f"renderer: expected a chat format of mintjax's own with rollout.where=jit, got {renderer.name!r}, whose template "
            f"has to write the whole conversation every turn; take rollout.where=host"
        )
    environment = config.environment.pure(renderer)
    kind = type(config.environment)
    if environment is None:
        raise ConfigError(
            f"rollout.where: expected 'host', since {kind.__name__} has no twin of functions over arrays, got 'jit'; "
            f"write one and return it from {kind.__name__}.pure, or play on the host"
        )
    _own_capacity(model, environment, config.rollout)  # refuses what does not fit
    return environment


def episodes(
    policy: Policy,
    renderer: Renderer,
    environment: PureEnvironment,
    tasks: Sequence[Any],
    settings: RolloutSettings,
    *,
    seed: int,
    step: int = 0,
    first_group: int = 0,
) -> Rollout:
    """Samples ``group_size`` episodes of every task in one program: the twin of `mintjax.train.rollout.rollout`.

    The episodes are those that the host's loop plays with a host environment that says and pays the same, token for token.
    Their cache has room for the longest that there can be, so ``settings.capacity`` is not needed. What a program is
    compiled for: the policy's and the environment's shapes, groups, group size, turns, and the bucket of the cache.

    Args:
        policy: samples every token.
        renderer: bound to the policy's tokenizer; the environment's texts are of it.
        environment: pure functions over arrays.
        tasks: one int a group, or as many ints for each.
        settings: how to sample.
        seed: of the run.
        step: of the run; another step draws other samples.
        first_group: the number of the first task's group.

    Returns:
        The episodes, by group and member, what they cost, and the cache that they left.

    Raises:
        ValueError: where there are no tasks, more than ``settings.groups``, or some that are no ints.
        ConfigError: where a rule of the settings needs the host.
        ContextOverflowError: where the longest episode that there can be does not fit.

    Example:
        >>> environment = GuessTheNumberConfig().pure(renderer)
        >>> played = episodes(policy, renderer, environment, [5, 7], settings, seed=0)
        >>> [(episode.group, episode.member) for episode in played.episodes]
        [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    groups = settings.groups or len(tasks)
    if not 0 < len(tasks) <= groups:
        raise ValueError(f"tasks: expected 1 to {groups} (settings.groups), came {len(tasks)}.")
    given = np.asarray(tasks)
    if given.dtype.kind not in "iu":
        raise ValueError(
            f"tasks: expected an int each, or as many for each, came {tasks[0]!r}. Number what they stand for."
        )
    turns = min(settings.max_turns, environment.turns)
    capacity = _own_capacity(policy.config, environment, settings)
    numbers = first_group + np.arange(groups)
    chance = _Chance(
        seed=np.uint32(seed),
        step=np.int32(step),
        groups=numbers.astype(np.int32),
        environment_seeds=np.array(
            [environment_seed(seed, step, int(group)) for group in numbers], np.uint32
        ),
        real=np.arange(groups) < len(tasks),
    )
    sampling = DecodeParams(
        temperature=np.float32(settings.temperature),
        top_k=np.int32(settings.top_k),
        top_p=np.float32(settings.top_p),
        stop_tokens=padded_stops(renderer.stop_tokens()),
        max_tokens=np.full(groups * settings.group_size, settings.max_tokens, np.int32),
    )
    filled = np.concatenate([given, np.repeat(given[:1], groups - len(given), 0)]).astype(np.int32)
    played, state = _play(
        policy, environment, filled, chance, sampling,
        fan=settings.group_size, turns=turns, capacity=capacity,
    )  # fmt: skip
    check_overflow(policy.config, state)
    played = jax.device_get(played)
    rows = len(tasks) * settings.group_size
    recorded = record_episodes(
        played, environment, renderer, rows, settings, first_group, int(policy.version)
    )
    # Each group's opening is run once.
    fed = int(played.opening.length[:: settings.group_size].sum())
    steps = np.asarray(played.turns.sample.length).max(1)  # of the decoder, in each turn
    stats = RolloutStats(
        prefilled_tokens=fed + int(played.turns.news.length.sum()),
        shared_tokens=int(played.opening.length.sum()) - fed,
        sampled_tokens=int(played.turns.sample.length.sum()),
        cache_growths=0,
        capacity=row_capacity(state),
        cache_bytes=state.cache_bytes,
        row_steps=int(steps.sum()) * state.length.size,
        decode_calls=int((steps > 0).sum()),
    )
    return Rollout(recorded, stats, state)


def _own_capacity(
    config: ModelConfig, environment: PureEnvironment, rules: EpisodeRules | RolloutConfig
) -> int:
    """Room for what can follow an opening, of which the last answer is not fed; rules that cannot hold are refused."""
    for name, wanted in (("episode_timeout", None), ("parse_errors", "pass")):
        if (came := getattr(rules, name)) != wanted:
            raise ConfigError(
                f"rollout.{name}: expected {wanted!r} inside jit, where there is no clock and nobody reads tool calls, got "
                f"{came!r}; leave it out, or play on the host (rollout.where=host)"
            )
    texts, turns = environment.texts, min(rules.max_turns, environment.turns)
    opening, answer = int(texts.opening_lengths.max()), int(texts.answer_lengths.max())
    own = turns * rules.max_tokens + (turns - 1) * answer
    most = longest_conversation(config.context, rules.max_episode_tokens)
    if opening + own > most:
        raise ContextOverflowError(
            f"an episode has at most {most} tokens (the context of {config.name}, or rollout.max_episode_tokens), and may "
            f"take {opening + own}: an opening of {opening}, then {turns} replies of {rules.max_tokens} (max_tokens) and "
            f"{turns - 1} answers of {answer}. Lower rollout.max_tokens or rollout.max_turns, or play on the host "
            f"(rollout.where=host), where an episode that fills its room ends by itself"
        )
    return bucket(own)


@partial(jax.jit, static_argnames=("fan", "turns", "capacity"))
def _play(
    policy: Policy,
    environment: PureEnvironment,
    tasks: Int[Array, "G ..."],
    chance: _Chance,
    sampling: DecodeParams,
    *,
    fan: int,
    turns: int,
    capacity: int,
) -> tuple[Played, State]:
    """Plays all turns of all rows, and returns what happened and the cache."""
    keys = jax.vmap(jax.random.key)(jnp.asarray(chance.environment_seeds))
    worlds, opening = jax.vmap(environment.init)(keys, tasks)
    opening = opening._replace(length=jnp.where(chance.real, opening.length, 0))
    empty = init_state(policy, len(tasks), bucket(opening.tokens.shape[1]))
    prefix = extend(policy, Segment(opening.tokens, opening.length), empty)
    group = jnp.repeat(jnp.arange(len(tasks)), fan)
    members = jnp.arange(group.size) % fan
    groups = jnp.asarray(chance.groups)[group]

    def turn(carry: _Carry, number: Array) -> tuple[_Carry, TurnRecord]:
        state, worlds, news, live = carry
        # Nothing is fed in the first turn, nor once all episodes are over.
        state = lax.cond((news.length > 0).any(), partial(hear, news), lambda state: state, state)
        turns = jnp.full(group.shape, number)
        keys = turn_keys(chance.seed, chance.step, turns, groups, members)
        params = sampling._replace(max_tokens=jnp.where(live, sampling.max_tokens, 0))
        # Room for any reply: the program is then the same for every max_tokens.
        sample, state = decode(policy, state.replace(prefix=prefix), keys, params, buffer=capacity)
        step = jax.vmap(environment.step)(worlds, sample.tokens, sample.length)
        # An infinite reward, and nothing said to go on with, are faults that end the episode; the record says so.
        goes_on = live & ~step.done & ~jnp.isinf(step.reward) & (step.news.length > 0)
        worlds = jax.tree.map(partial(_where, goes_on), step.state, worlds)
        answer = step.news._replace(length=jnp.where(goes_on, step.news.length, 0))
        record = TurnRecord(live, news, sample, step._replace(state=(), news=()))
        return _Carry(state.replace(prefix=None), worlds, answer, goes_on), record

    def hear(news: News, state: State) -> State:
        segment = Segment(news.tokens, news.length)
        return extend(policy, segment, state.replace(prefix=prefix)).replace(prefix=None)

    size = environment.texts.answer_tokens.shape[-1]
    nothing = jnp.zeros(group.size, jnp.int32)
    start = _Carry(
        state=fork(prefix, fan, capacity).replace(prefix=None),
        worlds=jax.tree.map(lambda x: x[group], worlds),
        news=News(jnp.zeros((group.size, size), jnp.int32), nothing, nothing),
        live=opening.length[group] > 0,
    )
    end, records = lax.scan(turn, start, jnp.arange(turns))
    opening = jax.tree.map(lambda x: x[group], opening)
    return Played(opening, records), end.state.replace(prefix=prefix)


def _where(live: Bool[Array, " B"], new: Array, old: Array) -> Array:
    """New values in the rows that go on."""
    return jnp.where(live.reshape(-1, *[1] * (new.ndim - 1)), new, old)
