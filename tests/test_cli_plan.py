"""``mintjax plan`` on a configuration without weights: what it prints is what the estimates say."""

import json

import jax.numpy as jnp
import pytest

import mintjax.train.free_memory
from mintjax.adapters import LoraConfig
from mintjax.cli import main
from mintjax.loading import load_model_config
from mintjax.train.byte_sizes import show_bytes
from mintjax.train.config_files import load_config
from mintjax.train.plan_choice import longest_row, plan_needs
from mintjax.train.plan_memory import Shapes, adapter_bytes, base_bytes

FREE = 2**26
MODEL = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """An experiment on a directory that holds config.json alone, on a machine of a given memory."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(mintjax.train.free_memory, "free_memory", lambda: (FREE, "free here"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    file = tmp_path / "run.yaml"
    file.write_text(
        f"name: demo\nmodel: {{name: {tmp_path / 'model'}, rank: 4}}\n"
        "environment: {type: count_down}\nrollout: {capacity: 200}\n"
    )
    return file


def test_it_prints_every_plan_with_its_need_and_the_one_that_runs(experiment, capsys):
    assert main(["plan", str(experiment)]) == 0
    printed = capsys.readouterr().out
    config = load_config(experiment)
    model, dtype = load_model_config(config.model.name)
    assert dtype == jnp.bfloat16
    shapes = Shapes(model, LoraConfig(rank=4), "bfloat16")
    needs = plan_needs(config, shapes)
    names = tuple(f"│ {need.name} " for need in needs)
    lines = [line for line in printed.splitlines() if line.startswith(names)]
    for need, line in zip(needs, lines, strict=True):
        assert line.startswith(f"│ {need.name} ") and f" {need.forwards} " in line
        assert show_bytes(need.bytes(200)) in line
        assert (f" {need.plan.segment} " in line) == (need.plan.kind != "packed")
    assert show_bytes(base_bytes(shapes)) in printed
    assert "rollout's cache, 40 rows of 256 tokens at most" in printed, (
        "8 groups of 4 and their prompts"
    )
    left = FREE - base_bytes(shapes) - 3 * adapter_bytes(shapes)
    assert f"for gradients: {show_bytes(left)}, what is free here less weights" in printed
    assert "3 to decode, one a cache of 64, 128, 256 tokens" in printed
    assert "15 to extend, one a cache and a segment of 16, 32, 64, 128, 256 tokens" in printed
    assert "7 for gradients, one a row of 32, 64, 96, 128, 160, 192, 224 tokens" in printed
    assert printed.splitlines()[-1].startswith(
        "packed: the fastest that fits; 8 rows of 200 tokens"
    )


def test_a_length_and_a_memory_change_what_runs(experiment, capsys):
    arguments = [str(experiment), "--tokens", "500", "gradients.memory=12MiB"]
    assert main(["plan", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "longest episode: 500 tokens" in printed
    assert "for gradients: 12.0 MiB, by gradients.memory" in printed
    name = printed.splitlines()[-1].split(":")[0]
    assert name not in ("", "packed")
    assert main(["plan", str(experiment), "--tokens=9999"]) == 0
    assert "longest episode: 512 tokens" in capsys.readouterr().out, "the model's context"


def test_a_named_plan_is_told_as_such(experiment, capsys):
    assert main(["plan", str(experiment), "gradients.plan=segments"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "segments, 128 tokens a segment: gradients.plan names it"
    )


def test_where_nothing_fits_the_tables_are_there_and_the_error(experiment, capsys):
    assert main(["plan", str(experiment), "gradients.memory=1KiB"]) == 1
    captured = capsys.readouterr()
    assert "segments_remat" in captured.out
    assert captured.err.startswith("mintjax: error: gradients.memory: the plan that needs least")


@pytest.mark.parametrize(
    "arguments", [["--tokens"], ["--tokens", "x"], ["--tokens=0"], ["--tokens=1", "--tokens=2"]]
)
def test_a_length_that_is_none_is_refused(experiment, capsys, arguments):
    assert main(["plan", str(experiment), *arguments]) == 2
    assert capsys.readouterr().err.startswith("mintjax: error: --tokens: expected one number")


def test_a_configuration_comes_first(capsys):
    assert main(["plan", "steps=1"]) == 2
    assert "CONFIG.yaml: expected a file first" in capsys.readouterr().err


def test_a_model_that_does_not_say_its_dtype_is_asked_for_it(experiment, tmp_path, capsys):
    fields = {key: value for key, value in MODEL.items() if key != "torch_dtype"}
    (tmp_path / "model" / "config.json").write_text(json.dumps(fields))
    assert main(["plan", str(experiment)]) == 1
    assert "it gives no dtype" in capsys.readouterr().err
    assert main(["plan", str(experiment), "model.dtype=float32"]) == 0
    assert "2 layers, float32" in capsys.readouterr().out


def test_a_gguf_files_configuration_is_read_without_its_weights():
    config, dtype = load_model_config("smollm2-135m-instruct")
    assert (config.num_layers, config.hidden_size, config.tied_head) == (30, 576, True)
    assert dtype == jnp.float32
    assert longest_row(load_config("count_down"), config) == 192
