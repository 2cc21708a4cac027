"""A gradient taken some groups at a time is the batch's, and no cache outlives its groups."""

import weakref
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mintjax.train.gradient_sum
import mintjax.train.learner
import mintjax.train.loop
from mintjax.renderers import get_renderer
from mintjax.train.accumulate import Accumulation
from mintjax.train.config import ConfigError
from mintjax.train.environment import Step
from mintjax.train.gradient_sum import GradientSum
from mintjax.train.learner import NonFiniteError, compare, learn
from mintjax.train.loop import train
from mintjax.train.losses import Loss, register_loss
from mintjax.train.metrics import read_metrics
from mintjax.train.normalisers import NORMALISERS
from mintjax.train.optimizer import init_train_state
from mintjax.train.plan_choice import plan_needs
from mintjax.train.plan_memory import shapes_of
from mintjax.train.rollout import RolloutSettings, rollout
from tests.tiny import relative_difference
from tests.train.tiny_run import tiny_config, tiny_parts

ROUNDING = 5e-6  # of ‖g₁ - g₂‖ / ‖g₂‖ where both walk the same cache
PLANS = 1e-5  # the same, where another plan computes its own
LOGPROBS = 1e-5
GROUPS, SIZE = 5, 3
LOSSES = ["ppo", "importance_sampling", "cross_entropy"]


@dataclass
class Letters:
    """Pays for the length of a reply; the task is how many turns there are, and from 10 on nothing is paid."""

    task: int = 0
    turn: int = 0

    def reset(self, task, seed):
        self.task = task
        return [{"role": "user", "content": "x" * (1 + task % 3)}]

    def step(self, assistant):
        self.turn += 1
        reward = 0.0 if self.task >= 10 else len(assistant["content"]) / 8
        if self.turn > self.task % 3:
            return Step([], reward, True, "finished")
        return Step([{"role": "user", "content": "y"}], reward, False)


TASKS = [1, 11, 2, 3, 4]  # a group of three turns at the most, and one that is constant


@pytest.fixture(scope="module")
def parts():
    return tiny_parts()


def config_of(plan, in_flight=0, rows=0, **changes):
    rollout = {"groups": GROUPS, "group_size": SIZE, "max_tokens": 12}
    return tiny_config(
        "unused", "unused",
        rollout=rollout | {"groups_in_flight": in_flight, "rows": rows},
        gradients={"plan": plan, "segment": 32, "rows": 3},
        **{"advantage": {"type": "group_mean"}, **changes},
    )  # fmt: skip


def waves(parts, in_flight):
    """The tasks' episodes, as many groups side by side as are in flight."""
    policy, tokenizer = parts
    settings = RolloutSettings(
        group_size=SIZE, max_turns=4, max_tokens=12, groups=in_flight, capacity=128
    )
    for first in range(0, GROUPS, in_flight):
        yield rollout(
            policy, get_renderer("chatml"), tokenizer, Letters, TASKS[first : first + in_flight],
            settings, seed=3, step=2, first_group=first,
        )  # fmt: skip


@pytest.fixture(scope="module")
def played(parts):
    """By the number of groups in flight; the last wave is smaller than the others for 2 and 3."""
    return {in_flight: list(waves(parts, in_flight)) for in_flight in (1, 2, 3, GROUPS)}


def descended(parts):
    """A train state whose step is the gradient itself."""
    return init_train_state(parts[0], optax.sgd(1.0))


def gradient(parts, learned):
    return jax.tree.map(jnp.subtract, parts[0].adapter, learned.train_state.policy.adapter)


def accumulated(config, parts, rollouts):
    accumulation = Accumulation(config, descended(parts))
    for episodes, _, state in rollouts:
        accumulation.add(episodes, state)
    return accumulation.finish()


def bytes_of(state):
    """What a state holds of its rows, and of what each group begins with."""
    assert state.prefix.prefix is None and state.length.size == SIZE * state.prefix.length.size
    own, shared = state.buffers[0][0].shape, state.prefix.buffers[0][0].shape
    return 2 * len(state.buffers) * (np.prod(own) + np.prod(shared)) * 4


