"""The loop: a run that was killed repeats itself to the last digit, and what goes wrong is said and counted."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.train.checkpoints import latest
from mintjax.train.environments.count_down import CountDownConfig
from mintjax.train.learner import NonFiniteError
from mintjax.train.loop import train
from mintjax.train.losses import Loss, Ppo
from mintjax.train.metrics import read_metrics, reproducible
from mintjax.train.run_directory import RunDirectory
from tests.layout import ROOT
from tests.tiny import relative_difference
from tests.train.tiny_run import STEPS, tiny_config, tiny_parts

# Adam divides by the size of a gradient, so that of the smallest ones rounding is a larger part.
PLANS_PART = 1e-3


def start(root, name):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.train.tiny_run", str(root), name],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finish(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def wait_for_rows(run, count, process):
    while len(read_metrics(run.metrics)) < count:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def test_killed_and_terminated_runs_repeat_the_unbroken_one(tmp_path):
    unbroken, broken = RunDirectory(tmp_path / "unbroken"), RunDirectory(tmp_path / "broken")
    finish(start(tmp_path, "unbroken"))

    process = start(tmp_path, "broken")
    wait_for_rows(broken, 1, process)
    process.terminate()
    assert "SIGTERM: saved step" in finish(process)

    done = len(read_metrics(broken.metrics))
    process = start(tmp_path, "broken")
    if done < STEPS:
        wait_for_rows(broken, done + 1, process)
    delay = random.SystemRandom().uniform(0, 0.5)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(start(tmp_path, "broken"))

    want = [reproducible(row) for row in read_metrics(unbroken.metrics)]
    got = [reproducible(row) for row in read_metrics(broken.metrics)]
    assert [row["step"] for row in want] == list(range(1, STEPS + 1))
    assert sum(row["update/skipped"] for row in want) < STEPS, (
        "nothing was learned, so nothing was compared"
    )
    assert got == want, f"killed {delay:.3f} s after a step"
    for step in range(1, STEPS + 1):
        assert broken.rollouts(step).read_bytes() == unbroken.rollouts(step).read_bytes()


def test_one_step_meets_every_shape_and_a_second_run_compiles_nothing(tmp_path):
    for name in ("first", "second"):
        finish(start(tmp_path, name))
        rows = read_metrics(RunDirectory(tmp_path / name).metrics)
        assert rows[0]["perf/compiles"] > 0
        assert sum(row["perf/compiles"] for row in rows[1:]) == 0
    assert sum(row["perf/compile_cache_misses"] for row in rows) == 0


@pytest.fixture(scope="module")
def parts():
    return tiny_parts()


def test_run_leaves_its_files(tmp_path, parts):
    config = tiny_config(
        str(tmp_path), "run", steps=2, evaluation={"at_start": True, "at_end": True}
    )
    train_state = train(config, *parts)
    run = RunDirectory(tmp_path / "run")
    rows = read_metrics(run.metrics)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert "eval/greedy/rewards/turn/mean" in rows[0] and "eval/greedy/rewards/turn/mean" in rows[2]
    assert (
        int(train_state.policy.version) == sum(row.get("update/skipped") == 0 for row in rows) > 0
    )
    first = rows[1]
    assert first["mismatch/logp_abs_max"] < 1e-5, (
        "the sampler's log probabilities are the trainer's"
    )
    assert 0 < first["gradients/fill"] < 1
    assert first["learning_rate"] == pytest.approx(0.015), "half of the peak, by the warm-up of 2"
    for path in (
        run.rollouts(2),
        run.transcript(2),
        run.evaluation(0),
        run.plot("reward.png"),
        run.log,
        run.config,
    ):
        assert path.stat().st_size > 0, path
    episode = json.loads(run.rollouts(1).read_text().splitlines()[0])
    assert episode["turns"][0]["sampled"].count(True) <= config.rollout.max_tokens
    checkpoint = latest(run)
    assert checkpoint is not None and checkpoint.step == 2


def test_groups_without_signal_make_no_update_and_are_counted(tmp_path, parts, monkeypatch):
    monkeypatch.setattr("mintjax.train.environments.count_down.grade", lambda *_, ended: 0.25)
    policy, tokenizer = parts
    config = tiny_config(str(tmp_path), "flat", steps=1)
    assert isinstance(config.environment, CountDownConfig)
    train_state = train(config, policy, tokenizer)
    (row,) = read_metrics(tmp_path / "flat" / "metrics.jsonl")
    assert (row["update/skipped"], row["groups/zero_signal"], row["frac_reward_zero_std"]) == (
        1,
        2,
        1,
    )
    assert int(train_state.policy.version) == 0
    same = jax.tree.map(
        lambda a, b: bool((a == b).all()), train_state.policy.adapter, policy.adapter
    )
    assert all(jax.tree.leaves(same))


def test_a_run_by_whole_rows_and_the_whole_batch_begins_with_ratios_of_1(tmp_path, parts):
    """GSPO with weights of whole rows, and REINFORCE++: whatever sees more than a token, and more than a group.

    Log probabilities are of the whole distribution at the sampling temperature, for the sampler and the trainer alike,
    though top-k and top-p let it draw from a part of it alone.
    """
    rollout = {"groups": 2, "group_size": 3, "max_tokens": 12, "capacity": 192}
    config = tiny_config(
        str(tmp_path), "whole", steps=1,
        rollout=rollout | {"temperature": 0.6, "top_k": 40, "top_p": 0.95},
        loss={"type": "gspo"},
        correction={"type": "masked", "level": "sequence"},
        advantage={"type": "reinforce_plus_plus", "gamma": 0.5},
        normaliser="episode_tokens",
        truncation={"budget": 24, "cache": 12},
    )  # fmt: skip
    train_state = train(config, *parts)
    (row,) = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    assert int(train_state.policy.version) == 1 and row["grad_norm"] > 0
    assert row["mismatch/logp_abs_max"] < 1e-5
    assert (row["ratio/mean"], row["ratio/max"]) == (1, 1)
    assert row["correction/ratio_max"] == pytest.approx(1, abs=1e-4)
    assert row["correction/weight_mean"] == row["correction/ratio_mean"]
    assert row["correction/bound_mean"] == row["clip_ratio/region_mean"] == 0
    assert 0 < row["truncation/episodes"] <= 1 and 0 <= row["truncation/penalty_mean"] <= 1


@dataclass(frozen=True)
class Broken(Ppo):
    """Goes wrong as an overflow would."""

    def __call__(self, logprobs, inputs):
        return super().__call__(logprobs, inputs) * jnp.inf


def test_nan_loss_stops_the_run_and_keeps_what_it_had(tmp_path, parts, monkeypatch):
    config = tiny_config(str(tmp_path), "nan", steps=2)
    train(tiny_config(str(tmp_path), "nan", steps=2), *parts)
    before = (tmp_path / "nan" / "checkpoints.jsonl").read_bytes()
    monkeypatch.setattr(Loss, "_choice_registry", Loss._choice_registry | {"broken": Broken})
    longer = tiny_config(str(tmp_path), "longer", steps=2, loss={"type": "broken"})
    with pytest.raises(
        NonFiniteError, match=r"update 1: .*expected finite numbers; the policy was not updated"
    ):
        train(longer, *parts)
    assert not read_metrics(tmp_path / "longer" / "metrics.jsonl")
    train(config, *parts)
    assert (tmp_path / "nan" / "checkpoints.jsonl").read_bytes() == before


def test_wrong_vocabulary_is_refused_before_a_directory_is_made(tmp_path, parts):
    policy, _ = parts
    small = policy.replace(base=policy.base | {"embed": policy.base["embed"][:90]})
    small = small.replace(config=small.config.__class__(**{**vars(small.config), "vocab_size": 90}))
    with pytest.raises(
        ValueError, match=r"tokenizer: it has 99 tokens, and the model .* embeddings for 90"
    ):
        train(tiny_config(str(tmp_path), "wrong"), small, parts[1])
    assert not os.listdir(tmp_path)


def test_gradients_of_micro_batches_are_one_gradient(tmp_path, parts):
    adapters = [
        train(
            tiny_config(str(tmp_path), f"rows{rows}", steps=1, gradients={"rows": rows}), *parts
        ).policy.adapter
        for rows in (6, 4)
    ]
    differences = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), *adapters)
    assert max(jax.tree.leaves(differences)) < 1e-5


def test_a_run_by_the_rollouts_own_cache_learns_what_another_plan_does(tmp_path, parts):
    learned, rows = {}, {}
    rollout = {"groups": 3, "group_size": 2, "max_tokens": 12, "capacity": 192}
    # Two groups in flight, then one: the second cache has rows that hold nothing.
    for plan, in_flight in (("segments", 0), ("reverse_only", 2)):
        # Micro-batches of fewer rows than the rollout has: each takes its own rows of the cache.
        config = tiny_config(
            str(tmp_path), plan, steps=2,
            gradients={"plan": plan, "segment": 64, "rows": 3},
            rollout=rollout | {"groups_in_flight": in_flight},
            evaluation={"at_start": False, "at_end": True},
        )  # fmt: skip
        learned[plan] = train(config, *parts).policy
        rows[plan] = read_metrics(tmp_path / plan / "metrics.jsonl")
    start = parts[0].adapter
    change = {
        plan: jax.tree.map(jnp.subtract, policy.adapter, start) for plan, policy in learned.items()
    }
    assert int(learned["segments"].version) > 0
    assert relative_difference(change["reverse_only"], change["segments"]) < PLANS_PART
    for row, want in zip(rows["reverse_only"], rows["segments"], strict=True):
        assert (row["rollout/groups_in_flight"], want["rollout/groups_in_flight"]) == (2, 3)
        assert row["rollout/cache_bytes"] * 3 == want["rollout/cache_bytes"] * 2
        assert row["gradients/forward_tokens_saved"] > want["gradients/forward_tokens_saved"] == 0
        for name in reproducible(want):
            if name.startswith(
                ("reward", "stop/", "completions/", "eval/greedy/reward", "groups/")
            ):
                assert row[name] == want[name], name
