"""Replies read back: control ids structure them, text that spells one does not, nothing is lost."""

import json

import pytest

from mintjax.renderers import get_renderer
from tests.assets import vocabulary


@pytest.fixture
def qwen():
    return get_renderer("qwen3_instruct", vocabulary("qwen3"))


def ids(renderer, *parts):
    """Texts encoded, control tokens by name where a part is a tuple."""
    view = renderer.tokenizer
    return [
        token
        for part in parts
        for token in ([view.control[part[0]]] if isinstance(part, tuple) else view.encode(part)[0])
    ]


BEGIN, END, STOP, EOS = ("<tool_call>",), ("</tool_call>",), ("<|im_end|>",), ("<|endoftext|>",)


@pytest.mark.parametrize(
    ("ending", "stop"), [((STOP,), "stop"), ((EOS,), "end_of_text"), ((), "length")]
)
def test_how_a_reply_ended(qwen, ending, stop):
    parsed = qwen.parse(ids(qwen, " yo\n", *ending))
    assert parsed.message == {"role": "assistant", "content": " yo\n"}
    assert (parsed.stop, parsed.unread) == (stop, ())
    assert qwen.parse([]).stop == "length"


def test_calls_come_back_as_they_were_rendered(qwen):
    calls = [
        {"type": "function", "function": {"name": "läs", "arguments": '{"b": 1.0, "a": "é\\n"}'}},
        {"type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]
    for content in ("", "Let me see.", "two lines\n"):
        message = {"role": "assistant", "content": content, "tool_calls": calls}
        rendered = qwen.render([{"role": "user", "content": "q"}, message])
        parsed = qwen.parse(rendered.ids[rendered.sampled])
        assert (parsed.message, parsed.stop) == (message, "stop")


def test_a_compact_call_with_swapped_keys(qwen):
    parsed = qwen.parse(ids(qwen, BEGIN, '{"arguments":{"x":1.0},"name":"f"}', END, " after", STOP))
    (call,) = parsed.message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "f",
        {"x": 1.0},
    )
    assert parsed.message["content"] == " after"


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        ("\n{bad\n", "no JSON"),
        ('{"name": "f"}', "no object with a name"),
        ('{"name": "f", "arguments": "x"}', "no object with a name"),
        ("[1]", "no object with a name"),
        ('{"name": "f", "arguments": {"x": 1e999}}', "not JSON compliant"),
        ('{"name": "f", "arguments": {"x": "\\ud800"}}', "surrogates not allowed"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_malformed_call_stays_in_the_content(qwen, inside, says):
    parsed = qwen.parse(ids(qwen, "a\n", BEGIN, inside, END, STOP))
    assert parsed.stop == "malformed"
    assert says in parsed.unread[0]
    assert parsed.message == {
        "role": "assistant",
        "content": f"a\n<tool_call>{inside}</tool_call>",
    }


def test_a_call_that_was_cut(qwen):
    parsed = qwen.parse(ids(qwen, "a", BEGIN, '{"name": "f'))
    assert (parsed.stop, parsed.unread) == ("length", ("the tool call is not closed",))
    assert parsed.message["content"] == 'a<tool_call>{"name": "f'


def test_a_good_call_beside_a_bad_one(qwen):
    good = '\n{"name": "f", "arguments": {}}\n'
    parsed = qwen.parse(ids(qwen, BEGIN, good, END, "\n", BEGIN, "bad", END, STOP))
    assert len(parsed.message["tool_calls"]) == 1
    assert parsed.message["content"] == "\n<tool_call>bad</tool_call>"
    assert parsed.stop == "malformed"


def test_control_text_in_ordinary_tokens_is_text(qwen):
    said = "<|im_end|> <tool_call>{}</tool_call>"
    parsed = qwen.parse(ids(qwen, said, STOP))
    assert (parsed.message["content"], parsed.stop) == (said, "stop")
    assert "tool_calls" not in parsed.message


def test_a_character_that_was_cut_shows_as_a_replacement(qwen):
    emoji = ids(qwen, "👩‍👩‍👧‍👦")
    for cut in range(len(emoji)):
        content = qwen.parse(emoji[:cut]).message["content"]
        assert "👩‍👩‍👧‍👦".startswith(content.rstrip("\ufffd"))
    assert qwen.parse(emoji).message["content"] == "👩‍👩‍👧‍👦"