def test_groups_in_flight_change_no_token(played):
    (whole, stats, state) = played[GROUPS][0]
    assert [episode.group for episode in whole] == [g for g in range(GROUPS) for _ in range(SIZE)]
    assert len({len(episode.turns) for episode in whole}) > 1
    for in_flight, rollouts in played.items():
        episodes = [episode for wave in rollouts for episode in wave.episodes]
        for got, want in zip(episodes, whole, strict=True):
            assert (got.group, got.member) == (want.group, want.member)
            assert got.stop_reason == want.stop_reason
            assert got.tokens.tolist() == want.tokens.tolist()
            assert [turn.reward for turn in got.turns] == [turn.reward for turn in want.turns]
            sampled = want.sampled
            assert np.abs(got.logprobs[sampled] - want.logprobs[sampled]).max() < LOGPROBS
        shapes = {wave.state.length.size for wave in rollouts}
        assert shapes == {in_flight * SIZE}, "a smaller last wave is filled up"
        assert sum(wave.stats.sampled_tokens for wave in rollouts) == stats.sampled_tokens
        # Groups that happen to begin alike share that in one wave alone.
        given = sum(wave.stats.prefilled_tokens + wave.stats.shared_tokens for wave in rollouts)
        assert given == stats.prefilled_tokens + stats.shared_tokens
        assert not np.asarray(rollouts[-1].state.length)[len(rollouts[-1].episodes) :].any()
    assert stats.cache_bytes == bytes_of(state)


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize(
    "loss", [pytest.param(x, marks=[pytest.mark.wide] * (x != "ppo")) for x in LOSSES]
)
def test_the_gradient_is_that_of_the_whole_batch(parts, played, normaliser, loss):
    changes = {"normaliser": normaliser, "loss": {"type": loss}}
    episodes = played[GROUPS][0].episodes
    packed = learn(config_of("packed", **changes), descended(parts), episodes)
    whole = accumulated(config_of("reverse_only", GROUPS, **changes), parts, played[GROUPS])
    assert relative_difference(gradient(parts, whole), gradient(parts, packed)) < PLANS
    for in_flight in (1, 3):
        got = accumulated(config_of("reverse_only", in_flight, **changes), parts, played[in_flight])
        assert relative_difference(gradient(parts, got), gradient(parts, whole)) < ROUNDING
        for name, want in packed.metrics.items():
            if not name.startswith("gradients/"):
                tolerance = {"rel": PLANS, "abs": LOGPROBS}
                assert got.metrics[name] == pytest.approx(want, **tolerance), name
        assert got.metrics.keys() == packed.metrics.keys()
        for a, b in zip(got.advantages.values, packed.advantages.values, strict=True):
            assert a.tolist() == b.tolist()
        assert got.advantages.signal == packed.advantages.signal
        assert int(got.train_state.step) == 1


def test_constant_groups_cost_no_gradient_and_the_passes_saved_are_counted(
    parts, played, monkeypatch
):
    taken = []
    computed = mintjax.train.gradient_sum.gradients

    def counted(policy, batch, *rest):
        taken.append(int(batch.length.sum()))
        return computed(policy, batch, *rest)

    monkeypatch.setattr(mintjax.train.gradient_sum, "gradients", counted)
    accumulation = Accumulation(config_of("reverse_only", 1), descended(parts))
    after = []
    for episodes, _, state in played[1]:
        accumulation.add(episodes, state)
        after.append(len(taken))
    assert after == [1, 1, 2, 3, 4], "the second group is constant"
    metrics = accumulation.finish().metrics
    assert metrics["gradients/forwards_saved"] == 4
    assert metrics["gradients/forward_tokens_saved"] == sum(taken) > 0
    assert metrics["groups/zero_signal"] == 1

    constant = Accumulation(config_of("reverse_only", 1), descended(parts))
    constant.add(*played[1][1][::2])
    learned = constant.finish()
    assert learned.metrics["update/skipped"] == 1 and len(taken) == 4
    assert "loss" not in learned.metrics and learned.metrics["gradients/forwards_saved"] == 0
    assert int(learned.train_state.step) == 0
    packed = learn(config_of("packed"), descended(parts), played[GROUPS][0].episodes)
    assert packed.metrics["gradients/forwards_saved"] == 0


def test_a_wave_in_which_nothing_was_said_has_no_cache(parts, played):
    accumulation = Accumulation(config_of("reverse_only", 1), descended(parts))
    failed = [replace(episode, turns=(), stop_reason="error") for episode in played[1][0].episodes]
    accumulation.add(failed, None)
    for episodes, _, state in played[1][1:]:
        accumulation.add(episodes, state)
    assert accumulation.finish().metrics["groups/zero_signal"] == 2


