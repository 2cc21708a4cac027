"""Hugging Face directories: one file or shards, and errors that name what is wrong."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mintjax.weights.safetensors_directory import load_directory
from tests.transformers_models import saved, tiny_model


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return saved(tiny_model("llama"), tmp_path_factory.mktemp("whole"))


@pytest.fixture
def copy(whole, tmp_path):
    """A directory of its own whose tensors and configuration a test may change before it loads them."""
    tensors = load_file(whole / "model.safetensors")
    config = json.loads((whole / "config.json").read_text())

    def load(**arguments):
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(config))
        return load_directory(tmp_path, "copy", **arguments)

    load.tensors, load.config, load.path = tensors, config, tmp_path
    return load


def shard(copy, homes):
    """Writes the tensors into two files and an index that says where each is."""
    copy()
    (copy.path / "model.safetensors").unlink()
    for file in set(homes.values()):
        part = {name: copy.tensors[name] for name, home in homes.items() if home == file}
        save_file(part, copy.path / file)
    index = {"metadata": {}, "weight_map": homes}
    (copy.path / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_equal_one_file(copy):
    _, expected = copy()
    names = sorted(copy.tensors)
    shard(copy, {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)})
    config, base = load_directory(copy.path, "copy")
    assert config.name == "copy"
    assert jax.tree.structure(base) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, base, expected)


def test_missing_shard_is_named(copy):
    shard(copy, dict.fromkeys(copy.tensors, "part.safetensors"))
    (copy.path / "part.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"part\.safetensors.*names this shard"):
        load_directory(copy.path, "copy")


def test_shard_without_its_tensor_is_named(copy):
    homes = dict.fromkeys(copy.tensors, "part.safetensors")
    shard(copy, homes)
    part = {name: copy.tensors[name] for name in homes if name != "lm_head.weight"}
    save_file(part, copy.path / "part.safetensors")
    with pytest.raises(ValueError, match=r"says that it holds.*lm_head\.weight"):
        load_directory(copy.path, "copy")


def test_missing_and_unexpected_tensors_are_named(copy):
    copy.tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(48, np.float32)
    del copy.tensors["model.norm.weight"]
    with pytest.raises(ValueError, match=r"missing model\.norm.*unexpected .*q_proj\.bias"):
        copy()


def test_stored_rotary_frequencies_are_no_weight(copy):
    copy.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(6, np.float32)
    copy()


def test_wrong_shape_is_named(copy):
    copy.tensors["model.layers.1.mlp.up_proj.weight"] = np.zeros((80, 47), np.float32)
    with pytest.raises(ValueError, match=r"up_proj.*expected \(80, 48\), got \(80, 47\)"):
        copy()


def test_dtypes(copy):
    copy.tensors["model.norm.weight"] = copy.tensors["model.norm.weight"].astype(np.float16)
    with pytest.raises(ValueError, match=r"more than one dtype.*choose one by dtype="):
        copy()
    assert {str(x.dtype) for x in jax.tree.leaves(copy(dtype="bfloat16")[1])} == {"bfloat16"}
    copy.tensors["model.norm.weight"] = np.ones(48, np.int8)
    with pytest.raises(ValueError, match=r"model\.norm\.weight: expected one of .* got int8"):
        copy(dtype="float32")


def test_tied_head_that_is_stored_must_be_the_embedding(copy):
    copy.config["tie_word_embeddings"] = True
    with pytest.raises(ValueError, match=r"lm_head\.weight is not model\.embed_tokens"):
        copy()
    copy.tensors["lm_head.weight"] = copy.tensors["model.embed_tokens.weight"].copy()
    assert "unembed" not in copy()[1]


def test_half_a_file_is_refused(copy):
    copy()
    file = copy.path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load_directory(copy.path, "copy")


def test_what_is_not_there_is_named(copy, tmp_path):
    copy()
    (copy.path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"expected model\.safetensors or"):
        load_directory(copy.path, "copy")
    (copy.path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not JSON"):
        load_directory(copy.path, "copy")
    (copy.path / "config.json").rename(copy.path / "other.json")
    with pytest.raises(FileNotFoundError, match=r"config\.json: no such file.*holds other\.json"):
        load_directory(copy.path, "copy")
