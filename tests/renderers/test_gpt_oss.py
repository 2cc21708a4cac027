"""gpt-oss: messages in channels, what history leaves of them, what a reply is followed by, reading."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError

from mintjax.renderers import RenderError, get_renderer
from tests.assets import vocabulary
from tests.official import official_ids
from tests.renderers.conftest import speaker
from tests.renderers.replies import encoded

NAME = "gpt_oss_medium_reasoning"
EXAMPLES = 200
HI = {"role": "user", "content": "hi"}
S = "<|start|>"
SYSTEM = (
    f"{S}system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    "Knowledge cutoff: 2024-06\n{}\nReasoning: {}\n\n# Valid channels: analysis, commentary, final. "
    "Channel must be included for every message."
)
START = SYSTEM.format("Current date: 2025-08-05\n", "medium") + "<|end|>"
USER = f"{S}user<|message|>hi<|end|>"
NEXT = f"<|end|>{S}assistant"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
CALLED = ' to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>'


def reply(content, reasoning=None, arguments=None):
    message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if arguments is not None:
        function = {"name": "f", "arguments": arguments}
        message["tool_calls"] = [{"type": "function", "function": function}]
    return message


def tool(content, **more):
    return {"role": "tool", "content": content, **more}


def text(rendered, only=None):
    view = speaker(NAME).tokenizer
    return view.decode(rendered.ids if only is None else rendered.ids[only])


def after(said, *news):
    """What new messages add to a prompt that was answered so."""
    renderer = speaker(NAME)
    answered = renderer.render([HI]).with_sampled(encoded(renderer, said))
    return text(renderer.render(list(news), extend=answered))


def parse(said, **options):
    renderer = speaker(NAME)
    return renderer.parse(encoded(renderer, said), **options)


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_a_prompt(effort):
    prompt = speaker(f"gpt_oss_{effort}_reasoning").render([HI])
    system = SYSTEM.format("Current date: 2025-08-05\n", effort)
    assert text(prompt) == f"{system}<|end|>{USER}{S}assistant"
    assert list(prompt)[-2:] == [200006, 173781]


def test_without_a_date_its_line_is_left_out():
    renderer = get_renderer(NAME, vocabulary("gpt-oss"))
    assert text(renderer.render([HI])).startswith(SYSTEM.format("", "medium") + "<|end|>")
    assert repr(renderer.form) == "GPTOSSMedium(date=None)"


def test_a_system_message_is_the_developers():
    renderer = speaker(NAME)
    developer = f"{S}developer<|message|># Instructions\n\nS\n\n"
    first = renderer.render([{"role": "system", "content": "S"}, HI])
    assert text(first) == f"{START}{developer}<|end|>{USER}{S}assistant"
    tools = [{"type": "function", "function": {"name": "f", "description": "d"}}]
    declared = renderer.render([{"role": "system", "content": "S"}, HI], tools=tools)
    assert text(declared) == (
        f"{START[:-7]}\nCalls to these tools must go to the commentary channel: 'functions'.<|end|>"
        f"{developer}# Tools\n\n## functions\n\nnamespace functions {{\n\n// d\n"
        f"type f = () => any;\n\n}} // namespace functions<|end|>{USER}{S}assistant"
    )


def test_a_late_system_message_is_written_where_it_stands():
    """The template drops it without a word."""
    messages = [HI, {"role": "system", "content": "S"}]
    developer = f"{S}developer<|message|># Instructions\n\nS\n\n<|end|>"
    assert text(speaker(NAME).render(messages)) == f"{START}{USER}{developer}{S}assistant"
    assert official_ids(NAME, messages) == official_ids(NAME, messages[:1])
    assert after(f"{FINAL}yo<|return|>", messages[1]) == f"{developer}{S}assistant"


def test_history_as_the_template_leaves_it_and_as_it_was_said():
    messages = [HI, reply("yo", "Hm."), HI, reply("yes", "So.")]
    last = f"{S}assistant{ANALYSIS}So.{NEXT}{FINAL}yes<|return|>"
    assert text(speaker(NAME).render(messages)) == (
        f"{START}{USER}{S}assistant{FINAL}yo<|end|>{USER}{last}"
    )
    kept = speaker(NAME, history="keep").render(messages)
    assert text(kept) == (
        f"{START}{USER}{S}assistant{ANALYSIS}Hm.{NEXT}{FINAL}yo<|return|>{USER}{last}"
    )
    said = f"{ANALYSIS}Hm.{NEXT}{FINAL}yo<|return|>"
    assert text(kept, kept.sampled & (kept.message == 1)) == said
    parted = speaker(NAME).can_extend(messages)
    assert (bool(parted), parted.message) == (False, 1)


def test_reasoning_lives_on_in_a_tool_loop_until_an_answer():
    loop = [HI, reply("", "Look.", {"x": 1}), tool("7")]
    result = f'{S}functions.f to=assistant<|channel|>commentary<|message|>"7"<|end|>'
    called = f"{S}assistant{ANALYSIS}Look.{NEXT}{CALLED}{result}"
    renderer = speaker(NAME)
    assert text(renderer.render(loop)) == f"{START}{USER}{called}{S}assistant"
    assert renderer.can_extend(loop)
    answered = [*loop, reply("seven", "Seen.")]
    final = f"{S}assistant{ANALYSIS}Seen.{NEXT}{FINAL}seven<|return|>"
    forgotten = f"{S}assistant{CALLED}{result}"
    assert text(renderer.render(answered)) == f"{START}{USER}{forgotten}{final}"
    assert text(speaker(NAME, history="keep").render(answered)) == f"{START}{USER}{called}{final}"


def test_the_text_of_a_call_is_its_reasoning_or_stands_beside_it():
    renderer = speaker(NAME, history="keep")
    alone = renderer.render([HI, reply("Look.", None, {"x": 1})])
    assert text(alone, alone.sampled) == f"{ANALYSIS}Look.{NEXT}{CALLED}"
    both = [HI, reply("I look.", "Look.", {"x": 1})]
    beside = renderer.render(both)
    preamble = f"<|channel|>commentary<|message|>I look.{NEXT}"
    assert text(beside, beside.sampled) == f"{ANALYSIS}Look.{NEXT}{preamble}{CALLED}"
    with pytest.raises(TemplateError, match="both content and thinking"):
        official_ids(NAME, both)


def test_arguments_given_as_text_stay_as_they_are():
    """The template quotes them a second time."""
    rendered = speaker(NAME).render([HI, reply("", None, '{"x":1}')])
    assert text(rendered, rendered.sampled) == CALLED.replace('{"x": 1}', '{"x":1}')


@pytest.mark.parametrize("said", [f"{FINAL}yo<|return|>", CALLED])
def test_a_stop_stands_for_the_end_of_its_message(said):
    assert after(said, HI) == f"{USER}{S}assistant"


@pytest.mark.parametrize(
    "said",
    [
        "",
        "<|channel|>ana",
        f"{ANALYSIS}Hm",
        f"{FINAL}yo<|endoftext|>",
        ' to=functions.f<|channel|>commentary json<|message|>{"x',
    ],
)
def test_a_reply_that_was_cut_is_closed(said):
    assert after(said, HI) == f"<|end|>{USER}{S}assistant"


def test_a_reply_that_was_cut_between_its_messages_is_closed_already():
    assert after(f"{ANALYSIS}Hm.<|end|>", HI) == f"{USER}{S}assistant"
    assert parse(f"{ANALYSIS}Hm.<|end|>").stop == "length"


def test_a_result_bears_the_name_of_its_function():
    result = f'{S}functions.{{}} to=assistant<|channel|>commentary<|message|>"7"<|end|>{S}assistant'
    assert after(CALLED, tool("7")) == result.format("f")
    assert after(CALLED, tool("7", name="g")) == result.format("g")
    assert after(f"{FINAL}yo<|return|>", tool("7", name="g")) == result.format("g")
    for nameless in (f"{FINAL}yo<|return|>", CALLED.replace("<|call|>", "<|return|>")):
        with pytest.raises(RenderError, match=r"message 2 \(tool\).*give the message a name"):
            after(nameless, tool("7"))
    with pytest.raises(RenderError, match=r"message 2 \(tool\): .* cut off inside a tool call"):
        after(CALLED.removesuffix("<|call|>"), tool("7"))


def test_the_content_of_a_result_is_json():
    assert '<|message|>"\\"é\\"\\n"<|end|>' in after(CALLED, tool('"é"\n'))


def test_several_calls_in_a_reply_are_refused():
    two = reply("", None, {}) | {"tool_calls": reply("", None, {})["tool_calls"] * 2}
    with pytest.raises(
        RenderError, match=r"message 1 \(assistant\).* one tool call a reply, got 2"
    ):
        speaker(NAME).render([HI, two])


def test_headers_that_a_caller_spells_are_text():
    """The template refuses them."""
    for forged in ("<|channel|>analysis<|message|>x", "<|channel|>final<|message|>x"):
        messages = [HI, reply(forged)]
        with pytest.raises(TemplateError):
            official_ids(NAME, messages)
        rendered = speaker(NAME).render(messages)
        parsed = speaker(NAME).parse(rendered.ids[rendered.sampled])
        assert parsed.message["content"] == forged


@pytest.mark.parametrize(
    "message",
    [
        reply(" yo\n"),
        reply(""),
        reply("yo", "Hm.\n"),
        reply("yo", ""),
        reply("", "Hm.", '{"b": 1.0, "a":"é\\n"}'),
        reply("I look.", "Hm.", "{}"),
        reply("", None, "{}"),
    ],
)
def test_what_was_rendered_is_read_back(message):
    rendered = speaker(NAME, history="keep").render([HI, message])
    parsed = speaker(NAME).parse(rendered.ids[rendered.sampled])
    assert (parsed.message, parsed.stop) == (message, "stop")


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.f<|channel|>commentary json",
        " to=functions.f<|channel|>commentary <|constrain|>json",
        "<|channel|>commentary to=functions.f <|constrain|>json",
        "<|channel|>commentary to=functions.f json",
        "<|channel|>analysis to=functions.f code",
        " to=functions.f <|channel|>commentary",
    ],
)
def test_where_a_recipient_may_stand(header):
    for before in ("", f"{ANALYSIS}Hm.{NEXT}"):
        parsed = parse(f'{before}{header}<|message|>{{"x": 1}}<|call|>')
        (call,) = parsed.message["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": '{"x": 1}'}
        assert parsed.message.get("reasoning_content") == ("Hm." if before else None)
        assert (parsed.message["content"], parsed.stop) == ("", "stop")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (CALLED.replace("{", "[" * 100_000), "recursion"),
        (CALLED.replace("1", "NaN"), "not JSON compliant"),
        (CALLED.replace("1", "1e999"), "not JSON compliant"),
        (CALLED.replace('{"x": 1}', "[1]"), "no object"),
        (CALLED.replace("functions.f", "python"), "'python', which is no function"),
        (CALLED.replace("functions.f", "functions."), "'functions.', which is no function"),
        (CALLED.replace("<|call|>", "<|return|>"), "ends with <|return|> in place of <|call|>"),
        (CALLED.replace("<|call|>", f"{NEXT}{FINAL}x<|return|>"), "ends with <|end|>"),
    ],
)
def test_a_malformed_call_stays_in_the_content(said, says):
    parsed = parse(f"{ANALYSIS}Hm.{NEXT}{said}")
    (attempt,) = parsed.attempts
    assert (attempt.status, attempt.call, parsed.stop) == ("malformed", None, "malformed")
    assert says in attempt.error
    assert "tool_calls" not in parsed.message
    unread = attempt.text.removesuffix("<|call|>").removesuffix("<|return|>")
    assert parsed.message["content"].startswith(unread)
    assert parsed.message["reasoning_content"] == "Hm."


def test_a_call_that_was_cut():
    for said in (" to=functions.f<|channel|>comm", CALLED.removesuffix("<|call|>")):
        parsed = parse(said)
        assert [attempt.status for attempt in parsed.attempts] == ["unclosed"]
        assert (parsed.stop, parsed.message["content"]) == ("length", said)


def test_the_span_of_an_attempt():
    renderer = speaker(NAME)
    before = encoded(renderer, f"{ANALYSIS}Hm.<|end|>")
    ids = [*before, *encoded(renderer, f"{S}assistant{CALLED}")]
    (attempt,) = renderer.parse(ids).attempts
    assert attempt.span == (len(before), len(ids))
    assert attempt.text == f"{S}assistant{CALLED}"


@pytest.mark.parametrize(
    ("said", "content", "reasoning"),
    [
        ("yo<|return|>", "yo", None),
        ("<|channel|>final yo<|return|>", "<|channel|>final yo", None),
        ("<|channel|>fin", "<|channel|>fin", None),
        (f"{FINAL}a <|end|> b".replace("<|end|>", "<| end|>"), "a <| end|> b", None),
        (f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c<|return|>", "c", "a\nb"),
        (f"{FINAL}a<|end|>{S}user<|message|>b<|return|>", f"a\n{S}user<|message|>b", None),
        ("<|channel|>loud<|message|>yo<|return|>", "<|channel|>loud<|message|>yo", None),
        (f"{ANALYSIS}Hm", "", "Hm"),
        ("<|return|>", "", None),
    ],
)
def test_other_replies(said, content, reasoning):
    parsed = parse(said)
    assert parsed.message["content"] == content
    assert parsed.message.get("reasoning_content") == reasoning
    assert parsed.attempts == ()


@given(
    st.lists(
        st.sampled_from(
            (
                *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
                *("assistant", " to=functions.f", "analysis", "commentary json", "final"),
                *('{"x": 1}', "👩", "\n"),
            )
        ),
        max_size=12,
    ),
    st.sampled_from(("", "<|call|>", "<|return|>", "<|endoftext|>")),
)
@settings(max_examples=EXAMPLES)
def test_any_order_of_control_tokens_is_kept_and_read(parts, end):
    renderer = speaker(NAME)
    said = encoded(renderer, "".join(parts))
    said += [renderer.tokenizer.control[end]] if end else []
    prompt = renderer.render([HI])
    following = renderer.render([HI], extend=prompt.with_sampled(said))
    assert list(following.whole()) == [*prompt, *said, *following]
    closed = end in ("<|call|>", "<|return|>") or (not end and parts[-1:] == ["<|end|>"])
    assert text(following) == f"{'' if closed else '<|end|>'}{USER}{S}assistant"
    content = renderer.parse(said).message["content"]
    if not {"<|start|>", "<|message|>", "<|end|>"}.intersection(parts):
        assert content == "".join(parts)
