"""A run whose rows refill: stopped in the middle of a rollout, it goes on to the same numbers."""

import os
import signal
from dataclasses import replace

import mintjax.train.environments.count_down as count_down
from mintjax.train.loop import train
from mintjax.train.metrics import read_metrics, reproducible
from mintjax.train.run_directory import RunDirectory
from tests.train.tiny_run import tiny_config, tiny_parts

STEPS = 2
ROLLOUT = {"groups": 3, "group_size": 3, "max_tokens": 12, "capacity": 192, "rows": 4, "slots": 4}


def test_a_run_that_is_stopped_in_a_rollout_repeats_the_unbroken_one(tmp_path, monkeypatch):
    unbroken, broken = RunDirectory(tmp_path / "unbroken"), RunDirectory(tmp_path / "broken")

    policy, tokenizer = tiny_parts()
    # As in the tests of refilled rows, whose programs are then these too.
    small = replace(policy, config=replace(policy.config, context=256))

    def run(name):
        config = tiny_config(
            str(tmp_path), name, steps=STEPS,
            gradients={"plan": "reverse_only", "segment": 64, "rows": 3},
            rollout=ROLLOUT,
            evaluation={"at_start": False, "at_end": True},
        )  # fmt: skip
        train(config, small, tokenizer)

    run("unbroken")
    want = read_metrics(unbroken.metrics)
    assert sum(row["update/skipped"] for row in want) < STEPS, "nothing was learned"
    for row in want:
        assert row["perf/refills"] == 9 - 4 and 0 < row["perf/rows_busy"] <= 1
        assert row["perf/slots_used"] >= 1 and "rollout/groups_in_flight" not in row
        assert row["time/rollout"] > 0 and row["time/learn"] > 0
    assert want[-1]["perf/eval/refills"] == 9 - 4

    graded, grade = [], count_down.grade

    def graded_once_too_often(*args, **kwargs):
        graded.append(args)
        if len(graded) == 22:
            os.kill(os.getpid(), signal.SIGTERM)
        return grade(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(count_down, "grade", graded_once_too_often)
        run("broken")
    assert len(read_metrics(broken.metrics)) == 1, (
        "the second step is lost, since nothing can go on from it"
    )
    assert "SIGTERM: saved step 1" in broken.log.read_text()
    run("broken")
    got = read_metrics(broken.metrics)
    assert [reproducible(row) for row in got] == [reproducible(row) for row in want]
    for step in range(1, STEPS + 1):
        assert broken.rollouts(step).read_bytes() == unbroken.rollouts(step).read_bytes()
