"""Weights of few bits equal what torch and transformers make of the same bits."""

import json

import jax
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from mintjax import load_policy
from mintjax.weights.scaled import from_blocks, from_groups, scaled_problems, unscaled
from tests.models.tiny_families import TINY_FAMILIES
from tests.transformers_models import saved, tiny_model

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
BLOCK = (16, 12)  # divides no size of the tiny model evenly, or both


def quantised(weight):
    """A matrix in float8 with a factor a block, and what the two stand for in bfloat16."""
    padded = [-(-size // step) for size, step in zip(weight.shape, BLOCK, strict=True)]
    scale = torch.empty(padded)
    small = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    whole = torch.empty(weight.shape, dtype=torch.bfloat16)
    for row in range(padded[0]):
        for column in range(padded[1]):
            here = tuple(
                slice(i * n, (i + 1) * n) for i, n in zip((row, column), BLOCK, strict=True)
            )
            scale[row, column] = weight[here].abs().max() / 448
            small[here] = (weight[here] / scale[row, column]).to(torch.float8_e4m3fn)
            whole[here] = (small[here].float() * scale[row, column]).bfloat16()
    return small, scale, whole


def directories(tmp_path, model, quantization, tensors, whole):
    """One with few bits, and one with what they stand for."""
    for name, content in (("few", tensors), ("whole", whole)):
        file = saved(model, tmp_path / name) / "config.json"
        save_file(content, tmp_path / name / "model.safetensors")
        fields = json.loads(file.read_text()) | {"dtype": "bfloat16"}
        fields |= {"quantization_config": quantization} if name == "few" else {}
        file.write_text(json.dumps(fields))
    return tmp_path / "few", tmp_path / "whole"


def same_base(few, whole):
    got, want = (load_policy(directory).base for directory in (few, whole))
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert got["layers"][1]["o"].dtype == want["layers"][1]["o"].dtype == "bfloat16"


@pytest.mark.parametrize("kind", ["deepseek_v3", "qwen3"])
def test_a_checkpoint_of_8_bits(kind, tmp_path):
    model = tiny_model(kind)
    tensors = load_file(saved(model, tmp_path / "f32") / "model.safetensors")
    few, whole = {}, {}
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight") or name.endswith("_with_mqa.weight"):
            few[name], few[f"{name}_scale_inv"], whole[name] = quantised(tensor)
        elif name.endswith("correction_bias"):
            few[name] = whole[name] = tensor
        else:
            few[name] = whole[name] = tensor.bfloat16()
    quantization = FP8 | {"weight_block_size": list(BLOCK)}
    same_base(*directories(tmp_path, model, quantization, few, whole))


def test_a_checkpoint_of_4_bits(tmp_path, monkeypatch):
    tiny = TINY_FAMILIES["gpt_oss"]
    sizes = tiny.sizes | {"hidden_size": 64, "intermediate_size": 96}
    monkeypatch.setitem(TINY_FAMILIES, "changed", tiny._replace(sizes=sizes))
    model = tiny_model("changed", rope=tiny.ropes[-1])
    rng = np.random.default_rng(0)
    few, whole = {}, {}
    for name, tensor in model.state_dict().items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, inner, outer = tensor.shape
            shape = experts, outer, inner // 32, 16
            blocks = torch.from_numpy(rng.integers(0, 256, shape, np.uint8))
            scales = torch.from_numpy(rng.integers(110, 130, shape[:-1], np.uint8))
            few |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            whole[name] = convert_moe_packed_tensors(blocks, scales).contiguous()
        else:
            few[name] = whole[name] = tensor.bfloat16()
    same_base(*directories(tmp_path, model, {"quant_method": "mxfp4"}, few, whole))


def test_scales_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"in blocks of \(2, 2\) needs \(2, 3\), got \(3, 2\)"):
        from_blocks(np.ones((4, 5)), np.ones((3, 2)), (2, 2))
    with pytest.raises(
        ValueError, match=r"scales: expected \(3, 2\), a number a group, got \(3,\)"
    ):
        from_groups(np.ones((3, 2, 16), np.uint8), np.ones(3, np.uint8))


@pytest.mark.parametrize(
    ("quantization", "there", "missing"),
    [
        (FP8 | {"weight_block_size": [8, 8]}, "w_scale_inv", "w"),
        ({"quant_method": "mxfp4"}, "w_blocks", "w_scales"),
    ],
)
def test_one_without_the_other_is_refused(quantization, there, missing):
    with pytest.raises(ValueError, match=f"{missing}: the checkpoint has {there}"):
        unscaled(quantization, {there, "norm"}, dict)


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"quant_method": "awq"}, "only quant_method 'fp8' or 'mxfp4'"),
        (8, "quantization_config=8"),
        (FP8, "weight_block_size=None (only two numbers)"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size=[128] (only two numbers)"),
        (FP8 | {"weight_block_size": [8, 8], "fmt": "e5m2"}, "fmt='e5m2' (only 'e4m3')"),
        (FP8 | {"weight_block_size": [8, 8], "activation_scheme": "static"}, "only 'dynamic'"),
        ({"quant_method": "mxfp4", "group_size": 16}, "group_size=16 (unknown)"),
    ],
)
def test_other_ways_are_refused_by_name(quantization, words):
    (problem,) = scaled_problems(quantization)
    assert words in problem
