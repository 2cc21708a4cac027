"""DeepSeek V3-0324: headers, fenced calls, sections of results, what becomes of them in the template."""

import pytest

from mintjax.renderers import RenderError
from tests.official import official_ids
from tests.renderers.conftest import speaker
from tests.renderers.replies import HI, encoded, follow, written

NAME = "deepseek_v3_0324"
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
ASKED = "<｜User｜>hi<｜Assistant｜>"
YO = {"role": "assistant", "content": "yo"}


def fenced(*calls):
    """A section of calls, each a name and arguments."""
    inside = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{inside}<｜tool▁calls▁end｜>"


def results(*contents, glue="\n"):
    inside = glue.join(f"<｜tool▁output▁begin｜>{one}<｜tool▁output▁end｜>" for one in contents)
    return f"<｜tool▁outputs▁begin｜>{inside}<｜tool▁outputs▁end｜>"


def calling(*calls, content="", **more):
    made = [
        {"type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": made, **more}


def tool(content):
    return {"role": "tool", "content": content}


def text(messages, history="template", name=NAME):
    renderer = speaker(name, history=history)
    whole = written(renderer.render(messages), renderer)
    assert whole.startswith(BOS)
    return whole.removeprefix(BOS)


@pytest.mark.parametrize("history", ["template", "keep"])
def test_turns_and_calls(history):
    f, g = ("f", '{"x":1}'), ("läs", "{}")
    messages = [HI, calling(f, g, content="See."), tool("1"), tool("2"), YO, HI]
    assert text(messages, history) == (
        f"{ASKED}See.{fenced(f, g)}{EOS}{results('1', '2')}yo{EOS}{ASKED}"
    )
    assert text(messages[:4], history).endswith("<｜tool▁outputs▁end｜>")
    cycles = [HI, calling(f), tool("1"), calling(g), tool("2")]
    assert text(cycles, history) == (
        f"{ASKED}{fenced(f)}{EOS}{results('1')}{fenced(g)}{EOS}{results('2')}"
    )


@pytest.mark.parametrize("history", ["template", "keep"])
def test_a_users_message_always_asks(history):
    assert text([HI, HI], history) == ASKED + ASKED
    assert text([HI, tool("1")], history) == ASKED + results("1")


def test_only_the_template_leaves_headers_out():
    system = {"role": "system", "content": "S"}
    for messages, template in (
        ([YO], f"yo{EOS}"),
        ([system, YO], f"Syo{EOS}"),
        ([HI, YO, YO], f"{ASKED}yo{EOS}yo{EOS}"),
    ):
        assert text(messages) == template
        assert (
            text(messages, "keep") == template.removesuffix(f"yo{EOS}") + f"<｜Assistant｜>yo{EOS}"
        )
    assert text([system]) == "S<｜Assistant｜>"


def test_only_the_template_leaves_results_open_before_a_user():
    messages = [HI, calling(("f", "{}")), tool("1"), HI, tool("2")]
    begun = f"{ASKED}{fenced(('f', '{}'))}{EOS}"
    assert text(messages[:4]) == begun + results("1").removesuffix("<｜tool▁outputs▁end｜>") + ASKED
    assert text(messages[:4], "keep") == begun + results("1") + ASKED
    # A result after that goes on with the section.
    assert text(messages).endswith(
        "<｜Assistant｜>\n<｜tool▁output▁begin｜>2<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    )
    assert text(messages, "keep").endswith(ASKED + results("2"))
    assert list(speaker(NAME).render(messages)) == official_ids(NAME, messages)


@pytest.mark.parametrize(
    ("said", "glue"),
    [(f"yo{EOS}", ""), ("yo", EOS), ("<think>R", EOS), ("<｜tool▁calls▁begin｜>", EOS)],
)
def test_what_is_inserted_after_a_reply(said, glue):
    renderer = speaker(NAME)
    following = follow(renderer, encoded(renderer, said), [HI])
    assert written(following, renderer) == glue + ASKED


def test_results_after_sampled_calls():
    renderer = speaker(NAME)
    said = encoded(renderer, fenced(("f", "{}")) + EOS)
    following = follow(renderer, said, [tool("1"), tool("2")])
    assert written(following, renderer) == results("1", "2")
    cut = renderer.render([HI]).with_sampled(said[:6])
    with pytest.raises(RenderError, match="cut off inside a tool call"):
        renderer.render([tool("1")], extend=cut)


def test_calls_come_back():
    renderer = speaker(NAME, history="keep")
    for content in ("", "See.\n", "\n"):
        message = calling(("läs", ' {"x":1.0}'), ("f", "{}"), content=content)
        rendered = renderer.render([HI, message])
        parsed = renderer.parse(rendered.ids[rendered.sampled])
        assert (parsed.message, parsed.stop) == (message, "stop")
        assert list(renderer.render([HI, parsed.message])) == list(rendered)


@pytest.mark.parametrize(
    "inside",
    [
        "tool<｜tool▁sep｜>f\n```json\n{}\n```",
        "function<｜tool▁sep｜>f\n{}",
        "function<｜tool▁sep｜>\n```json\n{}\n```",
    ],
)
def test_malformed_calls(inside):
    renderer = speaker(NAME)
    said = f"a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{inside}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    parsed = renderer.parse(encoded(renderer, said + EOS))
    assert parsed.stop == "malformed" and "no function's name with a fence" in parsed.unread[0]
    assert parsed.message == {"role": "assistant", "content": said}
