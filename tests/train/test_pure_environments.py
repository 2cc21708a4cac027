"""Each pure environment says and pays what its twin on the host does, whatever is said to it."""

import asyncio
import math
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from mintjax.renderers import get_renderer
from mintjax.train import pure_environment
from mintjax.train.config import ConfigError
from mintjax.train.environments import CountDownConfig, GridWalkConfig, GuessTheNumberConfig
from mintjax.train.environments.guess_the_number import opening, rewards
from mintjax.train.pure_environment import PureStep
from mintjax.train.spoken_words import SpokenWords, spoken_words
from mintjax.train.text_table import TextTable, messages_of, text_table
from tests.tiny import tiny_tokenizer

GAMES = {
    "count_down": (
        CountDownConfig(numbers=(3, 4), turns=3, grading="exact"),
        [3, 4],
        ["4, 3, 2, 1", "3, 2, 1", " 3, 2, 1\n", "2, 1", "1", "3,2,1", ""],
    ),
    "guess_the_number": (
        GuessTheNumberConfig(numbers=(1, 5), turns=4, worked_example=4),
        [1, 3, 5],
        ["1", "2", " 3 ", "4", "5", "6", "3.", "three", "33", ""],
    ),
    "grid_walk": (
        GridWalkConfig(size=3, turns=6),
        [(0, 8), (4, 1), (7, 3)],
        ["up", "down", "left", "right", "Right", " down\n", "down down", "north", ""],
    ),
}
ENDINGS = {"<|im_end|>": "stop", "<|endoftext|>": "stop", "": "length"}
GAMES_EACH, SIZE = 12, 24


@pytest.fixture(scope="module")
def renderer():
    return get_renderer("chatml", tiny_tokenizer())


def hosted(config, task, replies):
    """What the host environment says, turn by turn."""

    async def play():
        environment = config.make()
        said = [await environment.reset(task, 0)]
        for text, ending in replies:
            message = {"role": "assistant", "content": text, "finish_reason": ENDINGS[ending]}
            said.append(await environment.step(message))
            if said[-1].done:
                break
        return said

    return asyncio.run(play())


@pytest.mark.parametrize("name", GAMES)
def test_twins_agree_on_replies_of_all_kinds(renderer, name):
    config, tasks, texts = GAMES[name]
    pure, view = config.pure(renderer), renderer.tokenizer
    step = jax.jit(pure.step)
    random = np.random.default_rng(0)
    endings, reasons, paid = list(ENDINGS), set(), set()
    for number in range(GAMES_EACH):
        task = tasks[number % len(tasks)]
        # One game in three is said clearly, so that some get far.
        clear = number % 3 == 0
        replies = [
            (texts[random.integers(len(texts))], endings[0 if clear else random.integers(3)])
            for _ in range(pure.turns)
        ]
        if name == "guess_the_number" and number < 3:
            # Guesses that say less than those before them did.
            replies = [
                (text, "<|im_end|>") for text in (("5", "4", "5", "3"), "4554", "4121")[number]
            ]
        begun, *steps = hosted(config, task, replies)
        state, news = pure.init(jax.random.key(0), jnp.asarray(task, jnp.int32))
        assert messages_of(pure.texts.openings[int(news.row)]) == begun
        for (text, ending), want in zip(replies, steps, strict=False):
            reply = [*view.encode(text)[0], *([view.control[ending]] if ending else [])]
            ids = np.full(SIZE, -1, np.int32)
            ids[: len(reply)] = reply
            got = step(state, jnp.asarray(ids), jnp.int32(len(reply)))
            state = got.state
            assert float(got.reward) == want.reward and bool(got.done) == want.done
            metrics = {n: float(x) for n, x in got.metrics.items() if not math.isnan(x)}
            assert metrics == want.metrics
            anchor = int(got.anchor)
            assert (pure.anchors[anchor] if anchor >= 0 else None) == want.anchor
            paid.add(want.reward)
            if want.done:
                assert pure.stop_reasons[int(got.stop)] == want.stop_reason
                reasons.add(want.stop_reason)
            else:
                assert messages_of(pure.texts.answers[int(got.news.row)]) == list(want.messages)
        assert steps[-1].done
    assert reasons == set(pure.stop_reasons) and len(paid) > 1


def test_tasks_that_there_are_not_have_no_opening(renderer):
    for name, outside in {"count_down": 5, "guess_the_number": 0, "grid_walk": (4, 4)}.items():
        config, *_ = GAMES[name]
        _, news = config.pure(renderer).init(jax.random.key(0), jnp.asarray(outside, jnp.int32))
        assert int(news.length) == 0
        if name != "count_down":
            with pytest.raises(ValueError, match="task: expected"):
                hosted(config, outside, [])


