"""GLM-4.5: markers that end replies, think blocks, calls whose arguments have no quotes."""

import json

import pytest
from jinja2 import TemplateError

from mintjax.renderers import RenderError
from tests.official import official_ids
from tests.renderers.conftest import speaker
from tests.renderers.replies import encoded

ON, OFF = "glm4_5", "glm4_5_disable_thinking"
HI = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "S"}
START = "[gMASK]<sop>"
USER, ASSISTANT = "<|user|>\nhi", "<|assistant|>"
CALLED = (
    "\n<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n"
    "<arg_key>y</arg_key>\n<arg_value> a\n</arg_value>\n</tool_call>"
)
RESULT = "\n<tool_response>\n{}\n</tool_response>"


def call(name="f", arguments=None):
    given = {"x": 1, "y": " a\n"} if arguments is None else arguments
    return {"type": "function", "function": {"name": name, "arguments": given}}


def reply(content, reasoning=None, *calls):
    message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return message | ({"tool_calls": list(calls)} if calls else {})


def tool(content):
    return {"role": "tool", "content": content}


def text(rendered, only=None):
    view = speaker(ON).tokenizer
    return view.decode(rendered.ids if only is None else rendered.ids[only])


def text_of(ids):
    return speaker(ON).tokenizer.decode(ids)


def after(said, *news, name=ON):
    """What new messages add to a prompt that was answered so."""
    renderer = speaker(name)
    answered = renderer.render([HI]).with_sampled(encoded(renderer, said))
    return text(renderer.render(list(news), extend=answered))


def parse(said, *, name=ON, **options):
    renderer = speaker(name)
    return renderer.parse(encoded(renderer, said), **options)


def test_the_generation_prompts():
    assert text(speaker(ON).render([HI])) == f"{START}{USER}{ASSISTANT}"
    assert list(speaker(ON).render([HI]))[-1:] == [151337]
    off = speaker(OFF).render([HI])
    assert text(off) == f"{START}{USER}/nothink{ASSISTANT}\n<think></think>"
    assert list(off)[-4:] == [151337, 198, 151350, 151351]
    assert not off.sampled.any()


def test_a_reply_is_all_that_follows_the_generation_prompt():
    for name, said in ((ON, "\n<think>Hm.</think>\nyo"), (OFF, "\nyo")):
        renderer = speaker(name, history="keep")
        reasoning = "Hm." if name == ON else None
        rendered = renderer.render([HI, reply("yo", reasoning), HI])
        prompt = renderer.render([HI])
        assert list(rendered)[: len(prompt)] == list(prompt)
        assert text(rendered, rendered.sampled) == f"{said}<|user|>"


def test_history_as_the_template_leaves_it_and_as_it_was_said():
    messages = [HI, reply(" yo\n", "Hm."), HI, reply("\nyes", "\nSo. ")]
    assert text(speaker(ON).render(messages)) == (
        f"{START}{USER}{ASSISTANT}\n<think></think>\nyo{USER}{ASSISTANT}\n<think>So.</think>\nyes"
    )
    assert text(speaker(ON, history="keep").render(messages)) == (
        f"{START}{USER}{ASSISTANT}\n<think>Hm.</think>\n yo\n"
        f"{USER}{ASSISTANT}\n<think>\nSo. </think>\n\nyes"
    )
    parted = speaker(ON).can_extend(messages)
    assert (bool(parted), parted.message) == (False, 1)


def test_a_tool_cycle():
    messages = [HI, reply("Look.", "Hm.", call(), call("g", {})), tool("1"), tool("2")]
    calls = f"{CALLED}\n<tool_call>g\n</tool_call>"
    written = (
        f"{START}{USER}{ASSISTANT}\n<think>Hm.</think>\nLook.{calls}"
        f"<|observation|>{RESULT.format(1)}{RESULT.format(2)}{ASSISTANT}"
    )
    rendered = speaker(ON).render(messages)
    assert text(rendered) == written
    assert text(rendered, rendered.sampled).endswith("</tool_call><|observation|>")
    assert speaker(ON).can_extend([*messages, reply("So.", "Ah."), tool("3")])


