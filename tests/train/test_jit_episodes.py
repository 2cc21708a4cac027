"""Episodes inside jit are those of the host's loop: tokens, rewards, log probabilities, gradients."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from mintjax.cache import ContextOverflowError, take_rows
from mintjax.renderers import get_renderer
from mintjax.train.advantages import Advantages
from mintjax.train.batches import micro_batches
from mintjax.train.config import ConfigError, EnvironmentConfig
from mintjax.train.config_files import from_dict
from mintjax.train.environments import CountDownConfig, GridWalkConfig, GuessTheNumberConfig
from mintjax.train.gradients import gradients
from mintjax.train.jit_episodes import _play, episodes, pure_environment
from mintjax.train.loop import train
from mintjax.train.losses import Ppo
from mintjax.train.metrics import read_metrics, reproducible
from mintjax.train.plan import Plan
from mintjax.train.pure_environment import PureStep
from mintjax.train.rollout import RolloutSettings, rollout
from mintjax.train.text_table import TextTable, TextTableError, text_table
from mintjax.train.turn_keys import environment_seed
from tests.tiny import relative_difference
from tests.train.chain_policy import chain_parts

LOGPROBS = 1e-4
GRADIENTS = 1e-5  # of ‖g₁ - g₂‖ / ‖g₂‖, the worst leaf
SIZE = 512  # of a row, in every test, so that each plan is one program
# One capacity for all environments on the host: 512 for what a group begins with, and 512 for what follows.
SETTINGS = RolloutSettings(
    group_size=3, max_turns=3, max_tokens=8, groups=2, capacity=512, prompts=2
)
GAMES = {
    "count_down": CountDownConfig(numbers=(3, 4), turns=3, worked_example=3, grading="exact"),
    "guess_the_number": GuessTheNumberConfig(numbers=(1, 3), turns=3),
    "grid_walk": GridWalkConfig(size=2, turns=4),
}
KEYS = [(4, 1), (1, 2), (4, 2)]  # seed and step


@pytest.fixture(scope="module")
def parts():
    policy, tokenizer = chain_parts()
    return policy.replace(version=jnp.int32(5)), tokenizer, get_renderer("chatml", tokenizer)


@pytest.fixture(scope="module", params=GAMES)
def game(request, parts):
    """A configuration, its pure twin, and what both play by seed and step."""
    policy, tokenizer, renderer = parts
    config = GAMES[request.param]
    pure = config.pure(renderer)
    played = {}
    for seed, step in KEYS:
        tasks = config.tasks(step * SETTINGS.groups, SETTINGS.groups, seed)
        options = {"seed": seed, "step": step}
        hosted = rollout(policy, renderer, tokenizer, config.make, tasks, SETTINGS, **options)
        jitted = episodes(policy, renderer, pure, tasks, SETTINGS, **options)
        played[seed, step] = hosted, jitted
    return config, pure, played


def assert_same(got, want):
    """Everything that an episode says but for its log probabilities is equal, and those nearly."""
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert replace(a, turns=()) == replace(b, turns=())
        assert len(a.turns) == len(b.turns)
        for x, y in zip(a.turns, b.turns, strict=True):
            assert x.tokens.tolist() == y.tokens.tolist() and x.tokens.dtype == y.tokens.dtype
            assert x.sampled.tolist() == y.sampled.tolist()
            for name in (
                "messages",
                "reward",
                "metrics",
                "anchor",
                "decode_stop",
                "temperature",
                "parse_error",
            ):
                assert getattr(x, name) == getattr(y, name), name
            assert x.logprobs.dtype == y.logprobs.dtype == np.float32
            np.testing.assert_allclose(x.logprobs, y.logprobs, rtol=0, atol=LOGPROBS)


def test_the_episodes_are_those_of_the_host(game):
    _, _, played = game
    for hosted, jitted in played.values():
        assert_same(jitted.episodes, hosted.episodes)
        assert jitted.stats.sampled_tokens == hosted.stats.sampled_tokens
        fed = [
            stats.prefilled_tokens + stats.shared_tokens for stats in (hosted.stats, jitted.stats)
        ]
        assert fed[0] == fed[1] and jitted.stats.cache_growths == 0
        assert jitted.stats.cache_bytes == jitted.state.cache_bytes


def test_what_is_played_is_uneven(game):
    """What the other tests compare: rewards that differ, lengths that differ, and both ends of a reply."""
    config, _, played = game
    every = [episode for hosted, _ in played.values() for episode in hosted.episodes]
    turns = [turn for episode in every for turn in episode.turns]
    assert len({episode.reward for episode in every}) > 1
    assert len({len(episode.tokens) for episode in every}) > 2
    assert {turn.decode_stop for turn in turns} == {"stop", "length"}
    if not isinstance(config, CountDownConfig):
        assert len({len(episode.turns) for episode in every}) > 1


def test_what_a_run_may_change_compiles_nothing_and_plays_what_the_host_plays(parts, game):
    """Replies that no stop token ends, other temperatures, fewer groups than there may be, groups that come later."""
    policy, tokenizer, renderer = parts
    config, pure, played = game
    before = _play._cache_size()
    for changes in ({"max_tokens": 1}, {"temperature": 0.7}, {"temperature": 0.0}):
        settings = replace(SETTINGS, **changes)
        tasks = config.tasks(1, 1, 3)
        hosted = rollout(policy, renderer, tokenizer, config.make, tasks, settings, seed=3)
        jitted = episodes(policy, renderer, pure, tasks, settings, seed=3)
        assert_same(jitted.episodes, hosted.episodes)
        if changes == {"max_tokens": 1}:
            stops = {turn.decode_stop for one in jitted.episodes for turn in one.turns}
            assert "length" in stops
    seed, step = KEYS[0]
    tasks = config.tasks(step * SETTINGS.groups, SETTINGS.groups, seed)[1:]
    later = episodes(policy, renderer, pure, tasks, SETTINGS, seed=seed, step=step, first_group=1)
    assert_same(later.episodes, played[KEYS[0]][1].episodes[3:])
    assert not np.asarray(later.state.position)[3:].any(), "rows that fill up hold nothing"
    assert _play._cache_size() == before


def test_a_changed_table_is_seen(parts, game):
    policy, _, renderer = parts
    config, pure, played = game
    seed, step = KEYS[0]
    hosted, _ = played[KEYS[0]]
    texts = pure.texts
    changed = pure.replace(
        texts=texts.replace(answer_tokens=texts.answer_tokens.at[:, :, 4].add(1))
    )
    tasks = config.tasks(step * SETTINGS.groups, SETTINGS.groups, seed)
    jitted = episodes(policy, renderer, changed, tasks, SETTINGS, seed=seed, step=step)
    with pytest.raises(AssertionError):
        assert_same(jitted.episodes, hosted.episodes)


def test_the_gradients_are_those_of_the_host_by_every_plan(parts, game):
    """Each twin's own cache, and advantages that differ by turn."""
    config, _, played = game
    random = np.random.default_rng(0)
    values = tuple(
        random.standard_normal(len(episode.turns)) for episode in played[KEYS[0]][0].episodes
    )
    advantages = Advantages(values, tuple(value > -9 for value in values), {0: True, 1: True})
    # The other plans read tokens and log probabilities alone, which are compared above: one game is enough for them.
    plans = ["packed", "segments"] if isinstance(config, CountDownConfig) else []
    for plan in ["reverse_only", *plans]:
        found = []
        for rolled in played[KEYS[0]]:
            walked = plan == "reverse_only"
            (batch,) = micro_batches(
                rolled.episodes, advantages, rows=6, size=SIZE, together=3 if walked else None
            )
            state = take_rows(rolled.state, batch.episodes, fan=3) if walked else None
            found.append(gradients(parts[0], batch, Ppo(), Plan(plan, segment=64), state)[0])
        assert all(np.linalg.norm(leaf) > 0 for leaf in jax.tree.leaves(found[0]))
        assert relative_difference(found[1], found[0]) < GRADIENTS, plan