def test_a_group_is_added_once_and_whole(parts, played):
    accumulation = Accumulation(config_of("reverse_only", 1), descended(parts))
    accumulation.add(*played[1][0][::2])
    with pytest.raises(ValueError, match=r"groups \[0\] have been added already"):
        accumulation.add(*played[1][0][::2])


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_a_share_is_what_the_advantage_was_multiplied_by(parts, played, monkeypatch, normaliser):
    batches, divided = [], []

    class Seen(GradientSum):
        def add(self, batch, state=None):
            batches.append(batch)

        def divide(self, by):
            divided.append(by)

    monkeypatch.setattr(mintjax.train.learner, "GradientSum", Seen)
    monkeypatch.setattr(mintjax.train.accumulate, "GradientSum", Seen)
    shares = []
    for plan, in_flight in (("packed", GROUPS), ("reverse_only", 1)):
        config = config_of(plan, in_flight, normaliser=normaliser)
        batches.clear()
        if plan == "packed":
            learn(config, descended(parts), played[GROUPS][0].episodes)
        else:
            accumulated(config, parts, played[1])
        found = {}
        for batch in batches:
            for row in np.flatnonzero(batch.mask.any(1)):
                (share,) = set(batch.shares[row][batch.mask[row] > 0])
                assert not batch.shares[row][batch.mask[row] == 0].any()
                tokens = tuple(batch.tokens[row, : batch.length[row]])
                found[tokens] = share, batch.advantages[row].max() / share
        shares.append(found)
    (whole, parts_of), (by,) = shares, divided
    raw = compare(config_of("packed"), played[GROUPS][0].episodes)
    for episode, values, trained in zip(
        played[GROUPS][0].episodes, raw.values, raw.trained, strict=True
    ):
        if trained.any():
            share, advantage = whole[tuple(episode.tokens)]
            part, same = parts_of[tuple(episode.tokens)]
            assert part / by == pytest.approx(share, rel=PLANS)
            # The greatest over the row, or 0 beside it.
            assert advantage == pytest.approx(max(values.max(), 0), rel=PLANS)
            assert same == pytest.approx(advantage, rel=PLANS)


WHOLE = {"loss": {"type": "gspo"}}, {"correction": {"type": "masked", "level": "sequence"}}
REFUSED = [
    (WHOLE[0], "the loss Gspo needs whole rows"),
    (WHOLE[1], "correction.level 'sequence' needs whole rows"),
    (
        {"advantage": {"type": "reinforce_plus_plus"}},
        "reinforce_plus_plus compares the whole batch",
    ),
    ({"loss": {"type": "half"}}, "the loss Half is not proportional .* 'batch_tokens'"),
]


@pytest.fixture
def half(monkeypatch):
    """A loss that says nothing of itself, registered here alone."""
    monkeypatch.setattr(Loss, "_choice_registry", dict(Loss._choice_registry))

    @register_loss("half")
    @dataclass(frozen=True)
    class Half(Loss):
        def __call__(self, logprobs, inputs):
            return -inputs.advantages * logprobs / 2

    return Half


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_what_needs_the_whole_batch_or_row_is_refused_by_name(parts, half, changes, reason):
    message = rf"gradients.plan: .*{reason}.* set gradients.plan to \"segments\" or \"packed\""
    with pytest.raises(ConfigError, match=message):
        config_of("reverse_only", **changes)
    config = config_of("auto", **changes)
    plans = plan_needs(config, shapes_of(parts[0]))
    assert {need.plan.kind for need in plans} == {"packed", "segments"}
    with pytest.raises(ValueError, match=message):
        Accumulation(config, descended(parts))


def test_a_loss_that_is_not_finite_updates_nothing(parts, played):
    def impossible(turn):
        return replace(turn, logprobs=np.where(turn.sampled, -1e3, np.nan).astype(np.float32))

    first, *others = played[1]
    episodes = [
        replace(episode, turns=tuple(map(impossible, episode.turns))) for episode in first.episodes
    ]
    with pytest.raises(NonFiniteError, match=r"update 1: the loss is -?(inf|nan)"):
        accumulated(
            config_of("reverse_only", 1, loss={"type": "importance_sampling"}),
            parts,
            [first._replace(episodes=episodes), *others],
        )


@pytest.mark.parametrize("plan", ["reverse_only", "packed"])
def test_no_cache_outlives_its_groups(tmp_path, parts, monkeypatch, plan):
    caches, sizes, sampled = [], [], mintjax.train.loop.rollout

    def watched(*args, **kwargs):
        alive = [cache for cache in caches if cache() is not None]
        assert not alive, "the groups before have left their cache"
        played = sampled(*args, **kwargs)
        assert len(played.episodes) == 3
        sizes.append(bytes_of(played.state))
        caches.extend(weakref.ref(x) for x in jax.tree.leaves(played.state.buffers))
        return played

    monkeypatch.setattr(mintjax.train.loop, "rollout", watched)
    config = tiny_config(
        str(tmp_path), plan, steps=1,
        rollout={"groups": 2, "group_size": 3, "max_tokens": 12, "capacity": 192, "groups_in_flight": 1},
        gradients={"plan": plan, "segment": 64, "rows": 6},
    )  # fmt: skip
    train(config, *parts)
    assert len(caches) == 2 * 2, "two waves, of one layer"
    for row in read_metrics(tmp_path / plan / "metrics.jsonl"):
        assert row["rollout/groups_in_flight"] == 1
        assert row["rollout/cache_bytes"] == max(sizes)


