"""Episodes inside jit are those of the host's loop: tokens, rewards, log probabilities, gradients."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.cache import take_rows
from mintjax.renderers import get_renderer
from mintjax.train.advantages import Advantages
from mintjax.train.batches import micro_batches
from mintjax.train.environments import CountDownConfig, GridWalkConfig, GuessTheNumberConfig
from mintjax.train.gradients import gradients
from mintjax.train.jit_episodes import episodes
from mintjax.train.losses import Ppo
from mintjax.train.plan import Plan
from mintjax.train.rollout import RolloutSettings, rollout
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
KEYS = [(0, 1), (0, 2), (7, 1)]  # seed and step


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
        tasks = config.tasks(step, SETTINGS.groups, seed)
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
            for name in ("messages", "reward", "metrics", "anchor", "decode_stop", "temperature"):
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


@pytest.mark.parametrize("plan", ["packed", "segments", "reverse_only"])
def test_the_gradients_are_those_of_the_host_by_every_plan(parts, game, plan):
    """Each twin's own cache, and advantages that differ by turn."""
    hosted, jitted = game[2][KEYS[0]]
    random = np.random.default_rng(0)
    values = tuple(random.standard_normal(len(episode.turns)) for episode in hosted.episodes)
    advantages = Advantages(values, tuple(value > -9 for value in values), {0: True, 1: True})
    found = []
    for played in (hosted, jitted):
        laid_out = partial(micro_batches, played.episodes, advantages, rows=6, size=SIZE)
        (batch,) = laid_out(together=3) if plan == "reverse_only" else laid_out()
        state = played.state if plan == "reverse_only" else None
        if state is not None:
            state = take_rows(state, batch.episodes, fan=3)
        found.append(gradients(parts[0], batch, Ppo(), Plan(plan, segment=64), state)[0])
    assert all(np.linalg.norm(leaf) > 0 for leaf in jax.tree.leaves(found[0]))
    assert relative_difference(found[1], found[0]) < GRADIENTS
