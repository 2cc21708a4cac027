"""Weights that a checkpoint has in several tensors, or several in one."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mintjax.models.dense import weight_shapes
from mintjax.models.sharding import weight_key
from mintjax.weights.safetensors_directory import load_directory
from mintjax.weights.stored import Stored
from mintjax.weights.tensors import assemble_base
from tests.tiny import CONFIG, EXPERTS
from tests.transformers_models import saved, tiny_model


@pytest.fixture(scope="module")
def model():
    return tiny_model("qwen3_moe")


@pytest.fixture
def copy(model, tmp_path):
    """A saved model whose tensors a test may change before it loads them."""
    tensors = load_file(saved(model, tmp_path) / "model.safetensors")

    def load():
        save_file(tensors, tmp_path / "model.safetensors")
        return load_directory(tmp_path, "copy")

    load.tensors = tensors
    return load


def test_each_expert_is_at_its_place(model, copy):
    _, base = copy()
    experts = model.model.layers[0].mlp.experts
    packed = experts.gate_up_proj.detach().numpy()
    layer = base["layers"][0]
    np.testing.assert_array_equal(layer["experts_gate"], packed[:, :24])
    np.testing.assert_array_equal(layer["experts_up"], packed[:, 24:])
    np.testing.assert_array_equal(layer["experts_down"], experts.down_proj.detach().numpy())
    assert set(base["layers"][1]) >= {"gate", "up", "down"}, "the dense layer"


def test_both_layouts_are_one(model, copy, tmp_path):
    model.save_pretrained(tmp_path / "packed", save_original_format=False)
    packed = load_file(tmp_path / "packed" / "model.safetensors")
    assert "model.layers.0.mlp.experts.gate_up_proj" in packed
    (config, base), (other_config, other) = copy(), load_directory(tmp_path / "packed", "copy")
    assert config == other_config
    jax.tree.map(np.testing.assert_array_equal, base, other)


PREFIX = "model.layers.0.mlp.experts"


def test_a_missing_expert_is_named(copy):
    del copy.tensors[f"{PREFIX}.5.up_proj.weight"]
    with pytest.raises(ValueError, match=r"missing model\.layers\.0\.mlp\.experts\.5\.up_proj"):
        copy()


def test_an_expert_too_many_is_named(copy):
    copy.tensors[f"{PREFIX}.8.up_proj.weight"] = copy.tensors[f"{PREFIX}.0.up_proj.weight"]
    with pytest.raises(ValueError, match=r"unexpected .*experts\.8\.up_proj"):
        copy()


def test_an_expert_of_another_shape_is_named(copy):
    name = f"{PREFIX}.3.down_proj.weight"
    copy.tensors[name] = copy.tensors[name][:, :5].copy()
    with pytest.raises(ValueError, match=r"experts\.3\.down_proj.*expected \(48, 24\).*\(48, 5\)"):
        copy()


def test_experts_of_a_wrong_shape_are_named(copy):
    for expert in range(8):
        name = f"{PREFIX}.{expert}.down_proj.weight"
        copy.tensors[name] = copy.tensors[name][:, :5].copy()
    with pytest.raises(ValueError, match=r"experts\.\*\.down_proj.*expected \(8, 48, 24\)"):
        copy()


def test_a_correction_stays_float32_among_bfloat16_weights():
    routing = replace(EXPERTS.routing, kind="sigmoid")
    config = replace(CONFIG, experts=replace(EXPERTS, routing=routing))
    shapes = weight_shapes(config, jnp.bfloat16)
    correction = 1 + np.arange(8, dtype=np.float32) * 2**-20  # one number in bfloat16
    arrays = {}

    def fill(path, shape):
        key = weight_key(path)
        arrays[key] = np.zeros(shape.shape, ml_dtypes.bfloat16)
        if key.endswith("router_correction"):
            assert shape.dtype == jnp.float32
            arrays[key] = correction

    jax.tree_util.tree_map_with_path(fill, shapes)

    def places(key):
        return (Stored(key),)

    for dtype in (None, "bfloat16"):
        base = assemble_base(config, places, arrays, arrays.get, source="memory", dtype=dtype)
        np.testing.assert_array_equal(base["layers"][0].pop("router_correction"), correction)
        base["layers"][1].pop("router_correction")
        assert {leaf.dtype for leaf in jax.tree.leaves(base)} == {jnp.dtype(jnp.bfloat16)}
