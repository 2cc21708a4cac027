import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest

from mintjax.extension import forward
from mintjax.renderers import get_renderer
from mintjax.train.advantages import group_advantages
from mintjax.train.batches import micro_batches
from mintjax.train.environment import EnvironmentContractError, Step
from mintjax.train.environments import Nim
from mintjax.train.estimators import GroupMean
from mintjax.train.hosted_episode import HostedEpisode
from mintjax.train.recognition import Maker
from mintjax.train.rollout import RolloutSettings, rollout
from mintjax.train.self_play import Position
from mintjax.types import Segment
from tests.train.hosted import RULES, STOP, calling_tokenizer, reply
from tests.train.tiny_speaker import CHARACTERS, speaking_policy, speaking_tokenizer

LOGPROB_TOLERANCE = 1e-5
SETTINGS = RolloutSettings(group_size=2, max_tokens=12, max_turns=4, temperature=0.8)
LETTERS = "uvw"  # the names of the seats: the tiny vocabulary has no digits
MOMENT = 0.5  # seconds that a call that hangs is given


def say(text):
    return {"role": "user", "content": text}


def play(make, replies, rules=RULES, task=None):
    """One game, in lockstep, in which each seat says its replies in turn."""
    renderer = get_renderer("qwen2_5", calling_tokenizer())

    async def run():
        sessions = Maker(make).sessions()
        rows = [
            HostedEpisode(session, task, 0, 0, rules, seat) for seat, session in enumerate(sessions)
        ]
        left = [list(texts) for texts in replies]
        # The later seats first: which of them is asked first must not matter.
        await asyncio.gather(*(row.open(seed=3) for row in reversed(rows)))
        asked = []
        for _ in range(20):
            news = [row.render(renderer) for row in rows]
            asked.append([new is not None for new in news])
            await asyncio.gather(
                *(
                    row.answer(new, reply(texts.pop(0) + STOP), renderer, 1.0)
                    for row, new, texts in zip(rows, news, left, strict=True)
                    if new is not None
                )
            )
            await asyncio.gather(*(row.close() for row in rows if row.stop_reason is not None))
        return [row.record(0) for row in rows], asked

    return asyncio.run(run())


def heard(episode):
    return [[message["content"] for message in turn.messages[:-1]] for turn in episode.turns]


def letters(message):
    """What the tiny vocabulary has of a reply."""
    return "".join(character for character in message["content"] if character in CHARACTERS)


class Relay:
    """Passes on what each seat says; over after some moves."""

    def __init__(self, seats=2, moves=4, fault=None):
        self.seats, self.moves, self.fault = seats, moves, fault
        self.said = 0
        self.closed = 0
        self.release = threading.Event()

    def reset(self, task, seed):
        self.seed = seed
        return Position(0, {seat: [say(f"begin {LETTERS[seat]}")] for seat in range(self.seats)})

    async def step(self, seat, assistant):
        self.said += 1
        if self.fault and self.said == self.moves:
            return await self.fault()
        others = [other for other in range(self.seats) if other != seat]
        news = {other: [say(f"{LETTERS[seat]} said {letters(assistant)}")] for other in others}
        if self.said == self.moves:
            rewards = {seat: 1.0, others[0]: -1.0}
            return Position(None, news, rewards, "over", {"last": 1.0}, "end")
        following = (seat + 1) % self.seats
        return Position(following, news, {seat: 0.25}, metrics={"said": self.said})

    def close(self):
        self.closed += 1


def test_seats_move_in_turn_and_hear_of_the_others():
    game = Relay()
    (first, second), asked = play(lambda: game, ["ab", "cd"])
    assert asked[:4] == [[True, False], [False, True]] * 2 and not any(map(any, asked[4:]))
    assert heard(first) == [["begin u"], ["v said c"]]
    assert heard(second) == [["begin v", "u said a"], ["u said b"]]
    assert [turn.reward for turn in first.turns] == [0.25, 0.25 - 1]
    assert [turn.reward for turn in second.turns] == [0.25, 1.0]
    assert [turn.metrics for turn in second.turns] == [{"said": 2.0}, {"last": 1.0}]
    assert [turn.metrics for turn in first.turns] == [{"said": 1.0}, {"said": 3.0}]
    assert [turn.anchor for turn in second.turns] == [None, "end"]
    assert (first.stop_reason, second.stop_reason) == ("over", "over")
    assert (first.seat, second.seat, game.closed, game.seed) == (0, 1, 1, 3)