def test_a_result_in_parts_is_one_text():
    """The template writes the Python form of every part."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [HI, reply("", None, call()), {"role": "tool", "content": parts}]
    assert text(speaker(ON).render(messages)).endswith(f"{RESULT.format('ab')}{ASSISTANT}")
    assert "{'type': 'text', 'text': 'a'}" in text_of(official_ids(ON, messages))


@pytest.mark.parametrize(
    ("said", "news", "glue"),
    [
        ("\n<think></think>\nyo<|user|>", HI, "\nhi"),
        ("\n<think></think>\nyo<|observation|>", HI, USER),
        ("\n<think></think>\nyo<|endoftext|>", HI, USER),
        ("\n<think></think>\nyo", HI, USER),
        ("", HI, USER),
        ("\n<think>Hm", HI, f"</think>{USER}"),
        ("\n<think>Hm<|endoftext|>", HI, f"</think>{USER}"),
        ("\n<think></think>\n<tool_call>f\n<arg_key>x", HI, USER),
        ("\n<think></think>\nyo<|user|>", SYSTEM, "<|system|>\nS"),
        ("\n<think></think>\nyo<|user|>", tool("7"), f"<|observation|>{RESULT.format(7)}"),
        (f"\n<think></think>{CALLED}<|observation|>", tool("7"), RESULT.format(7)),
    ],
)
def test_what_follows_a_reply(said, news, glue):
    assert after(said, news) == f"{glue}{ASSISTANT}"


def test_the_switch_that_a_user_typed():
    """It stays one switch where the renderer writes one anyway, and is text where it writes none."""
    typed = [{"role": "user", "content": "hi /nothink"}]
    assert list(speaker(OFF).render(typed)) == official_ids(OFF, typed)
    on = speaker(ON).render(typed)
    switch = speaker(OFF).tokenizer.control["/nothink"]
    assert switch not in on and switch in official_ids(ON, typed)
    assert text(on) == f"{START}<|user|>\nhi /nothink{ASSISTANT}"


def test_think_tags_in_content_are_text():
    """The template takes them for reasoning."""
    messages = [HI, reply("<think>r</think>\nyo")]
    rendered = speaker(ON).render(messages)
    assert text(rendered).endswith("\n<think></think>\n<think>r</think>\nyo")
    assert rendered.ids.tolist().count(speaker(ON).tokenizer.control["<think>"]) == 1
    assert list(rendered) != official_ids(ON, messages)


def test_arguments_given_as_text_are_written_key_by_key():
    """The template fails on them."""
    given = [HI, reply("", None, call(arguments='{"x": 1, "y": " a\\n"}'))]
    assert text(speaker(ON).render(given)).endswith(CALLED)
    with pytest.raises((TemplateError, TypeError)):
        official_ids(ON, given)


@pytest.mark.parametrize("arguments", ["", "{", "[1]", '"x"', "[" * 100_000])
def test_arguments_that_are_no_object_are_refused(arguments):
    with pytest.raises(
        RenderError, match=r"message 1 \(assistant\): arguments of 'f': expected an obj"
    ):
        speaker(ON).render([HI, reply("", None, call(arguments=arguments))])


def test_arguments_that_are_no_json_are_refused():
    for arguments in ('{"x": NaN}', {"x": float("inf")}):
        with pytest.raises(RenderError, match="arguments of 'f': not JSON"):
            speaker(ON).render([HI, reply("", None, call(arguments=arguments))])


def test_values_are_texts_or_json():
    values = {"s": '"é"', "n": "1", "b": True, "z": None, "l": [1, {"é": "x"}], "f": 1.0, "": ""}
    rendered = speaker(ON).render([HI, reply("", None, call(arguments=values))])
    inside = text(rendered).split("<tool_call>f\n")[1]
    said = ['"é"', "1", "true", "null", '[1, {"é": "x"}]', "1.0", ""]
    pairs = zip(values, said, strict=True)
    assert inside == "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in pairs
    ) + ("</tool_call>")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (ON, reply(" yo\n", "")),
        (ON, reply("", "")),
        (ON, reply("\nyo", "Hm.\n")),
        (ON, reply("Look.\n", "Hm.", call(arguments='{"x": 1, "é": " a"}'), call("g", "{}"))),
        (ON, reply("\n", "", call(arguments='{"l": [1.0, null]}'))),
        (OFF, reply(" yo\n")),
        (OFF, reply("")),
        (OFF, reply("\n", None, call(arguments='{"x": "[1"}'))),
    ],
)
def test_what_was_rendered_is_read_back(name, message):
    renderer = speaker(name, history="keep")
    following = tool("7") if "tool_calls" in message else HI
    rendered = renderer.render([HI, message, following])
    parsed = renderer.parse(rendered.ids[rendered.sampled])
    assert (parsed.message, parsed.stop) == (message, "stop")


def schema(**properties):
    return [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}
    ]


@pytest.mark.parametrize(
    ("said", "kind", "value"),
    [
        ("1", None, 1),
        ("1", {}, 1),
        ("1", {"type": "string"}, "1"),
        ("1", {"type": "integer"}, 1),
        ("1", {"type": ["string", "integer"]}, 1),
        ("1", {"type": ["string", "null"]}, "1"),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("1", {"oneOf": [{"type": "string"}, {"type": "null"}]}, "1"),
        ('{"a": 1}', {"anyOf": [{"type": "string"}, {"$ref": "#"}]}, {"a": 1}),
        ('"1"', None, '"1"'),
        ("true", {"type": "boolean"}, True),
        ("[1, 2]", None, [1, 2]),
        ("[1,2]", None, "[1,2]"),
        ("[1,2]\n", {"type": "array"}, [1, 2]),
        ("[1,2]", {"type": ["array", "string"]}, "[1,2]"),
        (" 1", None, " 1"),
        ("1.50", None, "1.50"),
        ("1.50", {"type": "number"}, 1.5),
        ("", None, ""),
        ("é\n", None, "é\n"),
        ("NaN", None, "NaN"),
        ('["\\ud800"]', None, '["\\ud800"]'),
        ("1e999", None, "1e999"),
        ("9" * 5000, None, "9" * 5000),
        ("[" * 100_000, None, "[" * 100_000),
    ],
)
def test_the_type_of_a_value(said, kind, value):
    pair = f"<arg_key>x</arg_key>\n<arg_value>{said}</arg_value>\n"
    tools = schema() if kind is None else schema(x=kind)
    for known in [tools] if kind else [tools, None]:
        parsed = parse(f"<tool_call>f\n{pair}</tool_call><|observation|>", tools=known)
        (made,) = parsed.message["tool_calls"]
        assert json.loads(made["function"]["arguments"]) == {"x": value}
        assert parsed.stop == "stop"


PAIR = "<arg_key>x</arg_key><arg_value>1</arg_value>"


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        ("", "names no function"),
        (f"\n{PAIR}", "names no function"),
        ("f\n<arg_key>x</arg_key>\n", "no name with pairs"),
        ("f\n<arg_value>1</arg_value><arg_key>x</arg_key>", "no name with pairs"),
        (f"f\n{PAIR}and{PAIR}", "no name with pairs"),
        (f"f\n{PAIR} and", "no name with pairs"),
        (f"f<tool_call>g\n{PAIR}", "no name with pairs"),
        (f"f\n{PAIR}\n{PAIR}", "an argument twice"),
        (f"f\n{PAIR.replace('1', 'one')}", "the argument 'x' of the tool call is no integer"),
        (f"f\n{PAIR.replace('1', 'NaN')}", "is no integer"),
        (f"f\n{PAIR.replace('1', '[' * 100_000)}", "is no integer"),
        ('f\n<arg_key>y</arg_key><arg_value>["\\ud800"]</arg_value>', "surrogates not allowed"),
    ],
)
def test_a_malformed_call_stays_in_the_content(inside, says):
    said = f"a\n<tool_call>{inside}</tool_call>"
    tools = schema(x={"type": "integer"}, y={"type": "array"})
    parsed = parse(f"\n<think>Hm.</think>\n{said}<|observation|>", tools=tools)
    (attempt,) = parsed.attempts
    assert (attempt.status, attempt.call, parsed.stop) == ("malformed", None, "malformed")
    assert says in attempt.error
    assert parsed.message == reply(said, "Hm.")


def test_a_call_that_was_cut():
    said = "<tool_call>f\n<arg_key>x"
    parsed = parse(said)
    assert [attempt.status for attempt in parsed.attempts] == ["unclosed"]
    assert (parsed.stop, parsed.message["content"]) == ("length", said)
    with pytest.raises(RenderError, match=r"message 2 \(tool\): .* cut off inside a tool call"):
        after(said, tool("7"))


@pytest.mark.parametrize(
    ("name", "said", "content", "reasoning"),
    [
        (ON, "yo<|user|>", "yo", None),
        (ON, "<think>Hm.</think>yo<|user|>", "yo", "Hm."),
        (ON, "\n<think>Hm", "", "Hm"),
        (ON, "a<think>Hm.</think>\nyo", "a<think>Hm.</think>\nyo", None),
        (ON, "\n<think></think>\n<think>b</think>", "<think>b</think>", ""),
        (ON, "\n<think><tool_call></think>\nyo", "yo", "<tool_call>"),
        (OFF, "<think>Hm.</think>\nyo<|user|>", "<think>Hm.</think>\nyo", None),
        (OFF, "yo", "yo", None),
    ],
)
def test_other_replies(name, said, content, reasoning):
    parsed = parse(said, name=name)
    assert parsed.message["content"] == content
    assert parsed.message.get("reasoning_content") == reasoning
    assert parsed.attempts == ()


def test_reasoning_where_thinking_is_off_is_refused():
    with pytest.raises(RenderError, match=r"message 1 \(assistant\).* writes no reasoning"):
        speaker(OFF).render([HI, reply("yo", "Hm.")])
