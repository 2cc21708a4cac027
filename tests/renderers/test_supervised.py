"""Supervised renderings: every trained reply stands after this renderer's own generation prompt."""

from random import Random

import numpy as np
import pytest

from mintjax.renderers import RenderError, TrainOnWhat, get_renderer
from tests.assets import vocabulary
from tests.conversations import conversation, tool
from tests.families import FAMILIES
from tests.renderers.conftest import speaker

CONVERSATIONS = 40
SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "hi"}
YO = {"role": "assistant", "content": "yo"}
BO = {"role": "assistant", "content": "bo"}


def runs(example):
    """The trained ids of each message of an example, and where they begin."""
    for number in np.unique(example.message[example.weights > 0]):
        places = np.flatnonzero((example.message == number) & (example.weights > 0))
        assert places.tolist() == list(range(places[0], places[-1] + 1))
        yield int(number), int(places[0]), example.ids[places].tolist()


def after(messages, replies):
    """The messages that follow replies."""
    return [messages[number + 1] for number in replies if number + 1 < len(messages)]


def without_stop(renderer, ids):
    """Which stop ends a reply can depend on what follows it."""
    return ids[:-1] if ids and ids[-1] in renderer.stop_tokens() else ids


@pytest.mark.parametrize("history", ["template", "keep"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_reply_trains_once_after_its_own_generation_prompt(name, history):
    renderer = speaker(name, history=history)
    keep = speaker(name, history="keep")
    prompts = 0
    for seed in range(CONVERSATIONS):
        random = Random(seed)
        family = FAMILIES[name]
        tools = [tool(random)] if family.tools and random.random() < 0.5 else None
        messages = conversation(random, family)
        replies = [n for n, one in enumerate(messages) if one["role"] == "assistant"]
        if not replies:
            continue
        examples = renderer.supervised(messages, tools=tools, train_on="all_assistant_messages")
        kept = keep.render(messages, tools=tools)
        trained = []
        for example in examples:
            for number, start, ids in runs(example):
                trained.append(number)
                if number and messages[number - 1]["role"] != "assistant":
                    prompt = renderer.render(messages[:number], tools=tools)
                    assert example.ids[:start].tolist() == list(prompt)
                    prompts += 1
                assert renderer.parse(ids).stop in ("stop", "malformed")
                said = kept.ids[(kept.message == number) & kept.sampled].tolist()
                assert without_stop(renderer, ids) == without_stop(renderer, said)
            assert set(np.unique(example.weights)) <= {0.0, 1.0}
            assert example.weights[-1] == 1
        assert sorted(trained) == replies
        assert not any(
            one is not two and list(one) == list(two)[: len(one)]
            for one in examples
            for two in examples
        )
        # A stop that is the next role's marker cannot stand before every role.
        asked = all(one["role"] in ("user", "tool") for one in after(messages, replies))
        if history == "keep" and asked:
            assert len(examples) == 1
    assert prompts > CONVERSATIONS // 3


def said(renderer, example):
    return renderer.tokenizer.decode(example.ids[example.weights > 0])


@pytest.fixture
def qwen():
    return get_renderer("qwen3_instruct", vocabulary("qwen3"))


@pytest.mark.parametrize(
    ("train_on", "expected"),
    [
        ("last_assistant_message", "bo<|im_end|>"),
        ("last_assistant_turn", "bo<|im_end|>"),
        ("all_assistant_messages", "yo<|im_end|>bo<|im_end|>"),
        (
            "all_messages",
            "Be brief.<|im_end|>\nhi<|im_end|>\nyo<|im_end|>hi<|im_end|>\nbo<|im_end|>",
        ),
        ("all_user_and_system_messages", "Be brief.<|im_end|>\nhi<|im_end|>\nhi<|im_end|>\n"),
    ],
)
def test_what_trains(qwen, train_on, expected):
    (example,) = qwen.supervised([SYSTEM, ASK, YO, ASK, BO], train_on=train_on)
    assert said(qwen, example) == expected
    assert example.weights.dtype == np.float32
    # `sampled` stays what it is, whatever trains.
    assert qwen.tokenizer.decode(example.ids[example.sampled]).startswith("yo<|im_end|>")


def test_all_tokens_are_all(qwen):
    (example,) = qwen.supervised([SYSTEM, ASK, YO, ASK, BO], train_on=TrainOnWhat.ALL_TOKENS)
    assert example.weights.all()
    assert list(example) == list(qwen.render([SYSTEM, ASK, YO, ASK, BO]))[:-1]  # the last newline
    (open_end,) = qwen.supervised([ASK, YO, ASK], train_on="all_tokens")
    # No generation prompt: nobody said it.
    assert list(open_end) == list(qwen.render([ASK, YO, ASK]))[:-3]


def test_a_turn_is_all_replies_after_the_last_user_message(qwen):
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
    }
    messages = [ASK, YO, ASK, call, {"role": "tool", "content": "ok"}, BO]
    (turn,) = qwen.supervised(messages, train_on="last_assistant_turn")
    assert [number for number, _, _ in runs(turn)] == [3, 5]
    (last,) = qwen.supervised(messages)
    assert [number for number, _, _ in runs(last)] == [5]


def test_customized_reads_the_key_trainable(qwen):
    marked = [ASK | {"trainable": True}, YO | {"trainable": False}, BO | {"trainable": True}]
    (example,) = qwen.supervised(marked, train_on="customized")
    assert said(qwen, example) == "hi<|im_end|>\nbo<|im_end|>"
    with pytest.raises(RenderError, match=r"message 1 \(assistant\).* needs the key trainable"):
        qwen.supervised([marked[0], YO], train_on="customized")
    with pytest.raises(RenderError, match=r"message 0 \(user\): trainable is read by"):
        qwen.supervised(marked, train_on="all_messages")


def test_what_cannot_be_chosen(qwen):
    with pytest.raises(
        RenderError, match=r"'last_assistant_turn' chooses none .* assistant, user;"
    ):
        qwen.supervised([YO, ASK], train_on="last_assistant_turn")
    with pytest.raises(
        RenderError, match=r"train_on: expected one of last_assistant_message, .*'x'"
    ):
        qwen.supervised([ASK, YO], train_on="x")
    with pytest.raises(RenderError, match="at least one message"):
        qwen.supervised([])


def test_a_reply_that_the_template_writes_otherwise_gets_a_rendering_of_its_own(qwen):
    # The template merges the newline that the first reply begins with into its header.
    first, second = qwen.supervised(
        [ASK, {"role": "assistant", "content": "\nyo"}, ASK, BO], train_on="all_messages"
    )
    assert said(qwen, first) == "hi<|im_end|>\n\nyo<|im_end|>"
    assert said(qwen, second) == "hi<|im_end|>\nbo<|im_end|>"
    # No token trains twice, and the history is the template's.
    assert [number for number, _, _ in runs(first)] == [0, 1]
    assert [number for number, _, _ in runs(second)] == [2, 3]
    prompt = qwen.render([ASK, {"role": "assistant", "content": "\nyo"}, ASK])
    assert list(second)[: len(prompt)] == list(prompt)


def test_reasoning_that_is_stripped_from_history():
    qwen = get_renderer("qwen3", vocabulary("qwen3"))
    thinks = YO | {"reasoning_content": "Hm."}
    call = {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}], **thinks}
    loop = [ASK, call, {"role": "tool", "content": "ok"}, thinks]
    examples = qwen.supervised([*loop, *loop], train_on="all_assistant_messages")
    # Inside a tool loop reasoning stays: one rendering for each user message.
    assert [[number for number, _, _ in runs(example)] for example in examples] == [[1, 3], [5, 7]]
    assert all(said(qwen, example).count("<think>\nHm.\n</think>") == 2 for example in examples)
    assert qwen.tokenizer.decode(examples[1]).count("Hm.") == 2
