import asyncio

import pytest

from mintjax.train.config import ConfigError
from mintjax.train.environments import Nim, NimConfig


def reply(text):
    return {"role": "assistant", "content": text, "finish_reason": "stop"}


def moves(sticks, *said, most=3):
    """The positions of a game in which the seats say these things in turn."""

    async def run():
        game = Nim(most)
        positions = [await game.reset(sticks, 0)]
        for text in said:
            positions.append(await game.step(positions[-1].to_move, reply(text)))
        return positions

    return asyncio.run(run())


def test_whoever_takes_the_last_stick_wins():
    start, first, second, third = moves(6, "3", " 1\n", "2")
    assert [one.to_move for one in (start, first, second, third)] == [0, 1, 0, None]
    assert start.messages.keys() == {0} and "There are 6 sticks. Take 1 to 3;" in str(start)
    assert "The other player took 3. There are 3 sticks. Take 1 to 3;" in str(first.messages[1])
    assert "The other player took 1. There are 2 sticks. Take 1 to 2;" in str(second.messages[0])
    assert (third.stop_reason, third.rewards) == ("won", {0: 1.0, 1: -1.0})
    assert [one.anchor for one in (first, second, third)] == ["6", "3", "2"]


@pytest.mark.parametrize("said", ["0", "4", "-1", "two", "1 2", "", "1.", "9" * 5000, "\u0661"])
def test_a_reply_that_is_no_move_loses(said):
    *_, last = moves(5, "1", said)
    assert (last.stop_reason, last.rewards) == ("illegal", {1: -1.0, 0: 0.0})
    assert last.metrics == {"legal": 0.0}


def test_more_than_there_is_cannot_be_taken():
    *_, last = moves(2, "3")
    assert last.stop_reason == "illegal"


def test_games_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="task: expected at least 1 stick, came 0"):
        moves(0)
    with pytest.raises(ValueError, match="most: expected at least 1, came 0"):
        Nim(0)
    for fields, named in (
        ({"most": 0}, "most"),
        ({"sticks": (0, 3)}, "sticks"),
        ({"sticks": (4, 3)}, "sticks"),
    ):
        with pytest.raises(ConfigError, match=f"^environment.{named}"):
            NimConfig(**fields)


def test_tasks_depend_on_seed_and_step_alone():
    config = NimConfig(sticks=(4, 12))
    drawn = config.tasks(0, 50, 0)
    assert drawn == config.tasks(0, 50, 0) != config.tasks(1, 50, 0) != config.tasks(0, 50, 1)
    assert set(drawn) == set(range(4, 13))
