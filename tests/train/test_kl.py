"""KL penalties against their formulas, hand-worked batches and finite differences, whatever the plan or the cut."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.cache import init_state
from mintjax.extension import extend
from mintjax.train.accumulate import Accumulation
from mintjax.train.advantages import Advantages
from mintjax.train.batches import Batch, micro_batches
from mintjax.train.config import ConfigError
from mintjax.train.config_references import KlConfig, TeacherConfig
from mintjax.train.distillation import graded, taught
from mintjax.train.gradients import gradients
from mintjax.train.kl import kl_metrics, penalised
from mintjax.train.kl_loss import WithKl
from mintjax.train.learner import learn, optimizer
from mintjax.train.losses import ImportanceSampling
from mintjax.train.optimizer import init_train_state
from mintjax.train.plan import Plan
from mintjax.train.reference import reference_logprobs
from mintjax.types import Segment
from tests.naive import naive_logprobs
from tests.tiny import CONFIG, random_batch, relative_difference, tiny_policy
from tests.train.tiny_run import tiny_config

SLOPE_TOLERANCE = 1e-6  # relative, of a central difference in float64
STEP = 1e-5
HAND = 1e-6  # of numbers worked out by hand, in float32
ONE_LAYER = replace(CONFIG, num_layers=1)
CUT = 1e-5  # relative, of float32 gradients by another plan


def compared(policy, batch, plan=Plan()):
    """A batch with its reference, and shares that differ from token to token."""
    shares = np.random.default_rng(3).random(batch.mask.shape) * batch.mask
    return batch._replace(
        reference=reference_logprobs(policy.base_only(), batch, plan),
        shares=shares.astype(batch.mask.dtype),
    )


@pytest.mark.parametrize("kind", ["packed", "segments", "reverse_only"])
def test_reference_is_the_base_model_alone(kind):
    policy, batch = tiny_policy(), random_batch([40, 33], 40)
    found = reference_logprobs(policy.base_only(), batch, Plan(kind, segment=24))
    for row, length in enumerate(batch.length):
        tokens = batch.tokens[row, :length]
        want = naive_logprobs(policy.base_only(), tokens, float(batch.temperature))
        trained = batch.mask[row, 1:length] > 0
        np.testing.assert_allclose(found[row, 1:length][trained], want[trained], atol=2e-5)
    assert (found[batch.mask == 0] == 0).all()


@pytest.mark.parametrize(
    ("estimator", "plan"),
    [("k2", Plan()), ("k3", Plan("segments", segment=24))],
    ids=["k2, packed", "k3, segments"],
)
def test_gradient_of_a_kl_loss_is_the_slope_of_its_formula(estimator, plan):
    with jax.enable_x64(True):
        policy = tiny_policy(np.float64, config=ONE_LAYER)
        batch = random_batch([40, 33], 40, dtype=np.float64)
        batch = compared(policy, batch)
        loss = WithKl(ImportanceSampling(), 0.3, estimator)
        grads, found = gradients(policy, batch, loss, plan)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))

        def value(size):
            """The loss, written down in numpy from the naive model's log probabilities."""
            adapter = jax.tree.map(lambda x, g: x + size * g / norm, policy.adapter, grads)
            moved, total = policy.replace(adapter=adapter), 0.0
            for row, length in enumerate(batch.length):
                logp = naive_logprobs(moved, batch.tokens[row, :length], float(batch.temperature))
                part = slice(1, length)
                mask, share = batch.mask[row, part], batch.shares[row, part]
                d = logp - batch.reference[row, part]
                k = {"k2": d**2 / 2, "k3": np.exp(-d) - 1 + d}[estimator]
                ratio = np.exp(logp - batch.logprobs[row, part])
                total += (mask * (0.3 * share * k - ratio * batch.advantages[row, part])).sum()
            return total

        assert float(found.loss) == pytest.approx(value(0), rel=SLOPE_TOLERANCE)
        slope = (value(STEP) - value(-STEP)) / (2 * STEP)
        assert slope == pytest.approx(float(norm), rel=SLOPE_TOLERANCE)


