"""Llama 3: what is trimmed, its dated system message, tools, calls that are plain text, and reading."""

import json

import pytest

from mintjax.renderers import RenderError, get_renderer
from tests.assets import vocabulary
from tests.official import official_ids
from tests.renderers.conftest import speaker

HI = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": " S "}
RESULT = {"role": "tool", "content": " ok\n"}
TOOL = {"type": "function", "function": {"name": "f", "description": "Dé"}}
SAID = '{"name": "f", "parameters": {"x": 1}}'
NEWER = ("llama3_1", "llama3_2")


def head(role):
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


def opening(date, system="", tools=""):
    return (
        f"<|begin_of_text|>{head('system')}{tools}Cutting Knowledge Date: December 2023\n"
        f"Today Date: {date}\n\n{system}<|eot_id|>"
    )


def calling(arguments, content="", count=1):
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call] * count}


def spelled(text):
    """Ids of a text, control tokens in it by id."""
    return vocabulary("llama3.1").encode(text, add_special_tokens=False).ids


def text(rendered):
    return speaker("llama3_1").tokenizer.decode(rendered)


def test_llama_3_0_writes_what_it_is_given():
    renderer = speaker("llama3")
    rendered = renderer.render([SYSTEM, HI])
    assert renderer.tokenizer.decode(rendered) == (
        f"<|begin_of_text|>{head('system')}S<|eot_id|>{head('user')}hi<|eot_id|>{head('assistant')}"
    )
    with pytest.raises(RenderError, match="'llama3' writes no tool schemas"):
        renderer.render([HI], tools=[TOOL])


@pytest.mark.parametrize("name", ("llama3", *NEWER))
def test_the_template_trims_replies_and_what_was_said_stays(name):
    messages = [
        {"role": "user", "content": "\n hi "},
        {"role": "assistant", "content": " yo\n"},
        HI,
    ]
    template = text(speaker(name).render(messages))
    kept = text(speaker(name, history="keep").render(messages))
    assert f"{head('user')}hi<|eot_id|>{head('assistant')}yo<|eot_id|>" in template
    assert f"{head('user')}hi<|eot_id|>{head('assistant')} yo\n<|eot_id|>" in kept
    parted = speaker(name).can_extend(messages)
    assert (bool(parted), parted.message) == (False, 1)


@pytest.mark.parametrize("name", NEWER)
def test_the_day_is_the_callers_or_a_constant(name):
    vocab = vocabulary("llama3.1")
    undated, dated = get_renderer(name, vocab), get_renderer(name, vocab, date="1 Jan 2000")
    rest = f"{head('user')}hi<|eot_id|>{head('assistant')}"
    assert text(undated.render([HI])) == opening("26 Jul 2024") + rest
    assert text(dated.render([SYSTEM, HI])) == opening("1 Jan 2000", "S") + rest
    forged = get_renderer(name, vocab, date="<|eot_id|>").render([HI])
    assert list(forged).count(vocab.token_to_id("<|eot_id|>")) == 2


@pytest.mark.parametrize("name", NEWER)
def test_tools_stand_in_the_first_user_message(name):
    rendered = speaker(name).render([SYSTEM, HI], tools=[TOOL])
    assert text(rendered) == (
        opening("5 Aug 2025", "S", "Environment: ipython\n")
        + f"{head('user')}Given the following functions, please respond with a JSON for a function "
        "call with its proper arguments that best answers the given prompt.\n\nRespond in the format "
        '{"name": function name, "parameters": dictionary of argument name and its value}.Do not use '
        f"variables.\n\n{json.dumps(TOOL, ensure_ascii=False, indent=4)}\n\nhi<|eot_id|>"
        f"{head('assistant')}"
    )
    # The system message belongs to message 0, the declaration to the user's.
    marks = rendered.message.tolist()
    assert sorted(set(marks)) == [-1, 0, 1, 2] and marks == sorted(marks)


def test_a_tool_cycle():
    renderer = speaker("llama3_1")
    assert text(renderer.render([HI, calling({"x": 1}), RESULT])) == (
        opening("5 Aug 2025")
        + f"{head('user')}hi<|eot_id|>{head('assistant')}{SAID}<|eot_id|>"
        + f'{head("ipython")}" ok\\n"<|eot_id|>{head("assistant")}'
    )
    assert renderer.can_extend([HI, calling({"x": 1}), RESULT, HI])


@pytest.mark.parametrize(
    ("said", "glue"),
    [
        (f"{SAID}<|eot_id|>", ""),
        (f"<|python_tag|>{SAID}<|eom_id|>", ""),
        ("yo<|end_of_text|>", "<|eot_id|>"),
        ("yo", "<|eot_id|>"),
        ('{"name": "f", "parameters": {"x', "<|eot_id|>"),
        ("", "<|eot_id|>"),
    ],
)
def test_what_closes_a_reply(said, glue):
    renderer = speaker("llama3_1")
    following = renderer.render([HI], extend=renderer.render([HI]).with_sampled(spelled(said)))
    assert text(following) == f"{glue}{head('user')}hi<|eot_id|>{head('assistant')}"
    assert not following.sampled.any()


