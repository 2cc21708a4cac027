"""The tokenizer rebuilt from GGUF gives the official one's ids."""

import json

import pytest

from mintjax import load_tokenizer
from mintjax.weights.gguf_tokenizer import gguf_tokenizer
from tests.layout import ROOT


def test_ids_equal_the_official_tokenizer():
    tokenizer = load_tokenizer("smollm2-135m-instruct")
    golden = json.loads((ROOT / "tests" / "golden" / "smollm2_texts.json").read_text())
    assert len(golden) == 400
    for line in golden:
        ids = tokenizer.encode(line["text"]).ids
        assert ids == line["ids"], line["text"]
        assert tokenizer.decode(ids, skip_special_tokens=False) == line["text"]


FIELDS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<s>", "<i>", "a", "b", "ab", "1"],
    "tokenizer.ggml.token_type": [3, 4, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
}


def test_control_and_user_defined_tokens():
    tokenizer = gguf_tokenizer(FIELDS, "m")
    assert tokenizer.encode("ab<s>b11<i>a").ids == [4, 0, 3, 5, 5, 1, 2]
    special = {i: token.special for i, token in tokenizer.get_added_tokens_decoder().items()}
    assert special == {0: True, 1: False}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.pre": "llama-bpe"}, "'llama-bpe'"),
        ({"tokenizer.ggml.model": "llama"}, "'llama' with 'smollm'"),
    ],
)
def test_other_kinds_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        gguf_tokenizer(FIELDS | change, "m")
