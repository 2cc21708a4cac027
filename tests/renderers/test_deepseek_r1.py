"""DeepSeek R1: prompts that open a think block, kept reasoning, and the template's endless sections."""

import pytest

from tests.renderers.conftest import speaker
from tests.renderers.replies import HI, encoded, follow, written
from tests.renderers.test_deepseek_v3 import EOS, YO, calling, fenced, tool
from tests.renderers.test_deepseek_v3 import results as separated
from tests.renderers.test_deepseek_v3 import text as family_text

NAME = "deepseek_r1"
ASKED, PROMPT = "<｜User｜>hi", "<｜Assistant｜><think>\n"
F, G = ("f", '{"x":1}'), ("g", "{}")
THOUGHT = YO | {"reasoning_content": "R"}


def text(messages, history="template"):
    return family_text(messages, history, NAME)


def results(*contents):
    return separated(*contents, glue="")


def test_the_prompt_opens_a_think_block_but_after_a_result():
    renderer = speaker(NAME)
    assert text([HI]) == ASKED + PROMPT
    assert renderer.render([HI])[-3:] == [128804, 128798, 201]
    assert text([HI, calling(F), tool("1")]).endswith("<｜tool▁outputs▁end｜>")


def test_reasoning_is_kept_and_the_template_drops_it():
    messages = [HI, THOUGHT, HI, YO]
    assert text(messages) == f"{ASKED}<｜Assistant｜>yo{EOS}{ASKED}<｜Assistant｜>yo{EOS}"
    assert text(messages, "keep") == (
        f"{ASKED}{PROMPT}R\n</think>\n\nyo{EOS}{ASKED}{PROMPT}\n</think>\n\nyo{EOS}"
    )
    parted = speaker(NAME).can_extend(messages)
    assert parted.message == 1
    (example,) = speaker(NAME).supervised(messages[:2])
    said = speaker(NAME).tokenizer.decode(example.ids[example.sampled])
    assert said == f"R\n</think>\n\nyo{EOS}"


def test_tool_cycles_that_are_kept():
    messages = [HI, calling(F, content="a", reasoning_content="R"), tool("1"), tool("2")]
    messages += [calling(G, content="b"), tool("3"), THOUGHT]
    assert text(messages, "keep") == (
        f"{ASKED}{PROMPT}R\n</think>\n\na{fenced(F)}{EOS}{results('1', '2')}"
        f"b{fenced(G)}{EOS}{results('3')}<think>\nR\n</think>\n\nyo{EOS}"
    )


def test_the_template_never_begins_a_second_section():
    """A later reply with calls loses its header and its text, later results their opening."""
    messages = [HI, calling(F), tool("1"), calling(G, content="lost"), tool("2"), YO]
    later = fenced(G).removeprefix("<｜tool▁calls▁begin｜>")
    assert text(messages) == (
        f"{ASKED}<｜Assistant｜>{fenced(F)}{EOS}"
        + results("1").removesuffix("<｜tool▁outputs▁end｜>")
        + f"\n{later}{EOS}"
        + results("2").removeprefix("<｜tool▁outputs▁begin｜>")
        + f"yo{EOS}"
    )


@pytest.mark.parametrize(
    ("said", "glue"),
    [
        (f"R\n</think>\n\nA{EOS}", ""),
        ("R\n</think>\n\nA", EOS),
        ("R", f"</think>{EOS}"),
        ("", f"</think>{EOS}"),
        ("R<｜tool▁calls▁begin｜>", f"</think>{EOS}"),
        ("R</think><｜tool▁calls▁begin｜>", EOS),
    ],
)
def test_what_is_inserted_after_a_reply(said, glue):
    renderer = speaker(NAME)
    following = follow(renderer, encoded(renderer, said), [HI])
    assert written(following, renderer) == glue + ASKED + PROMPT


def test_what_is_inserted_after_a_reply_to_a_result():
    """It begins with content, so nothing is open where it is cut."""
    renderer = speaker(NAME)
    asked = [HI, tool("1")]
    for said, glue in (("A", EOS), ("<think>\nR", f"</think>{EOS}"), (f"A{EOS}", "")):
        following = follow(renderer, encoded(renderer, said), [HI], first=asked)
        assert written(following, renderer) == glue + ASKED + PROMPT


@pytest.mark.parametrize("reasoning", ["R", "", "\nR\n"])
@pytest.mark.parametrize("calls", [[], [F, G]])
def test_a_reply_comes_back(reasoning, calls):
    renderer = speaker(NAME, history="keep")
    for content in ("A", "", "\n A"):
        message = YO | {"content": content, "reasoning_content": reasoning}
        if calls:
            message["tool_calls"] = calling(*calls)["tool_calls"]
        rendered = renderer.render([HI, message])
        parsed = renderer.parse(rendered.ids[rendered.sampled])
        assert (parsed.message, parsed.stop) == (message, "stop")
    after_result = [HI, calling(F), tool("1"), message]
    rendered = renderer.render(after_result)
    said = rendered.ids[(rendered.message == 3) & rendered.sampled]
    parsed = renderer.parse(said)
    again = renderer.render([*after_result[:3], parsed.message])
    assert list(again) == list(rendered)


@pytest.mark.parametrize(
    ("said", "stop", "content", "reasoning"),
    [
        (f"A{EOS}", "stop", "A", None),
        ("R", "length", "", "R"),
        ("", "length", "", ""),
        ("R</think>A", "length", "A", "R"),
        (f"<think>\nR\n</think>\n\nA{EOS}", "stop", "A", "R"),
        (f"R \n\n</think>\nA{EOS}", "stop", "\nA", "R \n"),
        (f"R</think>A</think>B{EOS}", "stop", "A</think>B", "R"),
    ],
)
def test_reading_think_blocks(said, stop, content, reasoning):
    renderer = speaker(NAME)
    parsed = renderer.parse(encoded(renderer, said))
    assert (parsed.stop, parsed.message["content"]) == (stop, content)
    assert parsed.message.get("reasoning_content") == reasoning


def test_a_call_that_was_cut_in_a_reply_to_a_result_is_no_reasoning():
    parsed = speaker(NAME).parse(encoded(speaker(NAME), "A" + fenced(F)[:40]))
    assert "reasoning_content" not in parsed.message
    assert parsed.attempts[0].status == "unclosed"
