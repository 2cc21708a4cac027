import asyncio
from functools import partial

import pytest

from mintjax.train.environment import EnvironmentContractError, Step
from mintjax.train.environments import CountDown, CountDownConfig
from mintjax.train.recognition import Maker, kind_of_environment
from tests.train.hosted import STOP, heard, play


class Native:
    def __init__(self, text="hello"):
        self.text = text

    def reset(self, task, seed):
        return [{"role": "user", "content": self.text}]

    def step(self, assistant):
        return Step([], 1.0, True, "answered")

    def get_reward(self):
        """A helper of its own: what takes a seed is no TRL class."""
        return 1.0


class Trl:
    def reset(self, **row):
        return "hello"

    def step(self, action: str) -> str:
        """Acts.

        Args:
            action: What.
        """
        return action

    def get_reward(self):
        return 0.5


class Seats:
    seats = 2

    def reset(self, task, seed): ...

    def step(self, seat, assistant): ...


def test_kinds_are_told_apart():
    kinds = {Native: "environment", CountDown: "environment", Trl: "trl", Seats: "game", int: None}
    for kind, name in kinds.items():
        assert kind_of_environment(kind) == kind_of_environment(kind()) == name


@pytest.mark.parametrize(
    ("given", "reward"),
    [
        (Native, 1.0),
        (lambda: Native("other"), 1.0),
        (partial(Native, "other"), 1.0),
        (partial(Native, text="other"), 1.0),
        (Trl, 0.5),
        (lambda: Trl(), 0.5),
        (lambda completion, answer: float(completion == answer), 1.0),
        (lambda completion, **row: len(row), 2.0),
    ],
)
def test_what_is_known_is_played(given, reward):
    episode = play(given, ["yes" + STOP], {"prompt": "Say yes.", "answer": "yes"})
    assert (episode.error, episode.stop_reason, episode.reward) == (None, "answered", reward)


def test_a_configuration_makes_environments():
    (session,) = Maker(CountDownConfig().make).sessions()
    assert asyncio.run(session.reset(5, 0))[-1]["content"] == "Start from 5"


def test_a_game_has_a_session_for_each_seat():
    assert len(Maker(Seats).sessions()) == 2

    class More(Seats):
        seats = 3

    games = iter([Seats(), More()])
    make = Maker(lambda: next(games))
    assert len(make.sessions()) == 2
    (broken,) = make.sessions()
    with pytest.raises(EnvironmentContractError, match=r"More.seats: expected 2, .* came 3"):
        asyncio.run(broken.reset(None, 0))


@pytest.mark.parametrize(
    ("given", "came"),
    [
        (Native(), "an instance of Native; every episode needs one of its own"),
        (3, "3"),
        (dict, "the class dict"),
        (lambda prompts, completions: [], "the function '<lambda>' of 'prompts', which scores a b"),
        (lambda text: 1.0, "the function '<lambda>' of 'text'"),
        (type("Half", (), {"reset": lambda self: None}), "the class Half, which has reset, but"),
    ],
)
def test_what_is_not_known_is_refused_at_once(given, came):
    with pytest.raises(EnvironmentContractError, match=r"^environment: expected a cl") as e:
        Maker(given)
    assert f"came {came}" in str(e.value)
    assert "reward(completion, **row)" in str(e.value)


def test_a_function_that_makes_nothing_known_costs_its_episodes():
    error = play(lambda: 5, ["a" + STOP]).error
    assert error.startswith(
        "EnvironmentContractError: environment: expected one of a known kind, came int"
    )


def test_single_turns_open_with_the_prompt_and_are_scored_by_text():
    seen = []

    async def judge(completion, answer, prompt, tolerance=0):
        seen.append((completion, answer, prompt, tolerance))
        return None

    prompt = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "1 + 1?"}]
    episode = play(judge, ["2" + STOP], {"prompt": prompt, "answer": 2, "other": 1})
    assert heard(episode) == [prompt]
    assert seen == [("2", 2, prompt, 0)]
    assert (episode.reward, episode.stop_reason) == (None, "answered")


def test_a_column_that_is_missing_is_named():
    def judge(completion, answer):
        return 1.0

    error = play(judge, ["2" + STOP], {"prompt": "1 + 1?"}).error
    assert "reward 'judge': expected a column 'answer' in the row, came prompt" in error
