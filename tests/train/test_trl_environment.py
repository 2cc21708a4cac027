"""The classes here are as TRL takes them; nothing in them knows of mintjax."""

import asyncio

import pytest

from mintjax.train.environment import EnvironmentContractError
from mintjax.train.recognition import Maker
from mintjax.train.tool_schema import ToolSchemaError
from mintjax.train.trl_environment import TrlEnvironment, tool_names
from tests.train.hosted import STOP, heard, play, tool_call


class Counter:
    made = 0

    def __init__(self):
        type(self).made += 1
        self.resets = 0

    def reset(self, **row):
        self.count = row.get("start", 0)
        self.goal = row["goal"]
        self.resets += 1
        return f" The counter is at {self.count}."

    def increase(self, by: int) -> int:
        """Increases the counter.

        Args:
            by: By how much.
        """
        self.count += by
        return self.count

    async def explode(self) -> None:
        """Explodes."""
        raise RuntimeError("boom")

    def _hidden(self):
        return self.count

    def get_reward(self) -> float:
        return float(self.count == self.goal)


ROW = {"prompt": "Count to the goal.", "goal": 3, "start": 1}
CALLS = tool_call("increase", '{"by": 1}') + "\n" + tool_call("explode", "{}")


def test_a_class_is_played_as_it_is():
    replies = [CALLS + STOP, tool_call("increase", '{"by": 1}') + STOP, "done" + STOP]
    episode = play(Counter, replies, ROW)
    assert (episode.stop_reason, episode.error) == ("answered", None)
    assert [turn.reward for turn in episode.turns] == [None, None, 1.0]
    first, second, third = heard(episode)
    assert first == [{"role": "user", "content": "Count to the goal. The counter is at 1."}]
    assert [one["content"] for one in second] == ["2", "Error: RuntimeError: boom"]
    assert [one["content"] for one in third] == ["3"]


def test_public_methods_are_tools():
    assert tool_names(Counter) == ["explode", "increase"]
    tools = TrlEnvironment(Counter()).tools
    assert [tool["function"]["name"] for tool in tools] == ["explode", "increase"]
    assert "self" not in tools[1]["function"]["parameters"]["properties"]


def test_instances_are_used_again_unless_something_is_wrong_with_them():
    make, before = Maker(Counter), Counter.made
    for _ in range(3):
        assert play(make, ["done" + STOP], ROW).reward == 0
    assert Counter.made == before + 1
    failed = play(make, ["done" + STOP], {"prompt": "No goal."})
    assert failed.error == "KeyError: 'goal'"
    play(make, [CALLS + STOP, "done" + STOP], ROW)
    assert Counter.made == before + 2
    play(make, ["done" + STOP], ROW)
    assert Counter.made == before + 2, "a tool that fails leaves its instance fit"


def test_methods_of_one_instance_never_run_at_once():
    class Room:
        inside = 0

        def reset(self, **row):
            return None

        async def enter(self) -> int:
            """Enters, and says how many are inside."""
            self.inside += 1
            await asyncio.sleep(0)
            seen, self.inside = self.inside, self.inside - 1
            return seen

        def get_reward(self):
            return 1.0

    calls = tool_call("enter", "{}") * 3
    episode = play(Room, [calls + STOP, "done" + STOP], {"prompt": "Enter."})
    assert [one["content"] for one in heard(episode)[1]] == ["1"] * 3


@pytest.mark.parametrize(
    ("row", "opening"),
    [
        (None, [{"role": "user", "content": "Hello."}]),
        ({"prompt": "Oh. "}, [{"role": "user", "content": "Oh. Hello."}]),
        (
            {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u "}]},
            [{"role": "system", "content": "s"}, {"role": "user", "content": "u Hello."}],
        ),
        (
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "u "}]}]},
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "u "}, {"type": "text", "text": "Hello."}],
                }
            ],
        ),
    ],
)
def test_what_reset_returns_is_put_after_the_prompt(row, opening):
    class Greeter:
        def reset(self, **row):
            return "Hello."

        def get_reward(self):
            return None

    episode = play(Greeter, ["hi" + STOP], row)
    assert heard(episode)[0] == opening and episode.reward is None


def test_rows_are_left_as_they_were():
    row = {"prompt": [{"role": "user", "content": "Count."}], "goal": 1}
    play(Counter, ["done" + STOP], row)
    assert row == {"prompt": [{"role": "user", "content": "Count."}], "goal": 1}


def test_a_class_without_a_reward_of_its_own_takes_a_function():
    bare = type("Bare", (), {k: v for k, v in vars(Counter).items() if k != "get_reward"})

    def judge(completion, environment, goal):
        return environment.count / goal + len(completion)

    episode = play(Maker(bare, reward=judge), ["ok" + STOP], ROW)
    assert episode.reward == pytest.approx(1 / 3 + 2)
    with pytest.raises(EnvironmentContractError, match="the class Bare, which has reset, but"):
        Maker(bare)
    both = play(Maker(Counter, reward=judge), ["ok" + STOP], ROW)
    assert both.error.startswith(
        "EnvironmentContractError: Counter.get_reward: expected this method or a reward function, came both"
    )


@pytest.mark.parametrize(
    ("row", "says", "complaint"),
    [
        ([1], None, r"task: expected a row of a data set, .* came \[1\]"),
        ({"prompt": 1}, None, "prompt: expected a text or a list of messages, came 1"),
        ({}, None, "prompt: expected something for the policy to read"),
        ({"prompt": "x"}, 5, "Greeter.reset: expected a text or None, came int"),
    ],
)
def test_rows_and_resets_that_open_nothing_are_refused(row, says, complaint):
    class Greeter:
        def reset(self, **row):
            return says

        def get_reward(self):
            return 1.0

    error = play(Greeter, ["hi" + STOP], row).error
    with pytest.raises(AssertionError, match="^EnvironmentContractError: " + complaint):
        raise AssertionError(error)


def test_a_method_that_cannot_be_described_is_refused_before_anything_starts():
    class Loose(Counter):
        def look(self, where):
            """Looks."""

    with pytest.raises(ToolSchemaError, match="tool look: parameter 'where': expected a type hint"):
        Maker(Loose)
