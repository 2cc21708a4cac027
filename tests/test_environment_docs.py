"""The examples of docs/environments.md run, and do what the text says."""

import re

import pytest

from mintjax.renderers import get_renderer
from mintjax.train.config import EnvironmentConfig
from mintjax.train.config_rollout import RolloutConfig
from mintjax.train.config_schema import fields_of
from mintjax.train.self_play import seat_environments
from tests.layout import ROOT
from tests.train.hosted import STOP, heard, play, tool_call
from tests.train.tiny_speaker import speaking_policy, speaking_tokenizer

DOC = (ROOT / "docs" / "environments.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)


def block(*words):
    """What the blocks that hold these words define."""
    namespace = {"__name__": "docs"}
    for word in words:
        (code,) = (code for code in BLOCKS if word in code)
        exec(compile(code, "docs/environments.md", "exec"), namespace)
    return namespace


def test_an_environment_in_twenty_lines():
    (code,) = (code for code in BLOCKS if "class GuessTheNumber:" in code)
    assert len(code.splitlines()) <= 20
    guess = block("class GuessTheNumber:")["GuessTheNumber"]
    episode = play(guess, ["3" + STOP, "9" + STOP, "7" + STOP], 7)
    assert [turn.reward for turn in episode.turns] == [0.0, 0.0, 1.0]
    assert [turn[-1]["content"] for turn in heard(episode)[1:]] == ["Higher.", "Lower."]
    assert (episode.stop_reason, episode.error) == ("found", None)


def test_a_rollout(capsys):
    namespace = block("class GuessTheNumber:")

    class Guess(namespace["GuessTheNumber"]):
        """Asks in words that the tiny vocabulary has."""

        def reset(self, task, seed):
            super().reset(task, seed)
            return [{"role": "user", "content": "guess"}]

    namespace |= {"GuessTheNumber": Guess, "renderer": get_renderer("chatml")}
    namespace |= {"policy": speaking_policy(), "tokenizer": speaking_tokenizer()}
    (code,) = (code for code in BLOCKS if "RolloutSettings(" in code)
    exec(code, namespace)
    assert capsys.readouterr().out == f"{[('no_number', -1.0)] * 8}\n"


@pytest.fixture
def registry():
    """The kinds of environment, put back afterwards."""
    before = dict(EnvironmentConfig._choice_registry)
    yield
    EnvironmentConfig._choice_registry = before


def test_a_configuration(registry):
    kind = block("class GuessTheNumber:", "class GuessTheNumberConfig")["GuessTheNumberConfig"]
    assert EnvironmentConfig.get_choice_class("guess") is kind
    assert kind().tasks(0, 3, 0) == [1, 2, 3]
    assert play(kind().make, ["5" + STOP], 5).reward == 1


def test_tools():
    row = {"prompt": "How many metres are 2 miles?", "answer": "3218.688"}
    calls = tool_call("convert", '{"amount": 2}') + tool_call("convert", '{"amount": "2"}')
    episode = play(block("class GuessTheNumber:", "def convert")["make"], [calls + STOP, "3218.688" + STOP], row)  # fmt: skip
    assert [one["content"] for one in heard(episode)[1]] == [
        "3218.688",
        "Error: ToolArgumentError: convert: amount: expected number, came '2'",
    ]
    assert (episode.stop_reason, episode.reward) == ("answered", 1.0)


def test_a_trl_class():
    namespace = block("class Counter")
    replies = [tool_call("increase", '{"by": 5}') + STOP, "Done." + STOP]
    episode = play(namespace["Counter"], replies, namespace["rows"][0])
    assert heard(episode)[0][0]["content"] == "Increase the counter. Stop at 5."
    assert (episode.stop_reason, episode.reward) == ("answered", 1.0)


def test_a_reward_function():
    namespace = block("def same_length")
    assert play(namespace["same_length"], ["app" + STOP], namespace["tasks"][0]).reward == -0.4


def test_a_game():
    from tests.train.test_self_play import play as play_game

    game = block("class MatchingPennies")["MatchingPennies"]
    assert len(seat_environments(game())) == 2
    for said, rewards in (
        ((["heads"], ["tails"]), [1.0, -1.0]),
        ((["tails"], ["tails"]), [-1.0, 1.0]),
        ((["heads"], ["coins"]), [0.0, -1.0]),
    ):
        episodes, _ = play_game(game, said)
        assert [episode.reward for episode in episodes] == rewards


@pytest.mark.parametrize("name", ["max_turns", "max_episode_tokens", "step_timeout", "episode_timeout"])  # fmt: skip
def test_limits_are_told_as_they_are(name):
    row = next(line for line in DOC.splitlines() if line.startswith(f"| `{name}` |"))
    default = getattr(RolloutConfig(), name)
    told = "null" if default is None else f"{default:g}"
    assert row.split("|")[2].split(":")[0].strip() == told and row.endswith(f"| `{name}` |")
    assert name in fields_of(RolloutConfig)
