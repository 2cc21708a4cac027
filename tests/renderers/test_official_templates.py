"""Whole renderings equal the official templates, id for id, on text that spells no control token."""

import json
from pathlib import Path
from random import Random

import pytest

from mintjax.renderers import get_renderer
from tests.assets import vocabulary
from tests.conversations import conversation, tool
from tests.official import OFFICIAL, official_ids

CONVERSATIONS = 300
GOLDEN = Path(__file__).resolve().parent.parent / "golden"


@pytest.mark.parametrize("name", OFFICIAL)
def test_random_conversations_equal_the_template(name):
    renderer = get_renderer(name, vocabulary(OFFICIAL[name][0]))
    calls = name == "qwen3_instruct"
    for seed in range(CONVERSATIONS):
        random = Random(seed)
        messages = conversation(random, calls=calls)
        tools = [tool(random) for _ in range(random.randrange(3))] if calls else None
        assert list(renderer.render(messages, tools=tools)) == official_ids(
            name, messages, tools
        ), (
            seed,
            messages,
        )


@pytest.mark.parametrize("name", OFFICIAL)
def test_golden_ids(name):
    renderer = get_renderer(name, vocabulary(OFFICIAL[name][0]))
    cases = json.loads((GOLDEN / f"{name}.json").read_text())
    assert cases
    for case in cases:
        ids = renderer.render(case["messages"], tools=case["tools"])
        assert list(ids) == case["ids"], case["name"]


def test_the_parity_test_sees_a_wrong_default_system_prompt():
    plain = get_renderer("chatml", vocabulary("smollm2"))
    messages = [{"role": "user", "content": "hi"}]
    assert list(plain.render(messages)) != official_ids("smollm2", messages)
    given = [{"role": "system", "content": "S"}, *messages]
    assert list(plain.render(given)) == official_ids("smollm2", given)
