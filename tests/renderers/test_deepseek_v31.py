"""DeepSeek V3.1: both modes, bare calls, and the tools block of the model card."""

import pytest

from mintjax.renderers import RenderError
from tests.renderers.conftest import speaker
from tests.renderers.replies import HI, encoded, follow, written
from tests.renderers.test_deepseek_v3 import BOS, EOS, YO, calling, tool
from tests.renderers.test_deepseek_v3 import text as family_text

PLAIN, THINKING = "deepseekv3", "deepseekv3_thinking"
ASKED = "<｜User｜>hi"
F, G = ("f", '{"x":1}'), ("läs", "{}")
THOUGHT = YO | {"reasoning_content": "R"}
SYSTEM = {"role": "system", "content": "S"}
SCHEMA = {"name": "f", "description": "Dé", "parameters": {"type": "object", "b": 1, "a": 2}}
BLOCK = """

## Tools
You have access to the following tools:

### f
Description: Dé

Parameters: {"type": "object", "b": 1, "a": 2}

### g
Description: 

Parameters: {}

IMPORTANT: ALWAYS adhere to this exact format for tool use:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>\
{additional_tool_calls}<｜tool▁calls▁end｜>

Where:
- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces"""


def bare(*calls):
    inside = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{inside}<｜tool▁calls▁end｜>"


def result(content):
    return f"<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>"


def text(name, messages, history="template"):
    return family_text(messages, history, name)


def test_prompts():
    assert text(PLAIN, [HI]) == f"{ASKED}<｜Assistant｜></think>"
    assert text(THINKING, [HI]) == f"{ASKED}<｜Assistant｜><think>"
    assert speaker(THINKING).render([HI])[-2:] == [128804, 128798]
    for name in (PLAIN, THINKING):
        assert text(name, [HI, calling(F), tool("1")]).endswith(result("1"))
        assert text(name, [SYSTEM]) == "S"


@pytest.mark.parametrize("history", ["template", "keep"])
def test_turns_and_calls(history):
    messages = [HI, calling(F, G, content="See."), tool("1"), tool("2"), calling(G), tool("3"), YO]
    assert text(PLAIN, messages, history) == (
        f"{ASKED}<｜Assistant｜></think>See.{bare(F, G)}{EOS}{result(1)}{result(2)}"
        f"{bare(G)}{EOS}{result(3)}yo{EOS}"
    )


def test_reasoning_is_kept_and_the_template_drops_it():
    messages = [HI, THOUGHT, HI, calling(F, reasoning_content="R"), tool("1"), THOUGHT, HI, YO]
    head = f"{ASKED}<｜Assistant｜>"
    assert text(THINKING, messages) == (
        f"{head}</think>yo{EOS}{head}</think>{bare(F)}{EOS}{result(1)}yo{EOS}{head}</think>yo{EOS}"
    )
    assert text(THINKING, messages, "keep") == (
        f"{head}<think>R</think>yo{EOS}{head}<think>R</think>{bare(F)}{EOS}{result(1)}"
        f"<think>R</think>yo{EOS}{head}<think></think>yo{EOS}"
    )
    (example,) = speaker(THINKING).supervised(messages[:2])
    said = speaker(THINKING).tokenizer.decode(example.ids[example.sampled])
    assert said == f"R</think>yo{EOS}"


@pytest.mark.parametrize("name", [PLAIN, THINKING])
@pytest.mark.parametrize("wrapped", [True, False])
def test_the_tools_block_of_the_model_card(name, wrapped):
    """The template leaves tools out."""
    renderer = speaker(name)
    tools = [SCHEMA, {"name": "g"}]
    tools = [{"type": "function", "function": one} for one in tools] if wrapped else tools
    for messages, before in (([SYSTEM, HI], "S"), ([HI], ""), ([SYSTEM, SYSTEM, HI], "S\n\nS")):
        rendered = renderer.render(messages, tools=tools)
        assert written(rendered, renderer).startswith(f"{BOS}{before}{BLOCK}{ASKED}")
    controls = [
        renderer.tokenizer.control[one] for one in ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>")
    ]
    assert [list(rendered).count(token) for token in controls] == [1, 1]


def test_tools_that_cannot_be_declared():
    with pytest.raises(RenderError, match=r"tools\[1\]: .*give the tool a name"):
        speaker(PLAIN).render([HI], tools=[SCHEMA, {"description": "D"}])
    with pytest.raises(RenderError, match=r"tools\[0\]: name and description must be texts"):
        speaker(PLAIN).render([HI], tools=[{"name": "f", "description": 1}])


@pytest.mark.parametrize(
    ("said", "glue"),
    [
        (f"R</think>A{EOS}", ""),
        ("R</think>A", EOS),
        ("R", f"</think>{EOS}"),
        ("R</think><｜tool▁calls▁begin｜>", EOS),
    ],
)
def test_what_is_inserted_after_a_reply(said, glue):
    renderer = speaker(THINKING)
    following = follow(renderer, encoded(renderer, said), [HI])
    assert written(following, renderer) == f"{glue}{ASKED}<｜Assistant｜><think>"
    plain = speaker(PLAIN)
    following = follow(plain, encoded(plain, said), [HI])
    assert (
        written(following, plain)
        == f"{glue.removeprefix('</think>')}{ASKED}<｜Assistant｜></think>"
    )


def test_what_is_inserted_after_a_reply_to_a_result():
    """It begins with content, so nothing is open where it is cut."""
    renderer = speaker(THINKING)
    asked = [HI, tool("1")]
    for said, glue in (("A", EOS), ("<think>R", f"</think>{EOS}"), (f"A{EOS}", "")):
        following = follow(renderer, encoded(renderer, said), [HI], first=asked)
        assert written(following, renderer) == f"{glue}{ASKED}<｜Assistant｜><think>"


def test_results_after_sampled_calls():
    renderer = speaker(PLAIN)
    said = encoded(renderer, bare(F, G) + EOS)
    assert written(follow(renderer, said, [tool("1")]), renderer) == result(1)


@pytest.mark.parametrize("name", [PLAIN, THINKING])
def test_a_reply_comes_back(name):
    renderer = speaker(name, history="keep")
    for content in ("A", "", "\n A\n"):
        message = calling(("läs", ' {"x":1.0}'), G, content=content)
        if name == THINKING:
            message["reasoning_content"] = "\nR\n"
        rendered = renderer.render([HI, message])
        parsed = renderer.parse(rendered.ids[rendered.sampled])
        assert (parsed.message, parsed.stop) == (message, "stop")
        assert list(renderer.render([HI, parsed.message])) == list(rendered)


@pytest.mark.parametrize(
    ("said", "stop", "content", "reasoning"),
    [
        (f"A{EOS}", "stop", "A", None),
        ("R", "length", "", "R"),
        (f"</think>A{EOS}", "stop", "A", ""),
        (f"<think>R</think>\nA{EOS}", "stop", "\nA", "R"),
    ],
)
def test_reading_think_blocks(said, stop, content, reasoning):
    parsed = speaker(THINKING).parse(encoded(speaker(THINKING), said))
    assert (parsed.stop, parsed.message["content"]) == (stop, content)
    assert parsed.message.get("reasoning_content") == reasoning


@pytest.mark.parametrize(
    ("call", "says"), [(("", "{}"), "has no name"), (("f", "1"), "no JSON object")]
)
def test_malformed_calls(call, says):
    renderer = speaker(PLAIN)
    parsed = renderer.parse(encoded(renderer, bare(call) + EOS))
    assert parsed.stop == "malformed" and says in parsed.unread[0]
    assert parsed.message["content"] == bare(call)
