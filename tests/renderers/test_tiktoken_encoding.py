"""An encoding of tiktoken gives what the same vocabulary gives as a fast tokenizer."""

import gc
import json
import pickle
from functools import cache
from random import Random

import pytest
import tiktoken
from tokenizers import Tokenizer as Fast

from mintjax.renderers import RenderError, get_renderer
from mintjax.renderers.tokenizer import _adapted, adapt
from tests.assets import vocabulary
from tests.conversations import FRAGMENTS, conversation, tool
from tests.families import FAMILIES

CONVERSATIONS = 30
SMALL = {bytes([byte]): byte for byte in range(256)}


def encoding_of(fast: Fast) -> tiktoken.Encoding:
    """The same vocabulary in tiktoken's form: ranks of byte strings, a pattern, special tokens."""
    written = json.loads(fast.to_str())
    bytes_of = byte_letters()
    ranks = {
        bytes(bytes_of[letter] for letter in token): rank
        for token, rank in written["model"]["vocab"].items()
    }
    (pattern,) = (
        step["pattern"]["Regex"]
        for step in written["pre_tokenizer"]["pretokenizers"]
        if step["type"] == "Split"
    )
    special = {token["content"]: token["id"] for token in written["added_tokens"]}
    return tiktoken.Encoding("kimi", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


def byte_letters() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


@cache
def kimi() -> tiktoken.Encoding:
    return encoding_of(vocabulary("kimi-k2"))


def test_conversations_have_the_same_ids():
    family = FAMILIES["kimi_k2"]
    renderers = [get_renderer("kimi_k2", one) for one in (kimi(), vocabulary("kimi-k2"))]
    for seed in range(CONVERSATIONS):
        random = Random(seed)
        messages, tools = conversation(random, family), [tool(random)]
        one, two = (renderer.render(messages, tools=tools) for renderer in renderers)
        assert list(one) == list(two)
        assert one.source.tolist() == two.source.tolist()
        assert one.message.tolist() == two.message.tolist()
    assert renderers[0].stop_tokens() == renderers[1].stop_tokens()


def test_text_comes_back_and_control_tokens_are_out_of_its_reach():
    ours, fast = adapt(kimi()), adapt(vocabulary("kimi-k2"))
    assert (ours.control, ours.size, ours.bos, ours.ends) == (
        fast.control,
        fast.size,
        fast.bos,
        fast.ends,
    )
    for text in (*FRAGMENTS, *ours.control, "👩‍👩‍👧‍👦 日本\r\n" * 3):
        ids, spans = ours.encode(text)
        assert (ids, [tuple(span) for span in spans]) == fast.encode(text)
        assert ours.lost(text, ids, spans) is None
        assert ours.decode(ids) == text
        for cut in range(len(ids)):
            assert ours.decode(ids[:cut]) == fast.decode(ids[:cut])
    assert ours.decode([6023, ours.size + 5, ours.control["<|im_end|>"]]).endswith(
        "\ufffd<|im_end|>"
    )


def test_ids_that_no_token_has_show_as_a_replacement():
    gap = tiktoken.Encoding(
        "gap", pat_str=r".", mergeable_ranks=SMALL, special_tokens={"<|end|>": 300}
    )
    assert adapt(gap).decode([97, 270, 300, 0xE2, 0x82]) == "a\ufffd<|end|>\ufffd"
    assert adapt(gap).encode("a😀") == ([97, *"😀".encode()], [(0, 1), *[(1, 2)] * 4])
    with pytest.raises(RenderError, match=r"needs the control tokens <\|im_start\|>"):
        get_renderer("chatml", gap)


def test_one_view_an_encoding_and_no_leak():
    one = tiktoken.Encoding("one", pat_str=r".", mergeable_ranks=SMALL, special_tokens={})
    two = tiktoken.Encoding("two", pat_str=r"..?", mergeable_ranks=SMALL, special_tokens={})
    view = adapt(one)
    assert adapt(one) is view
    assert view.fingerprint != adapt(two).fingerprint
    assert pickle.loads(pickle.dumps(view)).encode("é") == view.encode("é")
    count = len(_adapted)
    del one, two
    gc.collect()
    assert len(_adapted) == count - 2
    assert view.encode("a")[0] == [97]
