"""What a canonical reply says, rendered again, gives its ids back."""

from dataclasses import replace
from random import Random

from tests.conversations import conversation
from tests.families import FAMILIES

CONVERSATIONS = 60
# Some formats write arguments without their types.
TYPES = {"query": "string", "limit": "integer", "exact": "boolean", "below": "array"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in TYPES.items()},
            },
        },
    }
    for name in ("search", "läs")
]


def test_parsed_replies_render_as_they_were_said(renderer):
    renderer = replace(renderer, history="keep")
    family = FAMILIES[renderer.name]
    if family.calls == "both":  # arguments given as text need not be spaced as JSON is written
        family = family._replace(calls="dict")
    compared = 0
    for seed in range(CONVERSATIONS):
        messages = conversation(Random(seed), family)
        rendered = renderer.render(messages)
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                said = rendered.ids[rendered.sampled & (rendered.message == number)]
                parsed = renderer.parse(said, tools=TOOLS)
                assert not parsed.unread
                assert len(parsed.attempts) == len(message.get("tool_calls", []))
                messages[number] = parsed.message
                compared += 1
        assert list(renderer.render(messages)) == list(rendered), seed
    assert compared > CONVERSATIONS // 3