def test_three_seats():
    episodes, _ = play(lambda: Relay(seats=3, moves=5), ["ad", "be", "c"])
    assert heard(episodes[2]) == [["begin w", "u said a", "v said b"]]
    assert heard(episodes[0])[1] == ["v said b", "w said c"]
    assert [episode.stop_reason for episode in episodes] == ["over"] * 3


def test_a_game_that_ends_before_a_seat_speaks_leaves_it_without_a_turn():
    (first, second), _ = play(Nim, ["9", ""], task=4)
    assert (first.stop_reason, first.reward) == ("illegal", -1.0)
    assert (second.stop_reason, second.turns, second.reward) == ("illegal", (), None)


def test_nim_is_played_to_its_end():
    (first, second), _ = play(Nim, ["12", "3"], task=6)
    assert (first.reward, second.reward) == (1.0, -1.0)
    assert first.stop_reason == second.stop_reason == "won"


def test_a_seat_that_leaves_breaks_the_game_off():
    game = Relay(moves=9)
    (first, second), _ = play(lambda: game, ["ab", "cd"], replace(RULES, max_turns=2))
    assert (first.stop_reason, second.stop_reason) == ("max_turns", "seat_left")
    assert (len(first.turns), len(second.turns)) == (
        2,
        2,
    )  # it learned of its end when it was to move
    assert game.closed == 1


async def raises():
    raise OSError("the board fell over")


async def no_position():
    return None


async def nobody():
    return Position(5, {5: [say("x")]})


async def nothing_to_read():
    return Position(1)


async def too_much():
    return Position(None, {}, {0: float("nan")}, "over")


async def undecided():
    return Position(None)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (raises, "OSError: the board fell over"),
        (no_position, "game: expected a mintjax.train.self_play.Position, came NoneType"),
        (nobody, "Position: expected seats from 0 to 1, came 5"),
        (nothing_to_read, "Position.messages: expected some for seat 1, which is to move"),
        (too_much, r"Position.rewards\[0\]: expected a finite number"),
        (undecided, "Position.stop_reason: expected a word, since nobody is to move"),
    ],
)
def test_a_game_that_goes_wrong_ends_all_its_episodes(fault, complaint):
    game = Relay(moves=3, fault=fault)
    episodes, _ = play(lambda: game, ["ab", "c"])
    assert [episode.stop_reason for episode in episodes] == ["error", "error"]
    assert [len(episode.turns) for episode in episodes] == [2, 1]
    for episode in episodes:
        with pytest.raises(AssertionError, match=complaint):
            raise AssertionError(episode.error)
    assert game.closed == 1


def test_a_game_that_hangs_ends_for_the_others_too():
    async def hang():
        await asyncio.get_running_loop().create_future()

    rules = replace(RULES, step_timeout=MOMENT)
    (first, second), _ = play(lambda: Relay(moves=3, fault=hang), ["ab", "c"], rules)
    assert (first.stop_reason, second.stop_reason) == ("step_timeout", "seat_left")


def test_a_position_says_why_a_game_is_over_and_only_then():
    with pytest.raises(
        EnvironmentContractError, match=r"Position.stop_reason: expected None; came"
    ):
        Position(0, stop_reason="over")


def test_a_seat_is_compared_with_itself(make_episode):
    def seat(number, rewards, group=0):
        return [
            replace(make_episode([reward], group=group, member=member), seat=number)
            for member, reward in enumerate(rewards)
        ]

    # Zero-sum: over both seats the mean is 0, and so would every baseline be.
    episodes = [*seat(0, [1.0, 1.0, -1.0]), *seat(1, [-1.0, -1.0, 1.0]), *seat(0, [1.0, 1.0], 1)]
    episodes += seat(1, [-1.0, -1.0], 1)
    advantages = group_advantages(episodes)
    values = [float(one[0]) for one in advantages.values]
    assert values[:6] == pytest.approx([2 / 3, 2 / 3, -4 / 3, -2 / 3, -2 / 3, 4 / 3])
    assert [bool(one[0]) for one in advantages.trained] == [True] * 6 + [False] * 4
    assert advantages.signal == {0: True, 1: False}


def test_what_is_not_known_of_a_call_that_hung_is_no_return(make_episode):
    late = make_episode([5.0], member=2, stop_reason="step_timeout")
    late = replace(late, error="step did not return within 1 s")
    episodes = [make_episode([1.0]), make_episode([0.0], member=1), late]
    advantages = group_advantages(episodes, GroupMean())
    assert [float(one[0]) for one in advantages.values] == [0.5, -0.5, 0.0]
    assert not advantages.trained[2][0]


