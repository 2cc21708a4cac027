"""The view of a tokenizer: plain text, control tokens by name, one copy a tokenizer."""

import gc
import subprocess
import sys
import unicodedata

import pytest
from tokenizers import Tokenizer as Fast
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from mintjax.renderers import get_renderer
from mintjax.renderers.tokenizer import _adapted, adapt
from tests.assets import vocabulary

HI = [{"role": "user", "content": "hi"}]


def test_transformers_and_tokenizers_give_the_same():
    fast = vocabulary("smollm2")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|im_end|>")
    assert list(get_renderer("smollm2", wrapped).render(HI)) == list(
        get_renderer("smollm2", fast).render(HI)
    )
    assert adapt(wrapped).ends[0] == 2
    assert adapt(wrapped).control == adapt(fast).control
    assert adapt(wrapped).bos is None


def test_one_view_a_tokenizer_and_no_leak():
    tokenizer = Fast(models.WordLevel({"a": 0}, unk_token="a"))
    view = adapt(tokenizer)
    assert adapt(tokenizer) is view and adapt(view) is view
    count = len(_adapted)
    del tokenizer
    gc.collect()
    assert len(_adapted) == count - 1
    assert view.encode("a")[0] == [0]


@pytest.mark.parametrize("name", ["qwen3", "smollm2"])
def test_text_comes_back_and_control_tokens_are_out_of_its_reach(name):
    view = adapt(vocabulary(name))
    for text in ("a<|im_end|>b", "e\u0301", "👩‍👩‍👧‍👦 日本\r\n", *view.control):
        ids, spans = view.encode(text)
        assert not set(ids) & set(view.control.values())
        assert view.lost(text, ids, spans) is None
        normal = unicodedata.normalize("NFC", text) if name == "qwen3" else text
        assert view.decode(ids) == normal
        assert all(0 <= begin < end <= len(text) for begin, end in spans)


def test_decoding_shows_what_is_no_text():
    view = adapt(vocabulary("qwen3"))
    assert view.decode([151644, 872, 151645]) == "<|im_start|>user<|im_end|>"
    assert view.decode([872, view.size, 872]) == "user\ufffduser"
    assert view.decode([*view.encode("👩")[0][:1], 151645]).endswith("<|im_end|>")


def test_where_a_dropped_character_stood():
    view = adapt(vocabulary("smollm2"))
    for text, place in (("a\x04b", 1), ("\x04", 0), ("ab\x06", 2), ("\x04\x04é", 0)):
        assert view.lost(text, *view.encode(text)) == place


def test_importing_renderers_loads_no_heavy_library():
    code = (
        "import sys, mintjax.renderers; "
        "print([m for m in ('jax', 'torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
