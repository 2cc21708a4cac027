"""Bad input is refused, with the message and the cure named."""

import re

import pytest
from tokenizers import Tokenizer, models

from mintjax.renderers import RenderError, get_renderer
from tests.assets import vocabulary
from tests.families import FAMILIES
from tests.renderers.conftest import speaker

HI = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": ""}}
WITH_TOOLS = [name for name, family in FAMILIES.items() if family.tools]
CALLING = [name for name, family in FAMILIES.items() if family.calls]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "at least one message"),
        ("hi", "expected a list"),
        (["hi"], "message 0: expected a dict"),
        ([HI, {"role": "bot", "content": "x"}], "message 1: role 'bot' is unknown; use system"),
        ([HI, {"role": "<|im_start|>", "content": "x"}], "message 1: role"),
        ([HI, {"content": "x"}], "message 1: role None"),
        ([{"role": "user", "content": [IMAGE]}], "message 0 .user.: a content part of type 'image_url'"),
        ([{"role": "user", "content": [AUDIO]}], "message 0 .user.: a content part of type 'input_audio'"),
        ([HI, {"role": "assistant", "content": [IMAGE]}], "message 1 .assistant.: a content part"),
        ([HI | {"reasoning_content": "R"}], "message 0 .user.: reasoning_content belong to an assist"),
        ([{"role": "user", "content": ["x"]}], "message 0 .user.: a content part of type 'str'"),
        ([{"role": "user", "content": 3}], "message 0 .user.: content must be a text"),
        ([HI | {"images": ["x"]}], "message 0 .user.: no format writes the key 'images'; remove it"),
        ([HI | {"tool_calls": [{}]}], "message 0 .user.: tool_calls belong to an assistant"),
        ([HI, {"role": "assistant", "content": "", "tool_calls": ["f"]}], "message 1 .assistant.: a tool call must"),
        ([{"role": "user", "content": "\ud800"}], r"message 0: character \d is half of a surr"),
    ],
)  # fmt: skip
def test_messages_that_cannot_be_written(renderer, messages, says):
    with pytest.raises(RenderError, match=says):
        renderer.render(messages)


def test_errors_in_an_extension_count_messages_from_the_start(renderer):
    answered = renderer.render([HI, {"role": "assistant", "content": "yo"}, HI]).with_sampled([])
    with pytest.raises(RenderError, match="message 5: role 'bot'"):
        renderer.render([HI, {"role": "bot"}], extend=answered)


def test_tools_where_the_format_has_none():
    renderer = get_renderer("smollm2", vocabulary("smollm2"))
    with pytest.raises(RenderError, match=r"tools: 'smollm2' writes no tool schemas"):
        renderer.render([HI], tools=[TOOL])
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
    }
    with pytest.raises(
        RenderError, match=r"message 1 \(assistant\): 'smollm2' writes no tool calls"
    ):
        renderer.render([HI, call])


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_tools_that_change(name):
    renderer = speaker(name)
    answered = renderer.render([HI], tools=[TOOL]).with_sampled([])
    same = renderer.render([HI], extend=answered)
    assert list(renderer.render([HI], extend=answered, tools=[TOOL])) == list(same)
    for changed in ([], [TOOL, TOOL]):
        with pytest.raises(RenderError, match="message 2 cannot change"):
            renderer.render([HI], extend=answered, tools=changed)
    with pytest.raises(RenderError, match=r"tools\[0\]: expected a JSON schema"):
        renderer.render([HI], tools=[print])
    with pytest.raises(RenderError, match=r"tools\[0\].*: not JSON"):
        renderer.render([HI], tools=[TOOL | {"f": print}])


@pytest.mark.parametrize("name", CALLING)
@pytest.mark.parametrize("arguments", [None, ["x"], 1, {"x": print}, {"x": {1, 2}}])
def test_arguments_that_no_format_takes(name, arguments):
    call = {"type": "function", "id": "functions.f:0", "function": {"name": "f"}}
    call["function"]["arguments"] = arguments
    messages = [HI, {"role": "assistant", "content": "", "tool_calls": [call]}]
    with pytest.raises(RenderError, match=r"message 1 \(assistant\).*(arguments|a tool call must)"):
        speaker(name).render(messages)


