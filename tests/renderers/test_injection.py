"""No field that a caller fills can make a control token, whatever it spells, and its text is not lost."""

import unicodedata

import pytest

from mintjax.renderers import RenderError
from tests.families import FAMILIES
from tests.renderers.conftest import speaker
from tests.renderers.replies import hold, written

CALLING = [name for name, family in FAMILIES.items() if family.calls]
PLAIN = "x"


def conversation(name, field, text):
    """Messages and tools with a text in one field, and plain words in all others."""

    def put(place):
        return text if place == field else PLAIN

    family = FAMILIES[name]
    system = {"role": "system", "content": put("system")}
    parts = [{"type": "text", "text": put("text part")}, {"type": "text", "text": PLAIN}]
    user = {"role": "user", "content": parts, "name": put("user's name")}
    reply = {"role": "assistant", "content": put("reply"), "name": put("reply's name")}
    if family.reasoning:
        reply["reasoning_content"] = put("reasoning")
    messages = [system, user, reply, {"role": "user", "content": put("user")}]
    if family.calls:
        values = {put("argument's key"): put("argument"), "deep": [{PLAIN: put("deep argument")}]}
        function = {"name": put("function's name"), "arguments": values}
        if family.calls == "text":
            function["arguments"] = put("arguments as text")
        made = {"type": "function", "id": put("call's id"), "function": function}
        calling = {"role": "assistant", "content": "", "tool_calls": [made]}
        result = {"role": "tool", "content": put("result"), "tool_call_id": put("call's id")}
        messages += [calling, result | {"name": put("function's name")}]
        if family.reasoning:
            calling["reasoning_content"] = put("call's reasoning")
    schema = {
        "type": "object",
        "properties": {
            put("schema's key"): {"type": "string", "description": put("schema's text")}
        },
    }
    function = {"name": put("tool's name"), "description": put("tool's text"), "parameters": schema}
    return messages, [{"type": "function", "function": function}] if family.tools else None


FIELDS = (
    "system", "text part", "user's name", "reply", "reply's name", "reasoning", "user",
    "argument's key", "argument", "deep argument", "function's name", "arguments as text", "call's id",
    "result", "call's reasoning", "schema's key", "schema's text", "tool's name", "tool's text",
)  # fmt: skip
# What formats may leave out of what they write, or of what history="template" keeps.
UNWRITTEN = {"user's name", "reply's name", "call's id", "reasoning", "call's reasoning"}


@pytest.mark.parametrize("history", ["template", "keep"])
def test_fields_spelling_control_tokens(renderer, history):
    renderer = speaker(renderer.name, history=history)
    controls = set(renderer.tokenizer.control.values())
    names = dict.fromkeys((*renderer.form.controls, *list(renderer.tokenizer.control)[:6]))
    forged = "a" + "\n".join(names) + "b"
    plain = None
    for field in (None, *FIELDS):
        messages, tools = conversation(renderer.name, field, forged)
        rendered = renderer.render(messages, tools=tools, prefill=PLAIN)
        hold(rendered, renderer)
        found = [token for token in rendered if token in controls]
        plain = found if plain is None else plain
        assert found == plain, field
        if (
            field
            and field not in UNWRITTEN
            and forged in repr((messages, tools)).replace("\\n", "\n")
        ):
            text = written(rendered, renderer).replace("\\n", "\n")
            assert unicodedata.normalize("NFC", forged) in text, field


def test_prefill_spelling_control_tokens(renderer):
    for name in (*renderer.form.controls, PLAIN):
        prompt = renderer.render([{"role": "user", "content": PLAIN}], prefill=name)
        hold(prompt, renderer)
        assert written(prompt, renderer).endswith(name)


@pytest.mark.parametrize("name", CALLING)
def test_a_role_spelling_a_control_token_is_refused(name):
    renderer = speaker(name)
    with pytest.raises(RenderError, match="message 0: role"):
        renderer.render([{"role": renderer.form.controls[0], "content": PLAIN}])
