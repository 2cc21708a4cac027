"""Groups without a signal are replaced by the tasks that come next, and a run that is broken off gets the same ones."""

import json
import signal
from dataclasses import dataclass

import pytest

import mintjax.train.environments  # before the registry is copied, so that the shipped ones stay in it
import mintjax.train.loop
from mintjax.train.checkpoints import latest
from mintjax.train.config import ConfigError, EnvironmentConfig, register_environment
from mintjax.train.environment import Step
from mintjax.train.loop import train
from mintjax.train.metrics import read_metrics, reproducible
from mintjax.train.run_directory import RunDirectory
from tests.train.tiny_run import tiny_config, tiny_parts

# Step 1 meets 0 and 1, then 2 and 3, then 4; step 2 has 5 and 6 at once; step 3 is out of luck three times; step 4 meets
# 13 and 14, then 15.
FLAT = {0, 1, 3, *range(7, 14)}
CONSUMED = [5, 7, 13, 16]
RESAMPLED = [3, 0, 4, 1]


@dataclass
class Letters:
    """Pays for the letters of a reply, so that no two are paid alike, but for some tasks."""

    task: int = 0

    def reset(self, task, seed):
        self.task = task
        return [{"role": "user", "content": "x"}]

    def step(self, assistant):
        reward = 0.0 if self.task in FLAT else sum(map(ord, assistant["content"])) / 100
        return Step([], reward, True, "finished")


@dataclass(frozen=True)
class LettersConfig(EnvironmentConfig):
    """The tasks are the numbers of their places."""

    def make(self):
        return Letters()

    def tasks(self, position, count, seed):
        return list(range(position, position + count))


@pytest.fixture(autouse=True)
def letters_are_an_environment_here(monkeypatch):
    monkeypatch.setattr(mintjax.train.loop.plots, "reward", lambda *_, **__: ("", ""))
    registry = dict(EnvironmentConfig._choice_registry)
    monkeypatch.setattr(EnvironmentConfig, "_choice_registry", registry)
    register_environment("letters")(LettersConfig)


def config_of(root, name, **changes):
    rollout = {"groups": 2, "group_size": 3, "max_tokens": 12, "capacity": 192}
    return tiny_config(
        str(root), name, steps=4,
        environment={"type": "letters"},
        rollout=rollout | {"groups_in_flight": 1, "resample_rounds": 2},
        gradients={"plan": "reverse_only", "segment": 64, "rows": 6},
        checkpoint={"every": 2},
        **changes,
    )  # fmt: skip


def tasks_of(run, step):
    """The group of each episode, and whether it was trained."""
    rows = map(json.loads, run.rollouts(step).read_text().splitlines())
    return [
        (row["group"], any(x is not None for turn in row["turns"] for x in turn["advantages"]))
        for row in rows
    ]


def test_groups_without_a_signal_are_replaced_and_a_broken_run_meets_the_same_tasks(
    tmp_path, monkeypatch
):
    parts = tiny_parts()
    train(config_of(tmp_path, "unbroken"), *parts)
    run = RunDirectory(tmp_path / "unbroken")
    rows = read_metrics(run.metrics)
    assert [row["data/position"] for row in rows] == CONSUMED
    assert [row["groups/resampled"] for row in rows] == RESAMPLED
    assert [row["groups/zero_signal"] for row in rows] == [3, 0, 6, 1]
    assert [row["update/skipped"] for row in rows] == [0, 0, 1, 0]
    trained = {0: False, 1: False, 2: True, 3: False, 4: True}
    assert tasks_of(run, 1) == [(group, trained[group]) for group in range(5) for _ in range(3)]

    # Stopped in the second round of the fourth step: what that has sampled was consumed by nothing.
    sampled = mintjax.train.loop.rollout

    def stopping(*args, **kwargs):
        if kwargs["step"] == 4 and kwargs["first_group"] == 2:
            signal.raise_signal(signal.SIGTERM)
        return sampled(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(mintjax.train.loop, "rollout", stopping)
        train(config_of(tmp_path, "broken"), *parts)
    broken = RunDirectory(tmp_path / "broken")
    checkpoint = latest(broken)
    assert checkpoint is not None and checkpoint.step == 3
    train(config_of(tmp_path, "broken"), *parts)
    got = [reproducible(row) for row in read_metrics(broken.metrics)]
    assert got == [reproducible(row) for row in rows]
    for step in range(1, 5):
        assert broken.rollouts(step).read_bytes() == run.rollouts(step).read_bytes()


def test_a_signal_that_only_the_whole_batch_tells_is_refused(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"rollout.resample_rounds: expected 0 with advantage.type reinforce_plus_plus, .*, got 2",
    ):
        config_of(tmp_path, "x", advantage={"type": "reinforce_plus_plus"})
