import asyncio
import threading
from dataclasses import replace

import pytest

from mintjax.train import hosted_episode
from mintjax.train.environment import Step
from tests.train.hosted import RULES, STOP, heard, play, tool_call

MOMENT = 0.5  # seconds that a limit of time gives to what never comes, and that other calls have to be done in
PATIENCE = 60  # seconds; only a failing test waits so long
BROKEN = "<tool_call>\nno JSON\n</tool_call>"


def say(text):
    return {"role": "user", "content": text}


class Endless:
    """Says "more" for ever, and keeps what it hears."""

    tools = ({"type": "function", "function": {"name": "look", "description": "Looks."}},)

    def __init__(self):
        self.heard = []
        self.closed = 0

    async def reset(self, task, seed):
        return [say("begin")]

    async def step(self, assistant):
        self.heard.append(assistant)
        return Step([say("more")], 0.5, done=False)

    async def close(self):
        self.closed += 1


def test_turns_are_limited():
    episode = play(Endless, ["a" + STOP] * 9, rules=replace(RULES, max_turns=3))
    assert (episode.stop_reason, len(episode.turns), episode.error) == ("max_turns", 3, None)
    assert episode.reward == 1.5


def test_tokens_of_the_whole_conversation_are_limited():
    free = play(Endless, ["a" + STOP] * 4)
    lengths = [len(turn.tokens) for turn in free.turns]
    for limit, turns in (
        (sum(lengths[:2]), 2),
        (sum(lengths[:3]) - 2, 2),  # of the third, a stop would fit no more
        (sum(lengths[:3]) - 1, 3),
    ):
        rules = replace(RULES, max_episode_tokens=limit)
        episode = play(Endless, ["a" + STOP] * 4, rules=rules)
        assert (episode.stop_reason, len(episode.turns)) == ("max_episode_tokens", turns)
        assert all((a.tokens == b.tokens).all() for a, b in zip(episode.turns, free.turns))  # noqa: B905


class Hanging(Endless):
    """Hangs in one of its methods; ``kind`` says how."""

    def __init__(self, member, kind):
        super().__init__()
        self.member, self.kind = member, kind
        self.release = threading.Event()

    async def hang(self, member):
        if self.member == member and self.kind == "async":
            await asyncio.get_running_loop().create_future()

    def wait(self, member):
        if self.member == member:
            self.release.wait(PATIENCE)


class HangingAsync(Hanging):
    async def reset(self, task, seed):
        await self.hang("reset")
        return await super().reset(task, seed)

    async def step(self, assistant):
        if self.heard:
            await self.hang("step")
        return await super().step(assistant)


class HangingThread(Hanging):
    def reset(self, task, seed):
        self.wait("reset")
        return [say("begin")]

    def step(self, assistant):
        if self.heard:
            self.wait("step")
        self.heard.append(assistant)
        return Step([say("more")], 0.5, done=False)


@pytest.mark.parametrize(
    ("kind", "member", "turns", "limit"),
    [
        (HangingAsync, "reset", 0, "step_timeout"),
        (HangingAsync, "step", 2, "step_timeout"),
        (HangingThread, "reset", 0, "step_timeout"),
        (HangingThread, "step", 2, "step_timeout"),
        (HangingThread, "step", 2, "episode_timeout"),
    ],
)
def test_a_call_that_hangs_costs_its_episode(kind, member, turns, limit):
    environment = kind(member, "async" if kind is HangingAsync else "thread")
    episode = play(lambda: environment, ["a" + STOP] * 4, rules=replace(RULES, **{limit: MOMENT}))
    environment.release.set()
    assert (episode.stop_reason, len(episode.turns)) == (limit, turns)
    assert [turn.reward for turn in episode.turns] == [0.5, None][:turns]
    if limit == "step_timeout":
        assert f"{member} did not return within 0.5 s (rollout.step_timeout)" in episode.error
    else:
        assert episode.error is None
    assert environment.closed == 1


