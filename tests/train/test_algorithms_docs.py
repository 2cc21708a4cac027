"""docs/algorithms.md names every loss, correction, advantage and normaliser; its settings and examples work."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.train.advantages import group_advantages
from mintjax.train.config_files import from_dict, load_config
from mintjax.train.config_help import field_docs
from mintjax.train.config_schema import dotted_fields
from mintjax.train.corrections import Correction
from mintjax.train.estimators import Estimator
from mintjax.train.losses import Loss, LossInputs
from mintjax.train.normalisers import NORMALISERS
from tests.layout import ROOT

DOC = (ROOT / "docs" / "algorithms.md").read_text()


def rows(heading):
    """The cells of the table below a heading, without its head."""
    section = DOC.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def code(cell):
    return re.findall(r"`([^`]*)`", cell)


@pytest.mark.parametrize(
    ("heading", "kinds"),
    [("Losses", Loss), ("Off-policy correction", Correction), ("Advantages", Estimator)],
)
def test_the_tables_name_what_is_registered_with_its_fields_and_their_defaults(heading, kinds):
    known = {
        name: kind
        for name, kind in kinds.get_known_choices().items()
        if kind.__module__.startswith("mintjax.")
    }
    table = {code(cells[0])[0]: cells for cells in rows(heading)}
    assert table.keys() == known.keys()
    for name, cells in table.items():
        told = dict(re.findall(r"`(\w+)` ([\w.-]+)", cells[2]))
        assert told.keys() == field_docs(known[name]).keys(), name
        for field, default in told.items():
            value = getattr(known[name](), field)
            words = {None: "null", False: "false", True: "true"}
            assert default == words.get(value, value) or float(default) == value, (name, field)


def test_the_table_of_normalisers_names_them_all():
    assert [code(cells[0])[0] for cells in rows("Normalisers")] == list(NORMALISERS)


def test_every_setting_is_a_field():
    fields = {".".join(keys) for keys in dotted_fields()}
    settings = [code(cells[0])[0] for cells in rows("Settings")]
    assert len(settings) > 5 and set(settings) <= fields


@pytest.mark.parametrize(("name", "settings"), rows("Recipes"))
def test_every_recipe_is_a_configuration(name, settings):
    (overrides,) = code(settings)
    config = load_config("count_down", overrides.split())
    for override in overrides.split():
        section, *field = override.split("=")[0].split(".")
        assert field in ([], ["type"]) or hasattr(getattr(config, section), field[0]), override


def test_the_examples_can_be_named_in_a_configuration(make_episode, monkeypatch):
    for kinds in (Loss, Estimator):
        monkeypatch.setattr(kinds, "_choice_registry", dict(kinds._choice_registry))
    found = {}
    for example in re.findall(r"```python\n(.*?)```", DOC, re.S):
        exec(compile(example, "docs/algorithms.md", "exec"), found)
    config = from_dict(
        {
            "name": "x",
            "environment": {"type": "count_down"},
            "loss": {"type": "sigmoid_ratio", "sharpness": 8},
            "advantage": {"type": "best_of_group"},
            "gradients": {"plan": "reverse_only"},
        }
    )
    inputs = LossInputs(*(jnp.ones(1), jnp.ones(1), jnp.full(1, 3.0), jnp.full(1, -2.0)))
    assert config.loss(jnp.full(1, -2.0), inputs) == pytest.approx(-1.5)
    episodes = [make_episode([float(i)], member=i) for i in range(3)]
    advantages = group_advantages(episodes, config.advantage)
    assert np.concatenate(advantages.trained).tolist() == [False, False, True]
