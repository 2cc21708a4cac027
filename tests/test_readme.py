"""What the README shows runs, and prints what the README says."""

import re
import shlex

import pytest

from mintjax.train.config_files import load_config
from tests.layout import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)


def test_first_example_prints_what_is_shown(capsys: pytest.CaptureFixture[str]):
    (language, code), (_, shown) = BLOCKS[:2]
    assert language == "python"
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown


def test_example_environment_keeps_its_contract():
    namespace = {}
    exec(next(code for _, code in BLOCKS if "class GuessTheNumber" in code), namespace)
    environment = namespace["GuessTheNumber"]()
    assert environment.reset(7, seed=0)[0]["role"] == "user"
    wrong = environment.step({"role": "assistant", "content": "3"})
    right = environment.step({"role": "assistant", "content": "7"})
    assert (wrong.reward, wrong.done, right.reward, right.done) == (0.0, False, 1.0, True)


def test_commands_shown_are_accepted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    commands = [
        shlex.split(line, comments=True)[2:]
        for line in README.splitlines()
        if line.startswith("mintjax train") and "--help" not in line
    ]
    configs = [load_config(path, overrides) for path, *overrides in commands]
    assert [config.name for config in configs] == ["count_down", "wider"]
    assert configs[1].rollout.groups == 16
