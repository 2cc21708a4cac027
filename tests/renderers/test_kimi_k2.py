"""Kimi K2: default system prompt, declared tools, ids of calls, think blocks."""

import pytest

from mintjax.renderers import RenderError
from tests.official import official_ids
from tests.renderers.conftest import speaker
from tests.renderers.replies import HI, encoded, follow, written

FAMILIES = ("kimi_k2", "kimi_k2_instruct")
INSTRUCT, THINKING = "kimi_k2_instruct", "kimi_k2"
DEFAULT = "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>"
ASKED = "<|im_user|>user<|im_middle|>hi<|im_end|>"
PROMPT = "<|im_assistant|>assistant<|im_middle|>"
SYSTEM = {"role": "system", "content": "S"}
SCHEMA = {"type": "function", "function": {"name": "f", "description": "Dé"}}


def call(name, call_id=None, arguments="{}"):
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function} | ({"id": call_id} if call_id else {})


def calling(*calls, content="", **more):
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def tool(content, call_id=None):
    return {"role": "tool", "content": content} | ({"tool_call_id": call_id} if call_id else {})


def section(*calls):
    """Calls, each an id and arguments."""
    inside = "".join(
        f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        for call_id, arguments in calls
    )
    return f"<|tool_calls_section_begin|>{inside}<|tool_calls_section_end|>"


def result(call_id, content):
    return f"<|im_system|>tool<|im_middle|>## Return of {call_id}\n{content}<|im_end|>"


@pytest.mark.parametrize(("name", "after"), [(INSTRUCT, "\n"), (THINKING, "")])
def test_a_prompt(name, after):
    renderer = speaker(name)
    assert written(renderer.render([HI]), renderer) == DEFAULT + after + ASKED + PROMPT
    system = "<|im_system|>system<|im_middle|>S<|im_end|>"
    assert written(renderer.render([SYSTEM, HI]), renderer) == system + ASKED + PROMPT
    assert renderer.render([HI])[-3:] == [163588, 69702, 163601]