def hand_batch():
    """Two rows of two trained tokens: k1 is 1, 3 in group 0 and 0, 2 in group 1; shares are a half and a quarter."""
    mask = np.array([[0, 1, 1, 0], [0, 1, 1, 0]], np.float32)
    logprobs = np.array([[0, -1, -1, 0], [0, -2, -2, 0]], np.float32)
    reference = np.array([[0, -2, -4, 0], [0, -2, -4, 0]], np.float32)
    shares = mask * np.array([[0.5], [0.25]], np.float32)
    advantages = np.array([[0, 1, 1, 0], [0, -1, -1, 0]], np.float32)
    return Batch(
        tokens=np.ones((2, 4), np.int32), length=np.array([4, 4], np.int32), mask=mask,
        advantages=advantages, logprobs=logprobs, weights=advantages,
        temperature=np.asarray(1, np.float32), episodes=np.array([0, 1]), shares=shares,
        reference=reference,
    )  # fmt: skip


def test_k1_in_the_reward_by_hand():
    batch = hand_batch()
    rows = [jax.tree.map(lambda x, i=i: x[i : i + 1] if x.ndim else x, batch) for i in (0, 1)]
    # The batch's mean is 1.5, over both micro-batches; penalty = 2 * (k1 - 1.5) * share.
    both = penalised(rows, np.array([0, 1]), KlConfig(2.0))
    np.testing.assert_allclose(both[0].advantages[0], [0, 1.5, -0.5, 0], atol=HAND)
    np.testing.assert_allclose(both[1].advantages[0], [0, -0.25, -1.25, 0], atol=HAND)
    # The groups' means are 2 and 1.
    (one,) = penalised([batch], np.array([7, 9]), KlConfig(2.0, centre="group"))
    np.testing.assert_allclose(one.advantages, [[0, 2, 0, 0], [0, -0.5, -1.5, 0]], atol=HAND)
    np.testing.assert_array_equal(one.weights, one.advantages)
    metrics = kl_metrics(np.array([1.0, 3.0, 0.0, 2.0]))
    assert metrics["kl_ref/k1"] == pytest.approx(1.5)
    want = np.mean([np.exp(-1), np.exp(-3) + 2, 0, np.exp(-2) + 1])
    assert metrics["kl_ref/k3"] == pytest.approx(want)


def test_teachers_advantage_by_hand(make_episode):
    batch = hand_batch()
    logprobs = np.array([[0, -0.5, -3, 0], [0, -2, -1, 0]], np.float32)
    found = graded(batch, logprobs, TeacherConfig("teacher", coefficient=2.0))
    # + 2 * (log teacher - log policy) * share
    np.testing.assert_allclose(found.advantages, [[0, 1.5, -1, 0], [0, -1, -0.5, 0]], atol=HAND)
    raw = Advantages(
        (np.array([0.5, 0]), np.zeros(1)), (np.array([True, False]), np.array([False])), {0: True}
    )
    alone = taught(raw, TeacherConfig("teacher"), [False, False])
    assert all(turns.all() for turns in alone.trained) and not np.concatenate(alone.values).any()
    beside = taught(raw, TeacherConfig("teacher", rewards=True), [False, False])
    assert all(turns.all() for turns in beside.trained) and beside.values[0][0] == 0.5
    left_out = taught(raw, TeacherConfig("teacher"), [False, True])
    assert [turns.all() for turns in left_out.trained] == [True, False]
    assert taught(raw, TeacherConfig(), [False, False]) is raw


def played(make_episode):
    """Episodes of three groups, the last one constant, with log probabilities that the policy could have had."""
    random = np.random.default_rng(5)
    episodes = []
    for group, rewards in enumerate(([1.0, 0.0], [0.5, 2.0], [1.0, 1.0])):
        for member, reward in enumerate(rewards):
            episode = make_episode(
                [reward, reward], group=group, member=member, samples=[3 + member, 4]
            )
            turns = tuple(
                replace(
                    turn,
                    tokens=turn.tokens % 61,
                    logprobs=np.where(
                        turn.sampled, random.uniform(-4.5, -3.5, len(turn.tokens)), np.nan
                    ).astype(np.float32),
                )
                for turn in episode.turns
            )
            episodes.append(replace(episode, turns=turns))
    return episodes


