"""A reply read while it grows: whole characters in their channels, and in the end what `parse` says."""

from itertools import groupby
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mintjax.renderers import Delta, RenderError, get_renderer
from tests.assets import vocabulary
from tests.conversations import conversation
from tests.families import FAMILIES
from tests.renderers.conftest import speaker

EXAMPLES = 25
CONVERSATIONS = 25
FAMILY = "👩‍👩‍👧‍👦"


def told(deltas):
    """Deltas with neighbours of one channel joined."""
    return [
        (channel, "".join(delta.text for delta in run))
        for channel, run in groupby(deltas, lambda delta: delta.channel)
    ]


def fed(renderer, *chunks, prompt=None):
    """The deltas of a reply that comes in chunks, and what it says."""
    stream = renderer.stream(prompt=prompt)
    deltas = [delta for chunk in chunks for delta in stream.feed(chunk)]
    deltas += stream.feed([], last=True)
    return deltas, stream.finish()


@st.composite
def chunked(draw, renderer):
    """Ids of a reply, noise and text and control tokens among each other, cut into chunks."""
    view = renderer.tokenizer
    stops = renderer.stop_tokens()
    part = st.one_of(
        st.lists(st.integers(0, view.size + 300), max_size=4),
        st.sampled_from((FAMILY, "\n\nUs", "é", "\ufffd", "x")).map(
            lambda text: view.encode(text)[0]
        ),
        st.text(max_size=6).map(lambda text: view.encode(text)[0]),
        st.sampled_from(renderer.form.controls or ("",)).map(
            lambda name: [view.control[name]] if name else []
        ),
    )
    ids = [token for some in draw(st.lists(part, max_size=8)) for token in some]
    ids = [token for token in ids if token not in stops]
    ids += draw(st.sampled_from(([], *([stop] for stop in stops))))
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    return ids, [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_any_chunks_say_the_same(name, data):
    renderer = speaker(name)
    ids, chunks = data.draw(chunked(renderer))
    try:
        parsed = renderer.parse(ids)
    except RenderError:
        return  # noise that spells the text that ends a reply, and goes on
    whole, said = fed(renderer, ids)
    assert (said.message, said.stop) == (parsed.message, parsed.stop)
    for parts in (chunks, [[token] for token in ids]):
        deltas, again = fed(renderer, *parts)
        assert told(deltas) == told(whole)
        assert again.message == parsed.message
    assert all(delta.text and delta.channel != "header" for delta in whole)


def test_every_family_says_in_deltas_what_it_says_in_the_end(renderer):
    compared = 0
    for seed in range(CONVERSATIONS):
        messages = conversation(Random(seed), FAMILIES[renderer.name])
        for number, message in enumerate(messages):
            before = messages[:number]
            if message["role"] != "assistant" or not before or before[-1]["role"] == "assistant":
                continue
            prompt = renderer.render(before)
            (example,) = renderer.supervised(messages[: number + 1])
            ids = example.ids[example.weights > 0]
            deltas, parsed = fed(renderer, *np.array_split(ids, 3), prompt=prompt)
            text = dict.fromkeys(("content", "reasoning", "tool_call"), "")
            for delta in deltas:
                text[delta.channel] += delta.text
            # Deltas hold the line breaks that the format puts around the parts of a reply.
            assert parsed.message["content"].strip() in text["content"]
            assert (parsed.message.get("reasoning_content") or "").strip() in text["reasoning"]
            if not parsed.attempts:
                assert not text["tool_call"].strip()
            for name in renderer.form.controls:
                spelled = name in f"{message['content']}{message.get('reasoning_content')}"
                assert spelled or not any(name in delta.text for delta in deltas)
            compared += 1
    assert compared > CONVERSATIONS // 3


def test_a_character_comes_whole_or_not_at_all():
    renderer = get_renderer("qwen3_instruct", vocabulary("qwen3"))
    ids = renderer.tokenizer.encode(f"a{FAMILY}")[0]
    stream = renderer.stream()
    texts = ["".join(delta.text for delta in stream.feed([token])) for token in ids]
    assert "".join(texts) == f"a{FAMILY}" and "" in texts
    assert "\ufffd" not in "".join(texts)
    cut = renderer.stream()
    woman = len(renderer.tokenizer.encode("a👩")[0])
    assert cut.feed(ids[: woman + 1]) == [Delta("content", "a👩")]
    assert cut.feed([], last=True) == [Delta("content", "\ufffd")]
    assert cut.finish().stop == "length"


def test_channels_of_a_reply():
    renderer = get_renderer("qwen3", vocabulary("qwen3"))
    call = {"function": {"name": "f", "arguments": "{}"}}
    reply = {"reasoning_content": "Hm.", "content": "Well.", "tool_calls": [call]}
    (example,) = renderer.supervised(
        [{"role": "user", "content": "hi"}, {"role": "assistant", **reply}]
    )
    deltas, parsed = fed(renderer, example.ids[example.weights > 0])
    assert deltas == [
        Delta("reasoning", "\nHm.\n"),
        Delta("content", "\n\nWell.\n"),
        Delta("tool_call", '\n{"name": "f", "arguments": {}}\n'),
    ]
    assert parsed.message["reasoning_content"] == "Hm."


def test_a_stop_that_is_a_text_is_held_back_until_it_is_known():
    renderer = get_renderer("role_colon", vocabulary("smollm2"))
    encode = renderer.tokenizer.encode
    stream = renderer.stream()
    assert stream.feed(encode(" yo\n\n")[0]) == [Delta("content", " yo")]
    assert stream.feed(encode("Us")[0]) == []
    assert stream.feed(encode("ed it")[0]) == [Delta("content", "\n\nUsed it")]
    assert stream.feed(encode("\n\nUser:")[0]) == []
    assert stream.finish().stop == "stop"
    with pytest.raises(RenderError, match="reply: 1 ids follow the stop"):
        stream.feed([1])


def test_ids_after_a_stop_token_are_refused():
    renderer = get_renderer("qwen3_instruct", vocabulary("qwen3"))
    stream = renderer.stream()
    stream.feed([6023, 151645])
    with pytest.raises(RenderError, match="reply: 2 ids follow the stop"):
        stream.feed([1, 2])