def test_tools_stand_before_all_in_compact_json_with_sorted_keys():
    renderer = speaker(INSTRUCT)
    text = written(renderer.render([SYSTEM, HI], tools=[SCHEMA]), renderer)
    assert text.startswith(
        "<|im_system|>tool_declare<|im_middle|>"
        '[{"function":{"description":"Dé","name":"f"},"type":"function"}]<|im_end|>'
        "<|im_system|>system<|im_middle|>S<|im_end|>"
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_names_stand_for_roles_as_in_the_template(name):
    renderer = speaker(name)
    messages = [
        SYSTEM | {"name": "s"},
        HI | {"name": "bob"},
        {"role": "assistant", "content": "x", "name": "eve"},
        HI,
    ]
    rendered = renderer.render(messages)
    assert list(rendered) == official_ids(name, messages)
    assert "<|im_user|>bob<|im_middle|>hi" in written(rendered, renderer)


def test_calls_and_results():
    renderer = speaker(INSTRUCT)
    ids = ("functions.f:0", "functions.läs:1")
    messages = [
        HI,
        calling(call("f", ids[0], '{"x":1}'), call("läs", ids[1], {"é": 1.0}), content="See."),
        tool("one", ids[0]),
        tool("two", ids[1]),
    ]
    text = written(renderer.render(messages), renderer)
    assert text == (
        f"{DEFAULT}\n{ASKED}{PROMPT}See."
        + section((ids[0], '{"x":1}'), (ids[1], '{"é": 1.0}'))
        + f"<|im_end|>{result(ids[0], 'one')}{result(ids[1], 'two')}{PROMPT}"
    )


@pytest.mark.parametrize("history", ["template", "keep"])
def test_a_call_without_an_id_gets_its_name_and_count(history):
    """The template writes nothing, which leaves the function without a name."""
    renderer = speaker(INSTRUCT, history=history)
    messages = [
        HI,
        calling(call("f"), call("g")),
        tool("1"),
        tool("2"),
        calling(call("f")),
        tool("3"),
    ]
    text = written(renderer.render(messages), renderer)
    assert section(("functions.f:0", "{}"), ("functions.g:1", "{}")) in text
    assert result("functions.f:0", 1) + result("functions.g:1", 2) in text
    assert text.endswith(
        section(("functions.f:2", "{}")) + "<|im_end|>" + result("functions.f:2", 3) + PROMPT
    )
    ids = [f"functions.{name}" for name in ("f:0", "g:1", "f:2")]
    given = [
        HI,
        calling(call("f", ids[0]), call("g", ids[1])),
        tool("1", ids[0]),
        tool("2", ids[1]),
        calling(call("f", ids[2])),
        tool("3", ids[2]),
    ]
    assert list(renderer.render(messages)) == official_ids(INSTRUCT, given)


def test_the_count_goes_on_in_extensions():
    renderer = speaker(INSTRUCT)
    said = encoded(
        renderer, section(("functions.f:0", "{}"), ("functions.g:1", "{}")) + "<|im_end|>"
    )
    answered = renderer.render([HI]).with_sampled(said)
    news = [tool("1"), tool("2"), calling(call("h")), tool("3")]
    following = renderer.render(news, extend=answered)
    text = written(following, renderer)
    assert text.startswith(result("functions.f:0", 1) + result("functions.g:1", 2))
    assert section(("functions.h:2", "{}")) in text
    again = renderer.render([calling(call("h"))], extend=following.with_sampled([163586]))
    assert section(("functions.h:3", "{}")) in written(again, renderer)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_result_of_no_call_is_refused(name):
    """The template writes it without an id."""
    renderer = speaker(name)
    with pytest.raises(RenderError, match=r"message 1 \(tool\): no call before it.*tool_call_id"):
        renderer.render([HI, tool("x")])
    assert list(renderer.render([HI, tool("x", "id")])) == official_ids(name, [HI, tool("x", "id")])


def test_the_template_empties_think_blocks_up_to_the_last_answer():
    renderer = speaker(THINKING)

    def blocks(*messages, history="template"):
        renderer = speaker(THINKING, history=history)
        text = written(renderer.render([HI, *messages]), renderer)
        return [part.split("</think>")[0] for part in text.split("<think>")[1:]]

    step = calling(call("f", "functions.f:0"), reasoning_content="R")
    got = tool("1", "functions.f:0")
    answer = {"role": "assistant", "content": "A", "reasoning_content": "S"}
    assert blocks(step, got) == ["R"]
    assert blocks(step, got, answer) == ["", ""]
    assert blocks(step, got, answer, HI, step, got) == ["", "", "R"]
    assert blocks(step, got, answer, HI, step, got, history="keep") == ["R", "S", "R"]
    assert blocks({"role": "assistant", "content": "A"}) == [""]
    # Trained on is what would be said, not what becomes of it in history.
    (example,) = renderer.supervised([HI, answer])
    said = renderer.tokenizer.decode(example.ids[example.sampled])
    assert said == "<think>S</think>A<|im_end|>"


def test_reasoning_where_the_format_has_none_is_refused():
    """The template of K2-Instruct leaves it out."""
    with pytest.raises(RenderError, match=r"message 1 \(assistant\): 'kimi_k2_instruct' writes no"):
        speaker(INSTRUCT).render([HI, {"role": "assistant", "reasoning_content": "R"}])


@pytest.mark.parametrize(
    ("said", "glue"),
    [
        ("<think>R</think>A<|im_end|>", ""),
        ("<think>R</think>A[EOS]", "<|im_end|>"),
        ("<think>R</think>A", "<|im_end|>"),
        ("<think>R", "</think><|im_end|>"),
        ("<think>R<|tool_calls_section_begin|>", "</think><|im_end|>"),
        ("", "<|im_end|>"),
        ("<think></think><|tool_calls_section_begin|><|tool_call_begin|>f", "<|im_end|>"),
    ],
)
def test_what_is_inserted_after_a_reply(said, glue):
    renderer = speaker(THINKING)
    view = renderer.tokenizer
    ids = [view.control["[EOS]"]] if "[EOS]" in said else []
    following = follow(renderer, encoded(renderer, said.removesuffix("[EOS]")) + ids, [HI])
    assert written(following, renderer) == glue + ASKED + PROMPT


def test_calls_and_reasoning_come_back():
    renderer = speaker(THINKING, history="keep")
    for content, reasoning in (("", ""), ("See.", "\nR\n"), ("\n x", "R")):
        calls = [call("f", "functions.f:3", ' {"x":1.0}'), call("läs", "functions.läs:4", "{}")]
        message = calling(*calls, content=content, reasoning_content=reasoning)
        rendered = renderer.render([HI, message])
        parsed = renderer.parse(rendered.ids[rendered.sampled])
        assert (parsed.message, parsed.stop) == (message, "stop")
        again = renderer.render([HI, parsed.message])
        assert list(again) == list(rendered)


@pytest.mark.parametrize(
    ("said", "stop", "content", "reasoning"),
    [
        ("A<|im_end|>", "stop", "A", None),
        ("<think>R</think>\nA<|im_end|>", "stop", "\nA", "R"),
        ("<think>R", "length", "", "R"),
        ("R</think>A<|im_end|>", "stop", "R</think>A", None),
        ("A<think>R</think><|im_end|>", "stop", "A<think>R</think>", None),
    ],
)
def test_reading_think_blocks(said, stop, content, reasoning):
    renderer = speaker(THINKING)
    parsed = renderer.parse(encoded(renderer, said))
    assert (parsed.stop, parsed.message["content"]) == (stop, content)
    assert parsed.message.get("reasoning_content") == reasoning


@pytest.mark.parametrize(
    ("call_id", "arguments", "says"),
    [
        ("f:0", "{}", "must be functions.NAME:COUNT, got 'f:0'"),
        ("functions.f", "{}", "must be functions.NAME:COUNT"),
        ("", "{}", "must be functions.NAME:COUNT"),
        ("functions.f:0", "{", "no JSON"),
    ],
)
def test_malformed_calls(call_id, arguments, says):
    renderer = speaker(INSTRUCT)
    said = section((call_id, arguments))
    parsed = renderer.parse(encoded(renderer, f"a{said}<|im_end|>"))
    assert parsed.stop == "malformed" and says in parsed.unread[0]
    assert parsed.message == {"role": "assistant", "content": f"a{said}"}


def test_a_result_cannot_follow_a_call_that_was_cut():
    renderer = speaker(INSTRUCT)
    for said in ("<|tool_calls_section_begin|>", section(("f", ""))[:60]):
        answered = renderer.render([HI]).with_sampled(encoded(renderer, said))
        with pytest.raises(RenderError, match="cut off inside a tool call"):
            renderer.render([tool("x", "functions.f:0")], extend=answered)