class Chance(struct.PyTreeNode):
    """Pays what it draws; its tasks are how it breaks its contract: not, by its reward, its answer, its promised turns."""

    texts: TextTable
    turns: int = struct.field(pytree_node=False, default=2)
    stop_reasons: tuple[str, ...] = struct.field(pytree_node=False, default=("over",))
    anchors: tuple[str, ...] = struct.field(pytree_node=False, default=())

    def init(self, key, task):
        row = jnp.where(task < 4, 0, task)
        return (key, task, jnp.int32(0)), self.texts.opening(row)

    def step(self, state, ids, length):
        key, task, turn = state
        drawn = jax.random.uniform(key) + turn
        return PureStep(
            (key, task, turn + 1),
            self.texts.after(jnp.where(task == 2, 1, 0), ids, length),
            jnp.where(task == 1, jnp.inf, drawn),
            (turn == 1) & (task != 3),
            jnp.int32(0),
        )


def test_chance_is_the_groups_and_faults_cost_their_own_episode(parts):
    policy, _, renderer = parts
    say = [[{"role": "user", "content": "Hello"}]]
    chance = Chance(text_table(renderer, say, say))
    settings = replace(SETTINGS, group_size=2, groups=5)
    played = episodes(policy, renderer, chance, [0, 1, 2, 3, 9], settings, seed=4, step=6).episodes
    expected = {
        0: ("over", 2, None),
        1: ("error", 1, "reward: expected a finite number, or nan where a turn has none; came inf"),
        2: ("error", 1, "news: it goes on with what is no row of texts.answers"),
        3: ("error", 2, "turns: it goes on after 2, the most that it promises"),
        4: ("error", 0, "init: its opening is no row of texts.openings"),
    }
    assert [episode.group for episode in played] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    for episode in played:
        reason, turns, fault = expected[episode.group]
        assert (episode.stop_reason, len(episode.turns)) == (reason, turns)
        assert (episode.error is None) == (fault is None)
        if fault:
            assert episode.error.startswith(f"EnvironmentContractError: {fault}")
        drawn = float(jax.random.uniform(jax.random.key(environment_seed(4, 6, episode.group))))
        rewards = [None] if episode.group == 1 else [drawn, np.float32(drawn) + np.float32(1)]
        assert [turn.reward for turn in episode.turns] == rewards[:turns]


