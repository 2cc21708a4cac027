import asyncio
import threading

import pytest

from mintjax.train.environment import Step
from mintjax.train.tool_calls import CALLS, FAILURES, answer_calls
from mintjax.train.tool_environment import ToolEnvironment
from mintjax.train.tool_schema import ToolSchemaError
from mintjax.train.tools import make_tools
from tests.train.hosted import STOP, calling_tokenizer, heard, play, tool_call

PATIENCE = 30  # seconds; only a failing test waits so long


def add(x: int, y: int = 1) -> int:
    """Adds.

    Args:
        x: The first.
        y: The second.
    """
    return x + y


async def divide(x: float, y: float) -> float:
    """Divides.

    Args:
        x: What is divided.
        y: By what.
    """
    await asyncio.sleep(0)
    return x / y


class Sums:
    """Asks for a sum and takes the first message without a call as the answer."""

    def reset(self, task, seed):
        return [{"role": "user", "content": "2 + 3?"}]

    def step(self, assistant):
        right = assistant["content"] == "5"
        return Step([], float(right), True, "answered", metrics={"right": right})


def with_tools():
    return ToolEnvironment(Sums(), [add, divide])


def assistant(*calls, **more):
    made = [
        {"type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in calls
    ]
    message = {"role": "assistant", "content": "", "tool_calls": made, "finish_reason": "stop"}
    return message | more


def test_calls_are_answered_until_the_policy_answers():
    calls = tool_call("add", '{"x": 2, "y": 3}') + "\n" + tool_call("divide", '{"x": 1, "y": 0}')
    episode = play(with_tools, [calls + STOP, "5" + STOP])
    assert (episode.stop_reason, episode.reward, episode.error) == ("answered", 1.0, None)
    assert [turn.reward for turn in episode.turns] == [None, 1.0]
    assert heard(episode)[1] == [
        {"role": "tool", "name": "add", "content": "5"},
        {
            "role": "tool",
            "name": "divide",
            "content": "Error: ZeroDivisionError: float division by zero",
        },
    ]
    assert episode.turns[0].metrics == {CALLS: 2.0, FAILURES: 1.0}
    assert episode.turns[1].metrics == {"right": 1.0}


def test_the_policy_is_shown_the_tools():
    episode = play(with_tools, ["5" + STOP])
    prompt = calling_tokenizer().decode(episode.turns[0].tokens, skip_special_tokens=False)
    assert '"name": "add", "description": "Adds."' in prompt and '"required": ["x"]' in prompt


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (("subtract", "{}"), "Error: there is no tool 'subtract'; there are: add, divide"),
        (("add", "{}"), "Error: ToolArgumentError: add: 'x' is missing; it is required"),
        (
            ("add", '{"x": "2"}'),
            "Error: ToolArgumentError: add: x: expected integer, came '2'",
        ),
        (("add", {"x": 2}), "3"),
    ],
)
def test_what_is_wrong_with_a_call_is_told_to_the_policy(call, text):
    step = asyncio.run(answer_calls(assistant(call), make_tools([add, divide])))
    assert [message["content"] for message in step.messages] == [text]
    assert step.metrics == {CALLS: 1.0, FAILURES: float(text != "3")}
    assert (step.reward, step.done) == (None, False)


def test_calls_run_side_by_side_and_are_answered_in_order():
    barrier = threading.Barrier(2)
    order = []

    def meet(name: str) -> str:
        """Waits for the other.

        Args:
            name: Whose.
        """
        barrier.wait(PATIENCE)
        if name == "first":
            barrier.wait(PATIENCE)  # for the second, which is done by now
        order.append(name)
        if name == "second":
            barrier.wait(PATIENCE)
        return name

    message = assistant(("meet", {"name": "first"}), ("meet", {"name": "second"}))
    step = asyncio.run(answer_calls(message, make_tools([meet])))
    assert order == ["second", "first"]
    assert [one["content"] for one in step.messages] == ["first", "second"]


def test_calls_in_turn_wait_for_each_other():
    running = []

    async def enter(name: str) -> int:
        """Enters.

        Args:
            name: Whose.
        """
        running.append(name)
        await asyncio.sleep(0)
        running.remove(name)
        return len(running)

    message = assistant(*[("enter", {"name": name}) for name in "abc"])
    step = asyncio.run(answer_calls(message, make_tools([enter]), in_turn=True))
    assert [one["content"] for one in step.messages] == ["0"] * 3


def test_results_name_the_calls_they_answer():
    message = assistant(("add", {"x": 1}))
    message["tool_calls"][0]["id"] = "call_7"
    (result,) = asyncio.run(answer_calls(message, make_tools([add]))).messages
    assert result == {"role": "tool", "content": "2", "name": "add", "tool_call_id": "call_7"}


def test_a_reply_that_is_cut_inside_a_later_call_runs_none():
    called = []

    def note() -> None:
        """Notes."""
        called.append(1)

    text = tool_call("note", "{}") + "\n<tool_call>"
    episode = play(lambda: ToolEnvironment(Sums(), [note]), [text, "5" + STOP])
    assert (episode.stop_reason, called) == ("answered", [])
    assert heard(episode)[1] == [{"role": "user", "content": "Error: the tool call is not closed"}]


def test_functions_that_cannot_be_tools_and_tools_in_two_places_are_refused():
    with pytest.raises(ToolSchemaError, match="tool <lambda>"):
        ToolEnvironment(Sums(), [lambda: 1])
    with pytest.raises(ValueError, match="environment: expected one without tools, came Tool"):
        ToolEnvironment(with_tools(), [add])


def test_the_environment_is_closed():
    class Closing(Sums):
        closed = 0

        def close(self):
            self.closed += 1

    environment = Closing()
    play(lambda: ToolEnvironment(environment, [add]), ["5" + STOP])
    assert environment.closed == 1
