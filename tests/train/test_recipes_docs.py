"""docs/recipes.md: its settings are configurations, its data can be read, its commands name shipped experiments."""

import json
import re

import pytest
import yaml

from mintjax.renderers import get_renderer
from mintjax.train.config_dataset import DpoConfig, SftConfig
from mintjax.train.config_files import find_config, from_dict
from mintjax.train.dataset_loop import objective_of
from tests.layout import ROOT
from tests.tiny import tiny_tokenizer

DOC = (ROOT / "docs" / "recipes.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", DOC, re.DOTALL)
SETTINGS = [text for language, text in BLOCKS if language == "yaml"]
# The first block shows two lines that exclude each other.
SETTINGS = [*SETTINGS[0].splitlines(), *SETTINGS[1:]]


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_are_configurations(settings):
    config = from_dict(
        {"name": "x", "environment": {"type": "count_down"}, **yaml.safe_load(settings)}
    )
    assert config.kl.on or config.teacher.on


def test_lines_of_data_can_be_read():
    renderer = get_renderer("chatml", tiny_tokenizer())
    lines = [json.loads(text) for language, text in BLOCKS if language == "json"]
    for line, kind in zip(lines, (SftConfig, DpoConfig), strict=True):
        assert objective_of(kind(name="x", data="x")).read(line, renderer)


def test_commands_name_shipped_experiments():
    names = re.findall(r"^mintjax (?:sft|dpo) (\w+) ", DOC, re.MULTILINE)
    assert len(names) == 2 and all(find_config(name) for name in names)
