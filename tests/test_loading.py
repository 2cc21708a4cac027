"""load_policy's adapter, and load_tokenizer on directories; parity tests hold the weights."""

import json

import jax
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models

from mintjax import load_policy, load_tokenizer
from tests.transformers_models import saved, tiny_model


def test_adapter_is_what_was_asked_for_and_of_the_seed(tmp_path):
    saved(tiny_model("llama"), tmp_path)
    policy = load_policy(tmp_path, rank=3, alpha=12, seed=5, train_attn=False, train_unembed=True)
    assert policy.config.name == str(tmp_path)
    assert int(policy.version) == 0 and policy.lora.scale == 4
    assert set(policy.adapter["layers"][0]) == {"gate", "up", "down"}
    assert policy.adapter["unembed"]["a"].shape == (3, 48)
    again, other = (
        load_policy(tmp_path, rank=3, train_attn=False, seed=seed).adapter["layers"][1]["up"]["a"]
        for seed in (5, 6)
    )
    np.testing.assert_array_equal(again, policy.adapter["layers"][1]["up"]["a"])
    assert (again != other).all()
    assert not any(layer["up"]["b"].any() for layer in policy.adapter["layers"])
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(policy))


@pytest.fixture
def directory(tmp_path):
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    tokenizer.add_tokens([AddedToken("<end>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize("content", [None, "<end>"])
def test_tokenizer_of_a_directory(directory, content):
    if content is not None:
        config = {"added_tokens_decoder": {"2": {"content": content}}}
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_tokenizer(directory).encode("ab<end>").ids == [0, 1, 2]


def test_two_files_of_different_tokenizers(directory):
    config = {"added_tokens_decoder": {"2": {"content": "<stop>"}}}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"id 2 to '<stop>', tokenizer\.json to '<end>'"):
        load_tokenizer(directory)


def test_directory_without_a_tokenizer(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json.*save_pretrained"):
        load_tokenizer(tmp_path)
