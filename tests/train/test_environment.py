import asyncio
import threading

import numpy as np
import pytest

from mintjax.train.environment import EnvironmentContractError, EnvironmentSession, Step

SAY = {"role": "user", "content": "Say something."}
MORE = {"role": "user", "content": "More."}
REPLY = {"role": "assistant", "content": "Something.", "finish_reason": "stop"}
BARRIER_SECONDS = 30  # only a failing test waits this long


class Scripted:
    """Opens with SAY, then answers with what it was given; every method is synchronous."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.threads = []
        self.closed = False

    def reset(self, task, seed):
        self.threads.append(threading.get_ident())
        return [SAY]

    def step(self, assistant):
        self.threads.append(threading.get_ident())
        return self.answers.pop(0)

    def close(self):
        self.closed = True


def run_steps(environment, replies=(REPLY,)):
    async def run():
        session = EnvironmentSession(environment)
        await session.reset(None, 0)
        steps = [await session.step(reply) for reply in replies]
        await session.close()
        return steps

    return asyncio.run(run())


def test_synchronous_methods_run_in_threads():
    environment = Scripted(Step([MORE], 0.5, False), Step([], None, True, "enough"))
    first, last = run_steps(environment, (REPLY, REPLY))
    assert threading.get_ident() not in environment.threads
    assert (first.messages, first.reward, first.done) == ([MORE], 0.5, False)
    assert (last.messages, last.reward, last.stop_reason) == ([], None, "enough")
    assert environment.closed


def test_asynchronous_methods_run_in_the_loop():
    class Asynchronous:
        tools = ({"name": "look"},)

        async def reset(self, task, seed):
            return [{"role": "user", "content": f"{task} {seed} {threading.get_ident()}"}]

        async def step(self, assistant):
            return Step([], float(assistant["finish_reason"] == "length"), True, "done")

    async def run():
        session = EnvironmentSession(Asynchronous())
        opening = await session.reset("task", 7)
        step = await session.step({**REPLY, "finish_reason": "length"})
        await session.close()
        return session.tools, opening, step

    tools, opening, step = asyncio.run(run())
    assert tools == ({"name": "look"},)
    assert opening[0]["content"] == f"task 7 {threading.get_ident()}"
    assert step.reward == 1


def test_a_plain_method_may_return_an_awaitable():
    async def answer():
        return Step([], 1.0, True, "done")

    class Wrapped(Scripted):
        def step(self, assistant):
            return answer()

    assert run_steps(Wrapped())[0].reward == 1


def test_synchronous_environments_of_a_batch_run_side_by_side():
    barrier = threading.Barrier(2)

    class Waiting(Scripted):
        def step(self, assistant):
            barrier.wait(BARRIER_SECONDS)
            return Step([], 1.0, True, "met")

    async def run():
        sessions = [EnvironmentSession(Waiting()) for _ in range(2)]
        for session in sessions:
            await session.reset(None, 0)
        return await asyncio.gather(*(session.step(REPLY) for session in sessions))

    assert [step.stop_reason for step in asyncio.run(run())] == ["met", "met"]


def test_records_do_not_change_when_the_environment_edits_its_messages():
    message = {"role": "user", "content": "before"}
    step = run_steps(Scripted(Step([message], None, False)))[0]
    message["content"] = "after"
    assert step.messages[0]["content"] == "before"


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([SAY, REPLY, MORE], id="whole"),
        pytest.param([REPLY, MORE], id="own echo"),
        pytest.param([SAY, MORE], id="without the policy's part"),
    ],
)
def test_history_is_refused(history):
    with pytest.raises(EnvironmentContractError, match="step: expected only new messages"):
        run_steps(Scripted(Step(history, 0.0, False)))


ANSWER = {"role": "user", "content": "Answer."}
HINT = {"role": "user", "content": "A hint."}


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        # Changed in its own dicts, which the environment keeps and gives again.
        ([lambda kept: [kept.edited(0, "Shout."), MORE]], "message 0 changed from 'Say something.' to 'Shout.'"),
        # Changed in copies, beside messages that are as they were.
        (
            [lambda kept: [MORE], lambda kept: [{**SAY, "content": "Shout."}, dict(MORE), ANSWER]],
            "message 0 changed from 'Say something.' to 'Shout.'",
        ),
        (
            [lambda kept: [MORE], lambda kept: [ANSWER], lambda kept: [HINT, MORE, HINT, ANSWER]],
            "message 0 changed from 'Say something.' to 'A hint.'",
        ),
        ([lambda kept: [{**SAY, "content": "Shout."}, REPLY, MORE]], "it has an assistant message"),
    ],
)  # fmt: skip
def test_history_with_a_message_changed_is_recognised(steps, complaint):
    class Rewriting(Scripted):
        def reset(self, task, seed):
            self.said = [dict(SAY)]
            return self.said

        def edited(self, place, content):
            self.said[place]["content"] = content
            return self.said[place]

        def step(self, assistant):
            return Step(self.answers.pop(0)(self), 0.0, False)

    with pytest.raises(EnvironmentContractError, match=f"came the history .*{complaint}"):
        run_steps(Rewriting(*steps), [REPLY] * len(steps))


@pytest.mark.parametrize(
    "steps",
    [
        [[MORE, HINT], [ANSWER]],
        [[HINT], [MORE, ANSWER]],
        [[MORE], [{**MORE, "role": "tool"}, MORE, HINT]],
    ],
)
def test_several_new_messages_are_no_history(steps):
    answers = [Step(messages, None, False) for messages in steps]
    got = run_steps(Scripted(*answers), [REPLY] * len(steps))
    assert [step.messages for step in got] == steps


def test_a_message_object_that_is_used_again_with_new_words_is_no_history():
    class Economical(Scripted):
        def step(self, assistant):
            self.message = getattr(self, "message", {"role": "user"})
            self.message["content"] = f"{len(self.answers)} left"
            self.answers.pop(0)
            return Step([self.message], None, False)

    got = run_steps(Economical(1, 2), [REPLY] * 2)
    assert [step.messages[0]["content"] for step in got] == ["2 left", "1 left"]


def test_the_same_words_again_are_no_history():
    steps = run_steps(Scripted(Step([SAY], None, False), Step([SAY], None, False)), (REPLY, REPLY))
    assert [step.messages for step in steps] == [[SAY], [SAY]]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": [MORE], "reward": 0.0, "done": True}, "stop_reason"),
        ({"messages": [MORE], "reward": 0.0, "done": False, "stop_reason": "x"}, "stop_reason"),
        ({"messages": [], "reward": 0.0, "done": False}, "messages"),
        ({"messages": [MORE], "reward": float("nan"), "done": False}, "reward"),
    ],
)
def test_a_step_that_contradicts_itself_is_refused(fields, named):
    with pytest.raises(EnvironmentContractError, match=f"^Step.{named}: expected"):
        Step(**fields)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (([], 1.0, True), "came tuple"),
        (Step("Hello.", 0.0, False), "came str"),
        (Step(["Hello."], 0.0, False), "message 0"),
    ],
)
def test_what_is_no_step_or_no_message_is_refused(answer, complaint):
    with pytest.raises(EnvironmentContractError, match=complaint):
        run_steps(Scripted(answer))


@pytest.mark.parametrize(
    ("opening", "complaint"),
    [([], "at least one message"), ([SAY, REPLY], "a last message that the policy answers")],
)
def test_an_opening_that_the_policy_cannot_answer_is_refused(opening, complaint):
    class Opening(Scripted):
        def reset(self, task, seed):
            return opening

    with pytest.raises(EnvironmentContractError, match=f"reset: expected {complaint}"):
        run_steps(Opening())


def test_numbers_become_pythons_own():
    step = run_steps(Scripted(Step([], np.float32(0.5), True, "x", metrics={"n": np.int64(2)})))[0]
    assert (type(step.reward), step.metrics) == (float, {"n": 2.0})
    assert type(step.metrics["n"]) is float