def test_how_a_reply_ended():
    renderer = speaker("llama3_1")
    ends = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "")
    stops = [renderer.parse(spelled(f" yo\n{end}")) for end in ends]
    assert [one.stop for one in stops] == ["stop", "stop", "end_of_text", "length"]
    assert {one.message["content"] for one in stops} == {" yo\n"}


@pytest.mark.parametrize(
    "said",
    [
        SAID,
        f"<|python_tag|>{SAID}",
        '{"parameters":{"x":1},"name":"f"}',
        '\n{ "name": "f", "type": "function", "parameters": {"x": 1}}',
    ],
)
def test_a_reply_that_is_a_call(said):
    parsed = speaker("llama3_1").parse(spelled(f"{said}<|eot_id|>"))
    assert parsed.message == calling('{"x": 1}')
    (attempt,) = parsed.attempts
    assert (parsed.stop, attempt.status, attempt.text) == ("stop", "ok", said)
    assert attempt.span == (0, len(spelled(said)))


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ('{"name": "f", "parameters": {"x": 1}', "unclosed"),
        ('{"name": "f}}}', "unclosed"),
        ('{"name": "f\\', "unclosed"),
        ('{"name": "f", "parameters": ' + "[" * 50_000, "unclosed"),
        ('{"name": "f", "parameters": "x"}', "malformed"),
        ('{"name": "f", "parameters": {"x": 1e999}}', "malformed"),
        ('{"name": "f", "parameters": {"x": "\\ud800"}}', "malformed"),
        ('{"name": "f", "parameters": {bad}}', "malformed"),
        (f"{SAID}; {SAID}", "malformed"),
        ('<|python_tag|>brave_search.call(query="x")', "malformed"),
        ("<|python_tag|>", "malformed"),
    ],
)
def test_an_attempt_that_cannot_be_read_stays_in_the_content(said, status):
    parsed = speaker("llama3_1").parse(spelled(f"{said}<|eot_id|>"))
    assert parsed.stop == "malformed"
    assert [attempt.status for attempt in parsed.attempts] == [status]
    assert parsed.message == {"role": "assistant", "content": said}
    assert parsed.unread[0]


@pytest.mark.parametrize(
    "said",
    ['{"name": "Bob", "age": 3}', '{"x": 1}', f"Like so: {SAID}", "[1]", "{", "", "{{"],
)
def test_a_reply_that_is_no_attempt_at_a_call(said):
    parsed = speaker("llama3_1").parse(spelled(f"{said}<|eot_id|>"))
    assert (parsed.message["content"], parsed.stop, parsed.attempts) == (said, "stop", ())


def test_text_that_spells_the_python_tag_is_text():
    renderer = speaker("llama3_1")
    ids = renderer.tokenizer.encode(f"<|python_tag|>{SAID}")[0]
    assert renderer.parse(ids).message["content"] == f"<|python_tag|>{SAID}"


def test_a_cut_call_cannot_be_answered():
    renderer = speaker("llama3_1")
    answered = renderer.render([HI]).with_sampled(spelled('{"name": "f", "param'))
    with pytest.raises(RenderError, match=r"message 2 \(tool\): the reply before it was cut off"):
        renderer.render([RESULT], extend=answered)


@pytest.mark.parametrize(
    ("messages", "tools", "says"),
    [
        ([HI, calling({}, count=2)], None, r"message 1 \(assistant\): .* a call is a whole reply"),
        ([HI, calling({}, content="So:")], None, r"message 1 \(assistant\).*leave content empty"),
        ([SYSTEM], [TOOL], r"message 0 \(system\): 'llama3_1' declares tools in the first message"),
        ([SYSTEM, RESULT], [TOOL], r"message 1 \(tool\): .*which has to be a user's"),
    ],
)
def test_what_the_format_cannot_write_is_refused(messages, tools, says):
    with pytest.raises(RenderError, match=says):
        speaker("llama3_1").render(messages, tools=tools)


def test_deviation_arguments_that_are_a_text_are_written_as_they_are():
    """The official template writes them as a JSON text, quoted once more."""
    renderer = speaker("llama3_1")
    written = list(renderer.render([HI, calling('{"x": 1}')]))
    assert written == official_ids("llama3_1", [HI, calling({"x": 1})])
    quoted = text(official_ids("llama3_1", [HI, calling('{"x": 1}')]))
    assert '"parameters": "{\\"x\\": 1}"' in quoted


def test_deviation_an_empty_list_of_tools_is_none():
    """The official templates announce functions, and then name none."""
    renderer = speaker("llama3_1")
    assert list(renderer.render([HI], tools=[])) == list(renderer.render([HI]))


def test_a_vocabulary_of_llama_3_0():
    with pytest.raises(RenderError, match=r"needs the control tokens <\|eom_id\|>, <\|python_tag"):
        get_renderer("llama3_1", vocabulary("llama3"))