def test_guesses_worked_by_hand():
    """Secret 2 of 1 to 5: 4 is lower, "four" is nothing, 1 is higher, 2 is found with the last of four guesses."""
    replies = [
        ("4", "<|im_end|>"),
        ("four", "<|im_end|>"),
        ("1", "<|im_end|>"),
        ("2", "<|im_end|>"),
    ]
    begun, *steps = hosted(GuessTheNumberConfig(numbers=(1, 5), turns=4), 2, replies)
    assert [message["content"] for message in begun] == [
        "Find the secret number from 1 to 5. Say one number.",
        "Guess.",
    ]
    said = [message["content"] for step in steps for message in step.messages]
    assert said == ["Lower.", "Say one number from 1 to 5.", "Higher."]
    assert [step.reward for step in steps] == [0, 0, 0, 0.25]
    assert [step.anchor for step in steps] == ["1..5", "1..3", "1..3", "2..3"]
    assert [step.metrics for step in steps] == [
        {"clear": 1}, {"clear": 0}, {"clear": 1}, {"clear": 1, "found": 1},
    ]  # fmt: skip
    assert steps[-1].stop_reason == "found"
    assert rewards(4) == [1, 0.75, 0.5, 0.25]
    game = [message["content"] for message in opening(1, 9, 3)][1:]
    assert game == [
        "Guess.",
        "5",
        "Lower.",
        "2",
        "Higher.",
        "3",
        "Right. Now another number. Guess.",
    ]


def test_a_walk_worked_by_hand():
    """From the top left of 3 by 3 to the cell two down: off the grid, away, back, nearer, there."""
    words = ["up", "right", "left", "down", "DOWN"]
    _, *steps = hosted(GridWalkConfig(size=3, turns=6), (0, 6), [(w, "<|im_end|>") for w in words])
    assert [step.reward for step in steps] == [-0.25, -0.25, 0.25, 0.25, 1]
    assert [step.anchor for step in steps] == [
        f"row {row}, column {column}" for row, column in ((1, 1), (1, 1), (1, 2), (1, 1), (2, 1))
    ]
    assert (steps[-1].stop_reason, steps[-1].metrics) == ("arrived", {"clear": 1, "arrived": 1})


def test_the_example_in_the_documentation(renderer):
    """The twenty lines run as they stand, and say what they are there to say."""
    names = {
        "struct": struct, "jnp": jnp, "PureStep": PureStep, "TextTable": TextTable, "SpokenWords": SpokenWords,
        "text_table": text_table, "spoken_words": spoken_words, "renderer": renderer,
        "user": lambda text: {"role": "user", "content": text},
    }  # fmt: skip
    lines = (pure_environment.__doc__ or "").split("\n\n", 2)[2]
    code = compile(f"from __future__ import annotations\n{textwrap.dedent(lines)}", "Echo", "exec")
    exec(code, names)
    echo, view = names["echo"], renderer.tokenizer
    assert isinstance(echo, pure_environment.PureEnvironment)
    state, news = echo.init(jax.random.key(0), jnp.int32(1))
    assert messages_of(echo.texts.openings[int(news.row)])[0]["content"] == "Say no."
    for text, (reward, done, stop) in (("yes", (0, False, 1)), ("No", (1, True, 0))):
        ids = jnp.asarray([*view.encode(text)[0], view.control["<|im_end|>"]], jnp.int32)
        step = echo.step(state, ids, jnp.int32(len(ids)))
        state = step.state
        assert (float(step.reward), bool(step.done), int(step.stop)) == (reward, done, stop)
        assert messages_of(echo.texts.answers[int(step.news.row)])[0]["content"] == "Again."


def test_similarity_is_refused_inside_jit(renderer):
    with pytest.raises(ConfigError, match=r"environment\.grading: expected exact with rollout"):
        CountDownConfig().pure(renderer)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (GuessTheNumberConfig, "numbers", (3, 3)),
        (GuessTheNumberConfig, "turns", 0),
        (GuessTheNumberConfig, "worked_example", 10),
        (GridWalkConfig, "size", 1),
        (GridWalkConfig, "turns", 0),
    ],
)
def test_ranges_are_checked(kind, field, value):
    with pytest.raises(ConfigError, match=rf"environment\.{field}: expected"):
        kind(**{field: value})


def test_walks_are_between_two_cells_and_the_same_for_a_seed():
    config = GridWalkConfig(size=2)
    tasks = config.tasks(0, 40, seed=1)
    assert set(map(len, map(set, tasks))) == {2} and {c for task in tasks for c in task} == {
        *range(4)
    }
    assert [task for first in range(0, 40, 10) for task in config.tasks(first, 10, seed=1)] == tasks
    assert config.tasks(0, 40, seed=2) != tasks
