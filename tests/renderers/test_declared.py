"""A first message that declares tools stands for `tools=`."""

import pytest

from mintjax.renderers import RenderError
from mintjax.renderers.declared import declaring
from tests.families import FAMILIES
from tests.renderers.conftest import speaker

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Does it.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
    },
}
ASK = {"role": "user", "content": "hi"}
DECLARING = [name for name, family in FAMILIES.items() if family.tools]


@pytest.mark.parametrize("name", DECLARING)
@pytest.mark.parametrize("system", ["", "Be brief."])
def test_the_ids_are_those_of_tools_beside_the_conversation(name, system):
    renderer = speaker(name)
    given = [{"role": "system", "content": system}] if system else []
    beside = renderer.render([*given, ASK], tools=[TOOL])
    within = renderer.render([declaring([TOOL], system), ASK])
    assert list(within) == list(beside) != list(renderer.render([*given, ASK]))
    # Messages keep the numbers that they have in the caller's list.
    assert within.cursor.messages == 3
    # An extension may name the tools again, or not.
    answered = within.with_sampled(renderer.stop_tokens()[:1])
    assert list(renderer.render([ASK], tools=[TOOL], extend=answered)) == list(
        renderer.render([ASK], extend=beside.with_sampled(renderer.stop_tokens()[:1]))
    )
    (example,) = renderer.supervised([declaring([TOOL], system), ASK, {"role": "assistant"}])
    assert list(example)[: len(beside)] == list(beside)


def test_what_cannot_declare():
    renderer = speaker("qwen3_instruct")
    message = declaring([TOOL], "")
    for messages, tools, says in (
        ([message, ASK], [TOOL], r"tools: message 0 \(system\) declares some already"),
        ([ASK | {"tools": [TOOL]}], None, r"message 0 \(user\): tools stand in a system message"),
        ([message], None, r"message 0 \(system\): it declares tools and says nothing"),
        ([ASK, message], None, r"message 1 \(system\): no format writes the key 'tools'"),
    ):
        with pytest.raises(RenderError, match=says):
            renderer.render(messages, tools=tools)
    with pytest.raises(RenderError, match="'chatml' writes no tool schemas"):
        speaker("chatml").render([message, ASK])