def grads_of(config, policy, episodes, seen, teacher=None, waves=None):
    """The adapter's gradient of a whole step, as the optimizer is given it."""
    train_state = init_train_state(policy, optimizer(config))
    if waves is None:
        learn(config, train_state, episodes, teacher)
    else:
        accumulation = Accumulation(config, train_state, teacher)
        for wave in waves:
            size = 32
            tokens = np.zeros((len(wave), size), np.int32)
            length = np.array([len(episode.tokens) for episode in wave], np.int32)
            for row, episode in enumerate(wave):
                tokens[row, : length[row]] = episode.tokens
            state = extend(policy, Segment(tokens, length), init_state(policy, len(wave), 64))
            accumulation.add(wave, state)
        accumulation.finish()
    return seen.pop()


KINDS = {
    "k1 in the reward, and a teacher": {
        "kl": {"coefficient": 0.5, "centre": "group"},
        "teacher": {"model": "teacher", "coefficient": 0.5, "rewards": True},
    },
    "k3 in the loss": {"kl": {"coefficient": 0.5, "place": "loss", "estimator": "k3"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_another_plan_and_other_micro_batches_change_nothing(kind, make_episode, monkeypatch):
    policy = tiny_policy(config=ONE_LAYER)
    episodes, seen = played(make_episode), []
    monkeypatch.setattr(
        "mintjax.train.learner.update", lambda state, grads: (seen.append(grads), state)[1]
    )
    options = KINDS[kind] | {
        "normaliser": "episode_tokens",
        "loss": {"type": "importance_sampling"},
    }
    options["rollout"] = {"groups": 3, "group_size": 2, "groups_in_flight": 1}
    teacher = tiny_policy(seed=4, config=ONE_LAYER).base_only() if "teacher" in options else None

    def found(plan, rows, waves=None):
        config = tiny_config(
            "nowhere", "kl", gradients={"plan": plan, "rows": rows, "segment": 32}, **options
        )
        return grads_of(config, policy, episodes, seen, teacher, waves)

    want = found("packed", 6)
    waves = [episodes[:2], episodes[2:4], episodes[4:]]
    assert relative_difference(found("reverse_only", 2, waves=waves), want) < CUT


def test_constant_groups_are_not_pulled_to_the_reference(make_episode):
    episodes = played(make_episode)
    advantages = Advantages(
        tuple(np.ones(2) for _ in episodes),
        tuple(np.full(2, episode.group != 2) for episode in episodes),
        {},
    )
    batches = micro_batches(episodes, advantages, rows=8, shares=[0.5] * 6)
    (batch,) = batches
    assert batch.shares is not None
    assert set(batch.episodes[batch.length > 0]) == {0, 1, 2, 3}
    np.testing.assert_array_equal(batch.shares, 0.5 * batch.mask)


@pytest.mark.parametrize(
    ("kl", "message"),
    [
        ({"place": "loss"}, r"kl\.estimator: expected k2 or k3 where kl\.place is 'loss'"),
        ({"estimator": "k3"}, r"kl\.estimator: expected k1 where kl\.place is 'reward'"),
        ({"coefficient": -1.0}, r"kl\.coefficient: expected a number of at least 0"),
        ({}, r"gradients\.plan: kl\.centre \"batch\" takes the mean over the whole batch"),
    ],
)
def test_what_has_the_gradient_of_no_kl_is_refused(kl, message):
    with pytest.raises(ConfigError, match=message):
        tiny_config(
            "nowhere", "kl", kl={"coefficient": 0.1} | kl, gradients={"plan": "reverse_only"}
        )


def test_a_teacher_that_is_not_there_is_missed(make_episode):
    config = tiny_config("nowhere", "kl", teacher={"model": "big"}, gradients={"plan": "packed"})
    policy = tiny_policy()
    with pytest.raises(ValueError, match=r"teacher: 'big' is to be asked, and came None"):
        learn(config, init_train_state(policy, optimizer(config)), played(make_episode))