def test_blocks_that_share_a_prompt_hold_one_seat(make_episode):
    episodes = [
        replace(make_episode([float(member)], member=member), seat=seat)
        for seat in range(2)
        for member in range(3)
    ]
    (batch,) = micro_batches(episodes, group_advantages(episodes), rows=8, together=4)
    blocks = batch.episodes.reshape(2, 4)
    assert [{episodes[i].seat for i in block if i >= 0} for block in blocks] == [{0}, {1}]


# With a policy.


@pytest.fixture(scope="module")
def policy():
    return speaking_policy()


def sample(policy, games):
    """One group of two games."""
    makers = iter(games)
    return rollout(
        policy,
        get_renderer("chatml"),
        speaking_tokenizer(),
        lambda: next(makers),
        [0],
        SETTINGS,
        seed=0,
    )


def streams(episodes):
    return [one.tokens.tolist() for one in episodes]


def test_a_batch_of_games_is_sampled_seat_by_seat(policy):
    episodes, *_ = sample(policy, [Relay(moves=3), Relay(moves=3, fault=raises)])
    places = [(one.seat, one.member) for one in episodes]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [len(one.turns) for one in episodes] == [2, 2, 1, 1]
    assert [one.stop_reason for one in episodes] == ["over", "error"] * 2
    for first, second in (episodes[::2], episodes[1::2]):
        spoken = letters(first.turns[0].messages[-1])
        assert heard(second)[0] == ["begin v", f"u said {spoken}"]
    tokens = np.zeros((len(episodes), 128), np.int32)
    lengths = np.array([len(one.tokens) for one in episodes], np.int32)
    for row, one in zip(tokens, episodes, strict=True):
        row[: len(one.tokens)] = one.tokens
    logprobs, _ = forward(policy, Segment(tokens, lengths), temperature=SETTINGS.temperature)
    for row, one in zip(np.asarray(logprobs), episodes, strict=True):
        differ = row[: len(one.tokens)][one.sampled] - one.logprobs[one.sampled]
        assert np.abs(differ).max() < LOGPROB_TOLERANCE


def test_the_length_of_other_games_changes_no_sample(policy):
    short = streams(sample(policy, [Relay(moves=4), Relay(moves=1)]).episodes)
    long = streams(sample(policy, [Relay(moves=4), Relay(moves=6)]).episodes)
    assert short[::2] == long[::2] and short[1::2] != long[1::2]


class Deaf(Relay):
    """Tells every seat the same every time, so that nothing but the key tells replies apart."""

    def reset(self, task, seed):
        return Position(0, {0: [say("x")]})

    async def step(self, seat, assistant):
        position = await super().step(seat, assistant)
        return replace(position, messages={1 - seat: [say("x")]})


def test_seats_and_members_draw_different_samples(policy):
    episodes, *_ = sample(policy, [Deaf(moves=2), Deaf(moves=2)])
    firsts = [one.turns[0].tokens[one.turns[0].sampled].tolist() for one in episodes]
    assert len({tuple(ids) for ids in firsts}) == 4

    class Alone:
        def reset(self, task, seed):
            return [say("x")]

        def step(self, assistant):
            return Step([], 1.0, True, "over")

    alone, *_ = sample(policy, [Alone(), Alone()])
    assert streams(alone) == streams(episodes)[:2], "the first seat draws as an only one does"


def test_seats_that_wait_for_one_that_has_ended_end_too(policy):
    games = [Relay(moves=99), Relay(moves=99)]
    episodes, *_ = sample(policy, games)
    assert [len(one.turns) for one in episodes] == [4, 4, 4, 4]
    assert [one.stop_reason for one in episodes] == ["max_turns"] * 2 + ["seat_left"] * 2
    assert [game.closed for game in games] == [1, 1]


def test_a_game_that_cannot_be_made_fails_for_every_seat(policy):
    class Broken:
        def __init__(self):
            raise OSError("no board")

    makers = iter([lambda: Relay(moves=2), Broken])
    episodes, *_ = rollout(
        policy,
        get_renderer("chatml"),
        speaking_tokenizer(),
        lambda: next(makers)(),
        [0],
        SETTINGS,
        seed=0,
    )
    assert [one.stop_reason for one in episodes] == ["over", "error"] * 2
    assert episodes[1].error == episodes[3].error == "OSError: no board"
