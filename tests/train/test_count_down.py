import asyncio

import pytest

from mintjax.train.config import ConfigError, EnvironmentConfig
from mintjax.train.environments import CountDown, CountDownConfig
from mintjax.train.environments.count_down import expected_reply, grade

TOLERANCE = 1e-12


def play(environment, task, replies, finish_reason="stop"):
    """Returns the opening, and the steps that the replies led to."""

    async def run():
        opening = await environment.reset(task, 0)
        steps = []
        for reply in replies:
            message = {"role": "assistant", "content": reply, "finish_reason": finish_reason}
            steps.append(await environment.step(message))
        return opening, steps

    return asyncio.run(run())


def test_a_perfect_episode():
    opening, steps = play(CountDown(), 5, ["5, 4, 3, 2, 1", "4, 3, 2, 1", "3, 2, 1"])
    assert [(message["role"], message["content"]) for message in opening] == [
        ("system", "Count down from the given number."),
        ("user", "Start from 5"),
    ]
    said = [[message["content"] for message in step.messages] for step in steps]
    assert said == [["Start from 4"], ["Start from 3"], []]
    assert [step.reward for step in steps] == [1, 1, 1]
    assert [step.metrics["exact"] for step in steps] == [1, 1, 1]
    assert [step.stop_reason for step in steps] == [None, None, "finished"]


def test_the_worked_example_is_a_solved_turn():
    opening, _ = play(CountDown(worked_example=4), 9, [])
    assert [message["role"] for message in opening] == ["system", "user", "assistant", "user"]
    number = int(opening[1]["content"].removeprefix("Start from "))
    assert number == 4
    assert grade(opening[2]["content"], number, ended=True) == 1


def test_an_environment_is_as_new_after_reset():
    environment = CountDown()
    play(environment, 5, ["", "", ""])
    _, steps = play(environment, 4, ["4, 3, 2, 1"])
    assert steps[0].reward == 1 and not steps[0].done


@pytest.mark.parametrize(
    ("reply", "ended", "reward"),
    [
        ("3, 2, 1", True, 1.0),
        (" 3, 2, 1\n", True, 1.0),
        ("3, 2, 1", False, 0.9 - 0.1),
        ("3,2,1", True, 0.9),
        ("3 2", True, 0.9 * 2 * 2 / (5 + 2)),
        ("3, 2, 1, 0", True, 0.9 * 2 * 5 / (5 + 7)),
        ("Sure: 3, 2, 1", False, 0.9 * 2 * 5 / (5 + 7) - 0.1),
        ("", True, 0.0),
        ("", False, -0.1),
        ("Hello there", True, 0.0),
    ],
)
def test_grades_counted_by_hand(reply, ended, reward):
    assert grade(reply, 3, ended=ended) == pytest.approx(reward, abs=TOLERANCE)


def test_every_right_piece_earns_more():
    pieces = expected_reply(9).split(" ")
    grades = [grade(" ".join(pieces[:n]), 9, ended=True) for n in range(len(pieces) + 1)]
    assert grades == sorted(set(grades))
    assert grades[-1] == 1


def test_a_cut_reply_is_told_by_its_finish_reason():
    _, steps = play(CountDown(), 3, ["3, 2, 1"], finish_reason="length")
    assert steps[0].reward == pytest.approx(0.8, abs=TOLERANCE)
    assert steps[0].metrics["exact"] == 0


def test_a_message_without_text_earns_nothing():
    _, steps = play(CountDown(), 3, [None])
    assert steps[0].reward == 0


def test_a_number_that_later_turns_cannot_start_from_is_refused():
    with pytest.raises(ValueError, match="task: expected a number of at least 3"):
        play(CountDown(), 2, [])


def test_tasks_go_through_all_numbers_before_one_comes_again():
    config = CountDownConfig(numbers=(3, 9))
    stream = [task for step in range(14) for task in config.tasks(5 * step, 5, seed=1)]
    rounds = [stream[start : start + 7] for start in range(0, 70, 7)]
    assert all(sorted(numbers) == list(range(3, 10)) for numbers in rounds)
    assert len({tuple(numbers) for numbers in rounds}) > 1


def test_tasks_depend_on_seed_and_position_alone():
    whole = CountDownConfig().tasks(4, 7, seed=2)
    parts = [CountDownConfig().tasks(4, 2, seed=2), CountDownConfig().tasks(6, 5, seed=2)]
    assert whole == parts[0] + parts[1]
    assert whole != CountDownConfig().tasks(4, 7, seed=3)


def test_the_config_is_registered_and_makes_the_environment():
    assert EnvironmentConfig.get_choice_class("count_down") is CountDownConfig
    environment = CountDownConfig(turns=1, numbers=(1, 2), worked_example=4).make()
    opening, steps = play(environment, 2, ["2, 1"])
    assert len(opening) == 4
    assert steps[0].done


@pytest.mark.parametrize("numbers", [(2, 9), (5, 4)])
def test_numbers_out_of_order_are_refused(numbers):
    with pytest.raises(ConfigError, match=r"environment\.numbers: expected \[low, high\]"):
        CountDownConfig(numbers=numbers)