def config_of(**changes):
    return from_dict({"name": "x", "renderer": "chatml", **changes})


def test_what_cannot_run_inside_jit_is_refused_with_the_cure(parts):
    policy, tokenizer, renderer = parts
    inside = {"where": "jit", "max_tokens": 8}
    game = {"type": "guess_the_number", "numbers": [1, 3]}
    assert pure_environment(config_of(environment=game), policy.config, renderer) is None
    config = config_of(environment=game, rollout=inside)
    made = pure_environment(config, policy.config, renderer)
    assert made is not None and made.turns == 4
    small = replace(policy.config, context=200)
    with pytest.raises(
        ContextOverflowError, match=r"has at most 200 tokens .* Lower rollout\.max_t"
    ):
        pure_environment(config, small, renderer)
    for rule in ({"max_episode_tokens": 200}, {"episode_timeout": 9.0}, {"parse_errors": "end"}):
        refused = config_of(environment=game, rollout=inside | rule)
        (name,) = rule
        with pytest.raises(ValueError, match=rf"rollout\.{name}.* play on the host"):
            pure_environment(refused, policy.config, renderer)
    with pytest.raises(TextTableError, match="'role_colon' ends a reply with the text"):
        pure_environment(config, policy.config, get_renderer("role_colon", tokenizer))
    plain = config_of(environment={"type": "count_down"}, rollout=inside)
    with pytest.raises(ConfigError, match=r"environment\.grading: expected exact"):
        pure_environment(plain, policy.config, renderer)
    with pytest.raises(ConfigError, match=r"rollout\.where: expected 'host', since HostOnly"):
        pure_environment(replace(plain, environment=HostOnly()), policy.config, renderer)
    for tasks, fault in (([], "came 0"), ([1, 2, 3], "came 3"), (["a"], "an int each")):
        with pytest.raises(ValueError, match=f"tasks: expected .*{fault}"):
            episodes(policy, renderer, made, tasks, SETTINGS, seed=0)


class HostOnly(EnvironmentConfig):
    """Has no functions over arrays."""

    def make(self):
        return None

    def tasks(self, position, count, seed):
        return []


def test_a_run_is_the_same_in_both_and_compiles_once(parts, tmp_path):
    policy, tokenizer, _ = parts
    rows, before = {}, _play._cache_size()
    for where in ("host", "jit"):
        config = config_of(
            root=str(tmp_path), steps=2, checkpoint={"every": 2},
            environment={"type": "guess_the_number", "numbers": [1, 3], "turns": 3},
            rollout={
                "where": where, "groups": 3, "groups_in_flight": 2, "group_size": 3, "max_turns": 3,
                "max_tokens": 8, "capacity": 512,
            },
            gradients={"plan": "reverse_only", "segment": 64, "rows": 6},
            advantage={"type": "group_mean"},
            optimizer={"learning_rate": 1e-2},
            evaluation={"at_start": False, "at_end": False},
        )  # fmt: skip
        train(replace(config, name=where), policy, tokenizer)
        rows[where] = read_metrics(tmp_path / where / "metrics.jsonl")
    assert _play._cache_size() == before, "the program of the tests above"
    assert rows["jit"][1]["perf/compiles"] == 0
    assert sum(row["update/skipped"] for row in rows["jit"]) == 0
    for hosted, jitted in zip(rows["host"], rows["jit"], strict=True):
        assert hosted.keys() == jitted.keys()
        for name, value in reproducible(hosted).items():
            if not name.startswith(("rollout/", "plan/", "gradients/")):
                assert jitted[name] == pytest.approx(value, rel=LOGPROBS, abs=LOGPROBS), name
