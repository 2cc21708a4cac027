"""Whole renderings equal the official templates, id for id, on text that spells no control token."""

import json
from pathlib import Path
from random import Random

import pytest

from mintjax.renderers import get_renderer
from tests.assets import assets_folder, has_template, vocabulary
from tests.conversations import conversation, tool
from tests.families import FAMILIES
from tests.official import ASKED, official_ids, rendered_ids
from tests.renderers.conftest import speaker

CONVERSATIONS = 1000
GOLDEN = Path(__file__).resolve().parent.parent / "golden"
WITH_GOLDEN = [name for name, family in FAMILIES.items() if family.template]
# A few templates are in no public package: without the assets, those families have golden ids alone.
WITH_TEMPLATE = [name for name in WITH_GOLDEN if has_template(FAMILIES[name].template or "")]


def test_with_the_assets_every_family_is_held_against_its_template():
    assert assets_folder() is None or WITH_TEMPLATE == WITH_GOLDEN


@pytest.mark.parametrize("name", WITH_TEMPLATE)
def test_random_conversations_equal_the_template(name):
    renderer, family = speaker(name), FAMILIES[name]
    for seed in range(CONVERSATIONS):
        random = Random(seed)
        messages = conversation(random, family)
        tools = [tool(random) for _ in range(random.randrange(3))] if family.tools else None
        rendered = list(renderer.render(messages, tools=tools))
        assert rendered == official_ids(name, messages, tools), (seed, messages)


@pytest.mark.parametrize("name", WITH_GOLDEN)
def test_golden_ids(name):
    renderer = speaker(name)
    cases = json.loads((GOLDEN / f"{name}.json").read_text())
    assert cases
    for case in cases:
        ids = renderer.render(case["messages"], tools=case["tools"])
        assert list(ids) == case["ids"], case["name"]


def test_what_was_asked_is_what_the_templates_say():
    kept = json.loads(ASKED.read_text())
    assert len(kept) > 10
    for key, answer in kept.items():
        renderer, messages, tools = json.loads(key)
        if has_template(FAMILIES[renderer].template or "") and not isinstance(answer, str):
            assert rendered_ids(renderer, messages, tools) == answer, key


def test_the_parity_test_sees_a_wrong_default_system_prompt():
    plain = get_renderer("chatml", vocabulary("smollm2"))
    messages = [{"role": "user", "content": "hi"}]
    assert list(plain.render(messages)) != official_ids("smollm2", messages)
    given = [{"role": "system", "content": "S"}, *messages]
    assert list(plain.render(given)) == official_ids("smollm2", given)
