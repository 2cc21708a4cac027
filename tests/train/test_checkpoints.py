import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mintjax.train.checkpoints import (
    CheckpointError,
    CheckpointWarning,
    latest,
    restore,
    save,
)
from mintjax.train.config import CheckpointConfig
from mintjax.train.config_files import from_dict
from mintjax.train.durable import append_row, read_rows
from mintjax.train.resume import resume
from mintjax.train.run_directory import open_run

ORIGIN = {"base": "tiny", "renderer": "chatml", "tokenizer": "abc"}
KEEP_ALL = CheckpointConfig(keep_last=100)


@pytest.fixture
def run(tmp_path):
    raw = {"name": "demo", "root": str(tmp_path), "environment": {"type": "count_down"}}
    with open_run(from_dict(raw)) as run:
        yield run


def trees(seed):
    a, b = np.random.default_rng(seed).normal(size=(2, 3, 4)).astype(np.float32)
    # Bits that a detour through text or another dtype would lose.
    a[0, :3] = [np.float32(1e-45), -0.0, np.nan]
    adapter = {"layers": ({"q": {"a": jnp.asarray(a), "b": jnp.asarray(b, jnp.bfloat16)}},)}
    optimizer = optax.adamw(optax.constant_schedule(0.1)).init(adapter)
    optimizer = jax.tree.map(lambda x: x + jnp.ones_like(x) * seed, optimizer)
    return adapter, optimizer


def put(run, step, reward=0.0, keep=KEEP_ALL):
    metrics = {"step": step, "reward": reward}
    state = {"step": step, "seed": 2**31 + 5, "key": np.array([1, 2**32 - 1], np.uint32)}
    append_row(run.metrics, metrics)
    run.rollouts(step).write_text("episodes")
    return save(run, step, *trees(step), state, metrics=metrics, origin=ORIGIN, keep=keep)


def steps(run):
    listed = [row["step"] for row in read_rows(run.index)]
    directories = sorted(int(p.name[5:]) for p in run.checkpoint(0).parent.iterdir())
    assert sorted(listed) == directories
    return listed


def bits(tree):
    return [(x.dtype, x.shape, np.asarray(x).tobytes()) for x in jax.tree.leaves(tree)]


def test_what_is_restored_is_what_was_saved_bit_for_bit(run):
    put(run, 3)
    checkpoint = latest(run)
    assert checkpoint is not None and checkpoint.step == 3
    like = jax.tree.map(jnp.zeros_like, trees(3))
    restored = restore(checkpoint, *like, origin=ORIGIN)
    saved = trees(3)
    assert bits(restored.adapter) == bits(saved[0])
    assert bits(restored.optimizer) == bits(saved[1])
    assert jax.tree.structure((restored.adapter, restored.optimizer)) == jax.tree.structure(saved)
    assert restored.state["step"] == 3
    assert restored.state["seed"] == 2**31 + 5
    assert bits(restored.state["key"]) == bits(np.array([1, 2**32 - 1], np.uint32))


def test_a_checkpoint_of_another_model_or_shape_is_refused_by_name(run):
    checkpoint = put(run, 1)
    adapter, optimizer = trees(1)
    with pytest.raises(CheckpointError, match="tokenizer: abc there, xyz now"):
        restore(checkpoint, adapter, optimizer, origin={**ORIGIN, "tokenizer": "xyz"})
    wider = jax.tree.map(lambda x: jnp.zeros((5, 4), x.dtype), adapter)
    with pytest.raises(
        CheckpointError, match=r"\['a'\]: float32\[3, 4\] there, float32\[5, 4\] now"
    ):
        restore(checkpoint, wider, optimizer, origin=ORIGIN)
    other = jax.tree.map(lambda x: x.astype(jnp.float32), adapter)
    with pytest.raises(CheckpointError, match=r"\['b'\]: bfloat16\[3, 4\] there, float32\[3, 4\]"):
        restore(checkpoint, other, optimizer, origin=ORIGIN)
    with pytest.raises(CheckpointError, match="its optimizer is not this run's"):
        restore(checkpoint, adapter, optax.sgd(0.1).init(adapter), origin=ORIGIN)


def test_the_last_few_and_the_best_are_kept(run):
    keep = CheckpointConfig(keep_last=2)
    for step, reward in enumerate([0.1, 0.9, 0.2, 0.9, None, 0.3, 0.4], start=1):
        put(run, step, reward, keep)
    assert steps(run) == [4, 6, 7]
    put(run, 8, 0.95, CheckpointConfig(keep_last=1, keep_best=False))
    assert steps(run) == [8]


def test_a_new_run_starts_from_the_beginning(run):
    assert resume(run) is None


def test_resuming_cuts_what_came_after_the_last_checkpoint(run):
    append_row(run.metrics, {"step": 0, "eval/greedy/reward": 0.1})
    put(run, 1)
    put(run, 2)
    append_row(run.metrics, {"step": 3, "reward": 0.5})
    run.rollouts(3).write_text("half of it")
    run.rollouts(3).with_name("step_000003.jsonl.partial").write_text("ha")
    run.evaluation(0).write_text("{}")
    run.transcript(3).write_text("<html>")
    # Killed between the rename and the index row, and while the next was written aside.
    shutil.copytree(run.checkpoint(2), run.checkpoint(3))
    run.checkpoint(4).with_name("step_000004.partial").mkdir()
    with run.metrics.open("a") as file:
        file.write('{"step": 4, "rew')

    checkpoint = resume(run)

    assert checkpoint is not None and checkpoint.step == 2
    assert [row["step"] for row in read_rows(run.metrics)] == [0, 1, 2]
    assert [row["step"] for row in read_rows(run.path / "metrics.jsonl.pre_resume")] == [3]
    assert sorted(p.name for p in run.rollouts(0).parent.iterdir()) == [
        "step_000001.jsonl",
        "step_000002.jsonl",
    ]
    assert run.evaluation(0).exists()
    assert not run.transcript(3).exists()
    assert steps(run) == [1, 2]


def test_a_run_killed_before_its_first_checkpoint_starts_again(run):
    append_row(run.metrics, {"step": 0, "eval/greedy/reward": 0.1})
    run.evaluation(0).write_text("{}")
    run.checkpoint(1).mkdir()
    assert resume(run) is None
    assert read_rows(run.metrics) == []
    assert not run.evaluation(0).exists()
    assert not run.checkpoint(1).exists()


def lose(path):
    shutil.rmtree(path)


def lose_a_file(path):
    (path / "adapter" / "manifest.ocdbt").unlink()


def cut_a_file(path):
    file = max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(path):
    file = max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [lose, lose_a_file, cut_a_file, flip_a_bit])
def test_a_damaged_checkpoint_is_never_loaded(run, damage):
    put(run, 1)
    put(run, 2)
    damage(run.checkpoint(2))
    with pytest.warns(CheckpointWarning, match="step_000002"):
        checkpoint = resume(run)
    assert checkpoint is not None and checkpoint.step == 1
    assert [row["step"] for row in read_rows(run.metrics)] == [1]
    assert steps(run) == [1]
    damage(run.checkpoint(1))
    with (
        pytest.warns(CheckpointWarning, match="step_000001"),
        pytest.raises(CheckpointError, match="none of its 1 checkpoints is whole"),
    ):
        resume(run)
    assert [row["step"] for row in read_rows(run.metrics)] == [1]
