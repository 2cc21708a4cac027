"""Runs over a data set: resumed they repeat themselves, whatever the rows they learn the same, and losses fall."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import mintjax.train.dataset_loop
from mintjax.train.checkpoints import latest
from mintjax.train.config_checks import ConfigError
from mintjax.train.config_dataset import DpoConfig, SftConfig
from mintjax.train.config_files import load_config
from mintjax.train.data_files import DataError
from mintjax.train.dataset_loop import train_dataset
from mintjax.train.metrics import read_metrics, reproducible
from mintjax.train.run_directory import RunDirectory
from mintjax.train.saved_trees import CheckpointError
from tests.layout import ROOT
from tests.tiny import relative_difference
from tests.train.dataset_run import STEPS, dpo_config, sft_config
from tests.train.tiny_run import tiny_parts

# Adam divides by the size of a gradient, so that of the smallest ones rounding is a larger part.
ROWS_PART = 1e-3


@pytest.fixture(scope="module")
def parts():
    return tiny_parts()


@pytest.fixture(scope="module")
def sft_run(tmp_path_factory, parts):
    """The directory of a run that was not interrupted, its train state and its rows."""
    root = tmp_path_factory.mktemp("sft")
    state = train_dataset(sft_config(root, "whole"), *parts)
    return root, state, read_metrics(root / "whole" / "metrics.jsonl")


def test_a_killed_run_repeats_the_unbroken_one(sft_run, parts):
    root, _, want = sft_run
    command = [sys.executable, "-m", "tests.train.dataset_run", str(root), "killed"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    run = RunDirectory(root / "killed")
    while len(read_metrics(run.metrics)) < 3:  # the evaluation before the first step, and two steps
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    process.kill()
    process.communicate()
    train_dataset(sft_config(root, "killed"), *parts)
    got = read_metrics(run.metrics)
    assert [row["step"] for row in got] == list(range(STEPS + 1))
    assert list(map(reproducible, got)) == list(map(reproducible, want))
    assert latest(run).step == STEPS


def test_a_run_says_what_it_did(sft_run):
    root, state, rows = sft_run
    assert int(state.policy.version) == STEPS
    assert rows[-1]["epoch"] == 3 and rows[1]["epoch"] == pytest.approx(0.6)
    assert rows[-1]["loss"] < rows[1]["loss"]
    assert ["eval/loss" in row for row in rows] == [True, False, True, False, True, True]
    assert rows[-1]["eval/loss"] < rows[0]["eval/loss"]
    assert all(0.5 < row["gradients/fill"] <= 1 for row in rows[1:])
    kept = json.loads((root / "whole" / "checkpoints.jsonl").read_text().splitlines()[-1])
    assert kept["step"] == STEPS
    # Five conversations: "ash" and its stop are four tokens; those of odd number say their word twice.
    assert sum(row["num_tokens"] for row in rows[1:]) == 3 * (4 + 12 + 6 + 16 + 4)


def change(state, parts):
    return jax.tree.map(jnp.subtract, state.policy.adapter, parts[0].adapter)


@pytest.mark.parametrize(
    "gradients",
    [
        {"rows": 1, "row_tokens": 96},
        pytest.param(
            {"rows": 1, "packing": False, "plan": "segments", "segment": 32},
            marks=pytest.mark.wide,
        ),
    ],
    ids=["packed, other rows", "apart, segments"],
)
def test_how_examples_are_laid_out_changes_nothing(sft_run, parts, gradients):
    root, state, rows = sft_run
    config = sft_config(root, "-".join(map(str, gradients)), gradients=gradients)
    other = train_dataset(config, *parts)
    assert relative_difference(change(other, parts), change(state, parts)) < ROWS_PART
    for row, want in zip(read_metrics(root / config.name / "metrics.jsonl"), rows, strict=True):
        for name in {"loss", "eval/loss", "num_tokens"} & set(want):
            assert row[name] == pytest.approx(want[name], rel=ROWS_PART)


def test_preferences_are_learned(tmp_path, parts):
    config = dpo_config(tmp_path, "dpo", steps=STEPS)
    # A fresh adapter is the base model: both rewards are 0, and a pair's loss is log 2.
    policy = parts[0].replace(adapter=jax.tree.map(lambda x: x, parts[0].adapter))
    fresh = policy.adapter | {
        "layers": tuple(
            {name: {**pair, "b": 0 * pair["b"]} for name, pair in layer.items()}
            for layer in policy.adapter["layers"]
        ),
        "unembed": {**policy.adapter["unembed"], "b": 0 * policy.adapter["unembed"]["b"]},
    }
    train_dataset(config, policy.replace(adapter=fresh), parts[1])
    rows = read_metrics(tmp_path / "dpo" / "metrics.jsonl")
    assert rows[0]["eval/loss"] == pytest.approx(0.6931472, abs=1e-6)
    assert rows[0]["eval/rewards/margins"] == pytest.approx(0, abs=1e-5)
    assert rows[-1]["loss"] < rows[1]["loss"]
    assert rows[-1]["rewards/margins"] > 0 and rows[-1]["rewards/accuracies"] == 1
    assert rows[-1]["logps/chosen"] > rows[1]["logps/chosen"] or rows[-1]["rewards/chosen"] > 0


def test_a_run_goes_on_with_its_own_data_alone(sft_run, parts):
    root, _, _ = sft_run
    config = sft_config(root, "whole")
    data = root / "data.jsonl"
    kept = data.read_text()
    data.write_text("\n".join(reversed(kept.splitlines())))
    try:
        with pytest.raises(CheckpointError, match="data"):
            train_dataset(config, *parts)
    finally:
        data.write_text(kept)


def test_what_cannot_be_trained_on_is_refused_before_a_directory_is_made(tmp_path, parts):
    config = sft_config(tmp_path, "run")
    small = replace(config, gradients=replace(config.gradients, row_tokens=32))
    with pytest.raises(
        ValueError, match=r"gradients\.row_tokens: example \d has \d+ tokens, and a row 32"
    ):
        train_dataset(small, *parts)
    with pytest.raises(DataError, match=r"nowhere\.jsonl: no such file"):
        train_dataset(replace(config, data="nowhere.jsonl"), *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (
            SftConfig,
            {"gradients": {"plan": "segments"}},
            r"gradients\.plan: expected \"packed\" with",
        ),
        (
            SftConfig,
            {"gradients": {"attention": "cudnn"}},
            r"gradients\.attention: expected auto or",
        ),
        (
            SftConfig,
            {"checkpoint": {"keep_best": True}},
            r"checkpoint\.keep_best: unknown field of SavesConfig",
        ),
        (SftConfig, {"group_size": 2}, r"group_size: unknown field of SftConfig; it has"),
        (
            DpoConfig,
            {"gradients": {"packing": False, "rows": 3}},
            r"gradients\.rows: expected an even",
        ),
        (DpoConfig, {"beta": 0}, r"beta: expected a positive number"),
    ],
)
def test_configurations_that_make_no_sense(tmp_path, kind, fields, message):
    make = {SftConfig: sft_config, DpoConfig: dpo_config}[kind]
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, "run", **fields)


def test_shipped_experiments_are_commands(monkeypatch, capsys):
    from mintjax.cli import main

    started = []
    monkeypatch.setattr(
        mintjax.train.dataset_loop, "run_dataset", lambda config, overwrite: started.append(config)
    )
    assert main(["sft", "sft_count_down", "steps=3"]) == 0
    assert main(["dpo", "dpo_count_down", "--beta", "0.2"]) == 0
    assert started == [
        load_config("sft_count_down", ["steps=3"], SftConfig),
        load_config("dpo_count_down", ["beta=0.2"], DpoConfig),
    ]
    assert main(["dpo", "--help"]) == 0
    assert "beta: float = 0.1" in capsys.readouterr().out
