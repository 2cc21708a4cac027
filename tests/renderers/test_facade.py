"""Tinker's names on this package's renderer."""

import pickle

import numpy as np
import pytest

from mintjax.renderers import ParseTermination, RenderError, TrainOnWhat, get_renderer
from tests.assets import vocabulary
from tests.renderers.conftest import speaker

ASK = {"role": "user", "content": "hi"}
YO = {"role": "assistant", "content": "yo"}
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Does it.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
    },
}
# Where the official template writes no turn otherwise once it is history.
EXTENDS = {
    "chatml",
    "deepseek_v3_0324",
    "deepseekv3",
    "gemma3",
    "glm4_5_disable_thinking",
    "kimi_k2_instruct",
    "llama3",
    "llama3_1",
    "llama3_2",
    "qwen2_5",
    "qwen3_instruct",
    "role_colon",
    "smollm2",
}


@pytest.fixture
def qwen():
    return get_renderer("qwen3_instruct", vocabulary("qwen3"))


def test_a_generation_prompt(qwen):
    prompt = qwen.build_generation_prompt([ASK], prefill="Sure")
    assert prompt.to_ints() == list(qwen.render([ASK], prefill="Sure"))
    with pytest.raises(RenderError, match=r"message 1 \(assistant\): it is the last"):
        qwen.build_generation_prompt([ASK, YO])
    with pytest.raises(RenderError, match="role: expected 'assistant', got 'user'"):
        qwen.build_generation_prompt([ASK], role="user")


def test_supervised_examples(qwen):
    ids, weights = qwen.build_supervised_example([ASK, YO])
    (expected,) = qwen.supervised([ASK, YO])
    assert ids.to_ints() == list(expected)
    assert weights.dtype == np.float32 and weights.tolist() == expected.weights.tolist()
    every = TrainOnWhat.ALL_ASSISTANT_MESSAGES
    newline = {"role": "assistant", "content": "\nyo"}  # which the template merges into the header
    examples = qwen.build_supervised_examples([ASK, newline, ASK, YO], train_on_what=every)
    assert len(examples) == 2
    with pytest.raises(RenderError, match="'all_assistant_messages' takes 2 renderings"):
        qwen.build_supervised_example([ASK, newline, ASK, YO], every)
    ((ids, weights),) = qwen.build_supervised_examples([ASK, YO, YO])
    assert (np.diff(weights, prepend=0) == 1).sum() == 2  # the last turn is two replies


@pytest.mark.parametrize(
    ("ending", "how"),
    [
        ("<|im_end|>", ParseTermination.STOP_SEQUENCE),
        ("<|endoftext|>", ParseTermination.EOS),
        (None, ParseTermination.MALFORMED),
    ],
)
def test_a_reply_read(qwen, ending, how):
    ids = [6023, *([qwen.tokenizer.control[ending]] if ending else [])]
    message, termination = qwen.parse_response(ids)
    assert message == {"role": "assistant", "content": "hi"}
    assert termination is how
    assert termination.is_clean == (ending is not None)
    assert termination.is_stop_sequence == (ending == "<|im_end|>")


def test_a_call_that_cannot_be_carried_out_is_malformed(qwen):
    control = qwen.tokenizer.control
    ids = [control["<tool_call>"], 6023, control["</tool_call>"], control["<|im_end|>"]]
    message, termination = qwen.parse_response(ids)
    assert termination is ParseTermination.MALFORMED
    assert message["content"] == "<tool_call>hi</tool_call>"


def test_stops_are_ids_or_texts(qwen):
    assert qwen.get_stop_sequences() == [151645, 151643]
    assert speaker("role_colon").get_stop_sequences() == ["\n\nUser:"]


def test_a_prefix_that_declares_tools(qwen):
    for prompt in ("", "Be brief."):
        prefix = qwen.create_conversation_prefix_with_tools([TOOL], prompt)
        given = [{"role": "system", "content": prompt}] if prompt else []
        assert qwen.build_generation_prompt([*prefix, ASK]).to_ints() == list(
            qwen.render([*given, ASK], tools=[TOOL])
        )
        assert qwen.create_conversation_prefix_with_tools([], prompt) == given
    with pytest.raises(RenderError, match="'chatml' writes no tool schemas"):
        speaker("chatml").create_conversation_prefix_with_tools([TOOL])


def test_the_extension_property_is_claimed_where_it_holds(renderer):
    assert renderer.has_extension_property == (renderer.name in EXTENDS)
    assert speaker(renderer.name, history="keep").has_extension_property


@pytest.mark.parametrize("name", ["qwen3_instruct", "gpt_oss_low_reasoning"])
def test_a_renderer_pickles(name):
    renderer = speaker(name, history="keep")
    again = pickle.loads(pickle.dumps(renderer))
    assert (again.form, again.history) == (renderer.form, "keep")
    assert list(again.render([ASK, YO, ASK])) == list(renderer.render([ASK, YO, ASK]))
    assert again.tokenizer.fingerprint == renderer.tokenizer.fingerprint


def test_an_unbound_renderer_says_so():
    with pytest.raises(RenderError, match="'chatml' is bound to no tokenizer"):
        get_renderer("chatml").build_generation_prompt([ASK])