def test_time_between_calls_counts_for_the_episode(monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(hosted_episode, "time", clock)

    class Slow(Endless):
        async def step(self, assistant):
            clock.now += 25
            return await super().step(assistant)

    episode = play(Slow, ["a" + STOP] * 8, rules=replace(RULES, episode_timeout=60))
    assert (episode.stop_reason, episode.error) == ("episode_timeout", None)
    assert [turn.reward for turn in episode.turns] == [0.5] * 3


def test_a_timeout_of_the_environments_own_is_its_error():
    class Late(Endless):
        async def step(self, assistant):
            raise TimeoutError("the server said nothing")

    episode = play(Late, ["a" + STOP])
    assert (episode.stop_reason, episode.error) == (
        "error",
        "TimeoutError: the server said nothing",
    )


def test_a_close_that_hangs_is_told():
    class Closing(Endless):
        async def close(self):
            await asyncio.get_running_loop().create_future()

    with pytest.warns(RuntimeWarning, match="close of the environment of group 0, member 0"):
        play(Closing, ["a" + STOP], rules=replace(RULES, step_timeout=MOMENT, max_turns=1))


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (lambda: Step([], float("inf"), True, "x"), "Step.reward: expected a finite number"),
        (lambda: Step([], "much", True, "x"), "Step.reward: expected a number, came 'much'"),
        (
            lambda: Step([], 1, True, "x", metrics={"m": None}),
            r"Step.metrics\['m'\]: expected a number",
        ),
        (lambda: None, "step: expected a mintjax.train.environment.Step, came NoneType"),
        (lambda: Step([say(b"x")], 1, False), "RenderError"),
        (lambda: Step([say("\ud800")], 1, False), "message 2"),
    ],
)
def test_what_an_environment_does_wrong_is_named(broken, complaint):
    class Wrong(Endless):
        async def step(self, assistant):
            return broken()

    episode = play(Wrong, ["a" + STOP] * 2)
    assert (episode.stop_reason, len(episode.turns)) == ("error", 1)
    with pytest.raises(AssertionError, match=complaint):
        raise AssertionError(episode.error)


def test_an_environment_that_cannot_be_made_costs_its_episode():
    def make():
        raise OSError("no such data")

    episode = play(make, ["a" + STOP])
    assert (episode.stop_reason, episode.turns) == ("error", ())
    assert episode.error == "OSError: no such data"


def test_a_tool_that_cannot_be_described_costs_its_episode():
    class Undescribed(Endless):
        tools = ({"type": "function", "function": {"name": "look", "parameters": [1]}},)

    episode = play(Undescribed, ["a" + STOP])
    assert episode.stop_reason == "error"
    assert episode.error.startswith("ToolSchemaError: tools[0] (look).parameters: expected")


def test_rewards_of_none_are_kept_apart_from_zero():
    class Silent(Endless):
        async def step(self, assistant):
            return Step([say("more")], None, done=False)

    episode = play(Silent, ["a" + STOP] * 2, rules=replace(RULES, max_turns=2))
    assert [turn.reward for turn in episode.turns] == [None, None] and episode.reward is None


REPLIES = {
    "malformed": BROKEN + STOP,
    "cut inside": '<tool_call>\n{"name": "lo',
    "beside a good one": tool_call("look", "{}") + BROKEN + STOP,
    "cut after a good one": tool_call("look", "{}") + "<tool_call>",
}


@pytest.mark.parametrize("text", REPLIES.values(), ids=REPLIES)
@pytest.mark.parametrize("policy", ["pass", "observe", "end"])
def test_replies_that_cannot_be_read_have_a_policy(text, policy):
    environment = Endless()
    rules = replace(RULES, parse_errors=policy)
    if policy != "pass":
        rules = replace(rules, parse_error_reward=-1.0)
    episode = play(lambda: environment, [text, "fine" + STOP], rules=rules)
    error = episode.turns[0].parse_error
    assert "the tool call" in error
    assert [turn.parse_error for turn in episode.turns[1:]] == [None] * (len(episode.turns) - 1)
    assert episode.turns[0].reward == (0.5 if policy == "pass" else -1.0)
    if policy == "end":
        assert (episode.stop_reason, environment.heard) == ("parse_error", [])
        return
    assert len(episode.turns) == 2 and episode.turns[1].reward == 0.5
    told = heard(episode)[1]
    if policy == "pass":
        assert environment.heard[0]["parse_error"] == error
        assert told == [say("more")]
        assert "parse_error" not in environment.heard[1]
        return
    assert [one["content"] for one in environment.heard] == ["fine"]
    if text == REPLIES["beside a good one"]:
        assert [one["role"] for one in told] == ["tool"]
        assert told[0]["content"] == f"Error: {error}; this call was not carried out"
    else:
        assert told == [say(f"Error: {error}")]


def test_a_call_of_an_unknown_tool_can_be_read():
    environment = Endless()
    rules = replace(RULES, parse_errors="end")
    play(lambda: environment, [tool_call("jump", "{}") + STOP], rules=rules)
    assert environment.heard[0]["tool_calls"][0]["function"]["name"] == "jump"