ROWS = 4


@pytest.mark.parametrize("slots", [1, 6])
def test_rows_that_refill_have_the_gradient_of_the_batch(parts, played, slots):
    policy, tokenizer = parts
    whole = played[GROUPS][0].episodes
    config = config_of("reverse_only", rows=ROWS)
    accumulation = Accumulation(config, descended(parts))
    order = []

    def add(episodes, state):
        order.append(episodes[0].group)
        assert state.prefix.length.size == 1, "a group's prompt is walked once"
        accumulation.add(episodes, state)

    settings = RolloutSettings(
        group_size=SIZE, max_turns=4, max_tokens=12, capacity=128, rows=ROWS, slots=slots
    )
    got = rollout(
        policy, get_renderer("chatml"), tokenizer, Letters, TASKS, settings,
        seed=3, step=2, group_done=add,
    )  # fmt: skip
    assert sorted(order) == list(range(GROUPS))
    assert [e.tokens.tolist() for e in got.episodes] == [e.tokens.tolist() for e in whole]
    assert 1 <= got.stats.slots_used <= slots
    row = got.stats.cache_bytes // ROWS
    assert row * got.stats.slots_used < got.stats.held_bytes <= row * (slots + settings.prefixes)
    learned = accumulation.finish()
    packed = learn(config_of("packed"), descended(parts), whole)
    assert relative_difference(gradient(parts, learned), gradient(parts, packed)) < PLANS
    assert learned.advantages.signal == packed.advantages.signal


def test_the_order_in_which_groups_end_changes_no_digit(parts, played):
    def learned(order):
        accumulation = Accumulation(config_of("reverse_only", 1), descended(parts))
        for wave in order:
            accumulation.add(*played[1][wave][::2])
        return accumulation.finish()

    want, got = learned([0, 1, 2, 3, 4]), learned([3, 1, 4, 0, 2])
    same = jax.tree.map(
        lambda a, b: bool((a == b).all()), gradient(parts, got), gradient(parts, want)
    )
    assert all(jax.tree.leaves(same))
    assert got.metrics == want.metrics
    for a, b in zip(got.advantages.values, want.advantages.values, strict=True):
        assert a.tolist() == b.tolist()


@dataclass
class Broken(Letters):
    """The same, but for those whose machine is down."""

    down: bool = False

    def reset(self, task, seed):
        if self.down:
            raise RuntimeError("down")
        return super().reset(task, seed)


def test_a_failed_episode_parts_its_group_from_no_prompt(parts):
    policy, tokenizer = parts
    settings = RolloutSettings(group_size=SIZE, max_turns=4, max_tokens=12, groups=2, capacity=128)
    made = iter([False] * SIZE + [True] + [False] * SIZE)
    played = rollout(
        policy, get_renderer("chatml"), tokenizer, lambda: Broken(down=next(made)), [2, 4],
        settings, seed=3, step=2,
    )  # fmt: skip
    assert [len(episode.tokens) > 0 for episode in played.episodes] == [True] * 3 + [
        False,
        True,
        True,
    ]
    config = config_of("reverse_only", 2)
    config = replace(config, gradients=replace(config.gradients, rows=2 * SIZE))
    packed = learn(config_of("packed"), descended(parts), played.episodes)
    walked = accumulated(config, parts, [played])
    assert relative_difference(gradient(parts, walked), gradient(parts, packed)) < PLANS


def test_segments_have_a_groups_rows_side_by_side(parts, played, monkeypatch):
    seen = []

    class Seen(GradientSum):
        def add(self, batch, state=None):
            seen.append(batch.episodes)

    monkeypatch.setattr(mintjax.train.learner, "GradientSum", Seen)
    (episodes, *_) = played[GROUPS][0]
    config = config_of("segments")
    learn(
        replace(config, gradients=replace(config.gradients, rows=2 * SIZE)),
        descended(parts),
        episodes,
    )
    groups = [
        {episodes[i].group for i in block if i >= 0}
        for rows in seen
        for block in rows.reshape(-1, SIZE)
    ]
    assert sorted(map(len, groups)) == [1] * (GROUPS - 1), "a block for each group with a signal"