def test_reasoning_where_the_format_has_none(renderer):
    messages = [HI, {"role": "assistant", "content": "x", "reasoning_content": "R"}]
    if renderer.form.reasons:
        assert renderer.render(messages)
        return
    with pytest.raises(
        RenderError, match=r"message 1 \(assistant\): .* writes no reasoning; remove"
    ):
        renderer.render(messages)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.alternate])
def test_roles_out_of_order(name):
    reply = {"role": "assistant", "content": "x"}
    for number, messages in ((1, [HI, HI]), (2, [HI, reply, reply]), (0, [reply, HI])):
        with pytest.raises(RenderError, match=rf"message {number} "):
            speaker(name).render(messages)


def test_a_tool_cannot_answer_a_call_that_was_cut():
    renderer = get_renderer("qwen3_instruct", vocabulary("qwen3"))
    begin = renderer.tokenizer.control["<tool_call>"]
    answered = renderer.render([HI]).with_sampled([begin, 198])
    with pytest.raises(RenderError, match=r"message 2 \(tool\): the reply before it was cut off"):
        renderer.render([{"role": "tool", "content": "x"}], extend=answered)
    assert renderer.render([HI], extend=answered)[:2] == [151645, 198]


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([1.5], r"message 1 \(assistant\): ids must be integers of shape \[n\], got float64"),
        ([[1, 2]], r"shape \[1, 2\]"),
        ([-1], "leave padding out"),
        ([2**31], "must lie in"),
    ],
)
def test_sampled_ids_that_are_none(renderer, ids, says):
    with pytest.raises(RenderError, match=says):
        renderer.render([HI]).with_sampled(ids)


def test_ids_after_a_stop_token(renderer):
    for stop in renderer.stop_tokens():
        with pytest.raises(RenderError, match=r"message 1 \(assistant\): 2 ids follow the stop"):
            renderer.render([HI]).with_sampled([300, stop, 300, stop])
        with pytest.raises(RenderError, match="1 ids follow the stop"):
            renderer.parse([300, stop, 300])


def test_a_conversation_that_cannot_be_extended(renderer):
    prompt = renderer.render([HI])
    with pytest.raises(RenderError, match=r"message 1 \(assistant\) is still awaited"):
        renderer.render([HI], extend=prompt)
    with pytest.raises(RenderError, match="message 1: no reply is awaited"):
        prompt.with_sampled([300]).with_sampled([300])
    other = get_renderer("chatml" if renderer.name != "chatml" else "smollm2")
    with pytest.raises(RenderError, match="extend: written by renderer"):
        other.render([HI], vocabulary("smollm2"), extend=prompt.with_sampled([]))


def test_prefill_needs_a_reply_to_begin(renderer):
    with pytest.raises(RenderError, match=r"prefill: message 1 \(assistant\) is the last"):
        renderer.render([HI, {"role": "assistant", "content": "x"}], prefill="Sure")


def test_names_and_options():
    with pytest.raises(RenderError, match="did you mean 'qwen3_instruct'"):
        get_renderer("qwen3_instuct")
    with pytest.raises(RenderError, match="history: expected 'template' or 'keep', got 'strip'"):
        get_renderer("chatml", history="strip")
    with pytest.raises(RenderError, match="date: 'chatml' writes no date"):
        get_renderer("chatml", date="2025-01-01")
    with pytest.raises(RenderError, match="bound to no tokenizer"):
        get_renderer("chatml").render([HI])


def test_a_vocabulary_without_the_control_tokens(renderer):
    bare = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    missing = renderer.form.controls
    if not missing:
        assert get_renderer(renderer.name, bare).render([HI])
        return
    says = rf"needs the control tokens {re.escape(', '.join(missing))}, which this vocabulary of 1"
    with pytest.raises(RenderError, match=says):
        get_renderer(renderer.name, bare)
    with pytest.raises(RenderError, match=says):
        get_renderer(renderer.name).render([HI], bare)


def test_a_vocabulary_of_another_family():
    with pytest.raises(
        RenderError, match=r"'qwen3_instruct' needs the control tokens <tool_call>, .*use the tok"
    ):
        get_renderer("qwen3_instruct", vocabulary("smollm2"))
    with pytest.raises(RenderError, match="expected a fast transformers tokenizer"):
        get_renderer("chatml", object())


def test_a_character_that_the_vocabulary_would_drop():
    renderer = get_renderer("smollm2", vocabulary("smollm2"))
    with pytest.raises(RenderError, match=r"message 1: the vocabulary has no token for .*x04"):
        renderer.render([HI, {"role": "user", "content": "a\x04b"}])
