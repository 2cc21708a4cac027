import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from mintjax.train.config import OptimizerConfig, TrainConfig
from mintjax.train.config_files import from_dict, load_config
from mintjax.train.invocation import record_invocation
from mintjax.train.run_directory import RunDirectoryError, differences, open_run
from mintjax.train.signals import stop_requests


@pytest.fixture
def config(tmp_path) -> TrainConfig:
    raw = {"name": "demo", "root": str(tmp_path / "runs"), "environment": {"type": "count_down"}}
    return from_dict(raw)


def files(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def test_a_new_run_holds_its_configuration(config):
    with open_run(config) as run:
        assert str(run.path) == os.path.join(config.root, "demo")
        assert load_config(run.config) == config
    assert run.rollouts(10).name == "step_000010.jsonl"
    assert run.rollouts(10).parent.is_dir()


def test_the_same_configuration_goes_on_and_keeps_everything(config):
    with open_run(config) as run:
        run.metrics.write_text('{"step": 1}\n')
    with open_run(config) as run:
        assert run.metrics.read_text() == '{"step": 1}\n'


def test_another_configuration_is_refused_by_the_fields_that_differ(config):
    with open_run(config) as run:
        run.metrics.write_text('{"step": 1}\n')
    before = {name: (run.path / name).read_bytes() for name in files(run.path)}
    other = dataclasses.replace(config, seed=5, optimizer=OptimizerConfig(learning_rate=1.0))
    with pytest.raises(RunDirectoryError) as caught, open_run(other):
        pass
    message = str(caught.value)
    assert "optimizer.learning_rate: 0.0003 there, 1.0 now" in message
    assert "seed: 0 there, 5 now" in message
    assert "--overwrite" in message
    assert "steps" not in message
    assert {name: (run.path / name).read_bytes() for name in files(run.path)} == before


def test_a_moved_run_goes_on(config, tmp_path):
    with open_run(config) as run:
        run.metrics.write_text('{"step": 1}\n')
    moved = dataclasses.replace(config, name="other", root=str(tmp_path))
    run.path.rename(tmp_path / "other")
    with open_run(moved) as run:
        assert run.metrics.exists()


def test_overwrite_discards_everything(config):
    with open_run(config) as run:
        run.metrics.write_text('{"step": 1}\n')
        (run.path / "checkpoints" / "step_000001").mkdir()
    other = dataclasses.replace(config, seed=5)
    with open_run(other, overwrite=True) as run:
        assert load_config(run.config) == other
        assert files(run.path) == [".lock", "config.yaml"]
        assert list(run.checkpoint(0).parent.iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_that_are_no_run_are_never_touched(config, tmp_path, overwrite):
    folder = tmp_path / "runs" / "demo"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")
    with (
        pytest.raises(RunDirectoryError, match=r"demo: expected an empty directory or a run"),
        open_run(config, overwrite=overwrite),
    ):
        pass
    assert (folder / "thesis.tex").read_text() == "years of work"


def test_a_kill_while_the_configuration_was_written_does_not_block_the_run(config, tmp_path):
    folder = tmp_path / "runs" / "demo"
    folder.mkdir(parents=True)
    (folder / "config.yaml.partial").write_text("name: de")
    with open_run(config) as run:
        assert load_config(run.config) == config
    assert not (folder / "config.yaml.partial").exists()


def test_one_process_at_a_time(config):
    program = """
        import sys
        from mintjax.train.config_files import from_dict
        from mintjax.train.run_directory import RunDirectoryError, open_run
        config = from_dict(
            {"name": "demo", "root": sys.argv[1], "environment": {"type": "count_down"}}
        )
        try:
            with open_run(config):
                print("entered")
        except RunDirectoryError as error:
            print(error)
    """

    def other() -> str:
        command = [sys.executable, "-c", textwrap.dedent(program), config.root]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with open_run(config):
        assert f"in use by process {os.getpid()}" in other()
    assert other() == "entered\n"


def test_differences_name_dotted_fields():
    old = {"a": {"b": 1, "c": [1, 2]}, "d": None}
    new = {"a": {"b": 1, "c": [1, 3]}, "e": 0}
    assert differences(old, new) == {"a.c": ([1, 2], [1, 3]), "e": (None, 0)}
    assert differences(old, old) == {}


def test_every_start_is_recorded(config, tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True
        )

    monkeypatch.chdir(tmp_path)
    # A temporary directory may lie inside some work tree.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with open_run(config) as run:
        record_invocation(run, seed=3, devices=["cpu:0"])
        assert not (run.path / "code.diff").exists()
        git("init")
        (tmp_path / "a.py").write_text("x = 1\n")
        git("add", "a.py")
        git("commit", "-m", "one")
        (tmp_path / "a.py").write_text("x = 2\n")
        record_invocation(run, seed=3, devices=["cpu:0"])
    first, second = json.loads((run.path / "invocation.json").read_text())
    assert first["argv"] == sys.argv
    assert first["seed"] == 3
    assert first["devices"] == ["cpu:0"]
    assert set(first["versions"]) >= {"jax", "flax", "optax", "numpy"}
    assert first["git"] is None
    assert len(second["git"]) == 40
    assert "+x = 2" in (run.path / "code.diff").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_becomes_a_request_once(number):
    before = signal.getsignal(number)
    with stop_requests() as stop:
        assert not stop
        signal.raise_signal(number)
        assert stop
        assert stop.signal == signal.Signals(number).name
        # A second one has its usual effect: someone who presses Ctrl-C twice means it.
        assert signal.getsignal(number) == before
    assert signal.getsignal(number) == before
