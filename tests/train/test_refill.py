"""Rows that refill: the episodes are those sampled side by side, whatever the rows, the timing and the neighbours."""

import asyncio
import gc
from dataclasses import dataclass, field, replace
from typing import ClassVar

import jax
import numpy as np
import pytest

from mintjax.cache import ContextOverflowError
from mintjax.renderers import get_renderer
from mintjax.train.compiles import counted_compiles
from mintjax.train.environment import Step
from mintjax.train.rollout import RolloutSettings, collect, rollout
from mintjax.train.row_pool import RowPool
from mintjax.train.self_play import Position
from tests.tiny import CONFIG, tiny_policy, tiny_tokenizer

LOGPROB_TOLERANCE = 1e-5
SETTINGS = RolloutSettings(group_size=3, max_tokens=24, max_turns=4, temperature=0.9, capacity=192)
REFILL = replace(SETTINGS, rows=4)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def policy(tokenizer):
    size = tokenizer.get_vocab_size()
    config = replace(CONFIG, vocab_size=size, num_layers=1, context=256)
    return tiny_policy(config=config)


@dataclass
class Uneven:
    """One to five turns and messages of many lengths, by its seed; pays for the length of a reply."""

    turns: int = 0
    waits: int = 0

    async def reset(self, task, seed):
        self.task = task
        if task == "broken":
            raise ValueError("broken")
        return [say("x" * (5 + 7 * (task % 4)))]

    async def step(self, assistant):
        self.turns += 1
        for _ in range(self.waits):
            await asyncio.sleep(0)
        length = len(assistant["content"])
        if (length + self.task) % 3 == 0 or self.turns == 5:
            return Step([], length / 8, True, "finished", anchor=str(self.turns))
        return Step([say("y" * (1 + 9 * (length % 3)))], length / 8, False)


def say(text):
    return {"role": "user", "content": text}


TASKS = [0, 1, "broken", 2, 3, 3, 4, 5]


def play(policy, tokenizer, settings=SETTINGS, make=Uneven, tasks=TASKS, **options):
    return rollout(
        policy, get_renderer(options.pop("name", "chatml")), tokenizer, make, tasks, settings,
        **{"seed": 5, "step": 2} | options,
    )  # fmt: skip


def assert_same(got, want):
    for a, b in zip(got, want, strict=True):
        assert (a.group, a.seat, a.member, a.stop_reason) == (
            b.group,
            b.seat,
            b.member,
            b.stop_reason,
        )
        assert a.error == b.error
        assert a.tokens.tolist() == b.tokens.tolist()
        assert [t.reward for t in a.turns] == [t.reward for t in b.turns]
        assert [t.messages for t in a.turns] == [t.messages for t in b.turns]
        assert [t.decode_stop for t in a.turns] == [t.decode_stop for t in b.turns]
        if len(b.tokens):
            sampled = b.sampled
            assert np.abs(a.logprobs[sampled] - b.logprobs[sampled]).max() < LOGPROB_TOLERANCE


@pytest.fixture(scope="module")
def together(policy, tokenizer):
    played = play(policy, tokenizer)
    reasons = {episode.stop_reason for episode in played.episodes}
    assert reasons == {"finished", "max_turns", "error"}, "the test needs all of them"
    return played


def test_the_episodes_are_those_sampled_side_by_side(policy, tokenizer, together):
    calm = play(policy, tokenizer, REFILL)
    assert_same(calm.episodes, together.episodes)
    assert calm.state is None
    stats, want = calm.stats, together.stats
    assert stats.sampled_tokens == want.sampled_tokens == stats.rows_busy * stats.row_steps
    begun = sum(len(episode.turns) > 0 for episode in calm.episodes)
    assert stats.refills == begun - REFILL.rows
    # Members of a group run their prompt once; so do groups that happen to have the same one, while it is held.
    assert stats.prefix_hits >= begun - (len(TASKS) - 1)
    given = want.prefilled_tokens + want.shared_tokens
    assert stats.prefilled_tokens + stats.shared_tokens == given

    @dataclass
    class Jittery(Uneven):
        waits: int = field(default_factory=iter([*range(7)] * 4).__next__)

    jittery = play(policy, tokenizer, REFILL, Jittery)
    assert_same(jittery.episodes, calm.episodes)
    grown = play(policy, tokenizer, replace(REFILL, capacity=100))
    assert grown.stats.cache_growths > 0
    assert_same(grown.episodes, calm.episodes)


def test_stop_strings_end_replies_in_rows_too(policy, tokenizer):
    want = play(policy, tokenizer, name="role_colon")
    got = play(policy, tokenizer, REFILL, name="role_colon")
    assert_same(got.episodes, want.episodes)


def test_a_limit_on_tokens_cuts_replies_in_rows_too(policy, tokenizer):
    limited = replace(SETTINGS, max_episode_tokens=110)
    want = play(policy, tokenizer, limited)
    cut = [t for e in want.episodes for t in e.turns if t.decode_stop == "overflow"]
    assert cut, "the test needs replies that the limit cuts"
    assert_same(play(policy, tokenizer, replace(limited, rows=4)).episodes, want.episodes)


class Told(Uneven):
    """The task is the prompt."""

    async def reset(self, task, seed):
        self.task = len(task)
        return [say(task)]


def test_prompts_share_what_they_begin_with_in_whole_pieces(policy, tokenizer):
    begin = "z" * 150
    tasks = [begin + "aa", begin + "b" * 20, "z" * 60, begin + "aa", *["z" * 60] * 4]
    settings = replace(SETTINGS, max_turns=1)
    want = play(policy, tokenizer, settings, Told, tasks)
    got = play(policy, tokenizer, replace(settings, rows=4), Told, tasks)
    assert_same(got.episodes, want.episodes)
    prompts = [int((~e.turns[0].sampled).sum()) for e in got.episodes[:: SETTINGS.group_size]]
    assert got.stats.prefilled_tokens == prompts[0] + (prompts[1] - 128) + prompts[2]
    # Room for fewer prompts than are used in turn: the least recently used one is run again.
    assert got.stats.prefix_evictions == 0
    many = ["z" * (40 + number) for number in range(7)] + ["z" * 40]
    stats = play(policy, tokenizer, replace(settings, rows=4), Told, many).stats
    assert stats.prefix_evictions > 0


def test_a_full_context_ends_its_episode_alone(policy, tokenizer):
    class Filling(Told):
        async def step(self, assistant):
            return Step([say("y" * 30)], 1.0, False)

    tasks = ["x" * size for size in (5, 190, 500, 205, 210, 214, 60, 99)]
    want = play(policy, tokenizer, SETTINGS, Filling, tasks)
    got = play(policy, tokenizer, REFILL, Filling, tasks)
    assert_same(got.episodes, want.episodes)
    assert {episode.stop_reason for episode in got.episodes} >= {"overflow"}
    stops = {turn.decode_stop for episode in got.episodes for turn in episode.turns}
    assert "overflow" in stops, "the test needs a reply that the context cuts"
    pool = RowPool(policy, get_renderer("chatml", tokenizer), 4, SETTINGS, prefixes=2)
    with pytest.raises(
        ContextOverflowError, match=r"at most 256 tokens .*; row 0 holds 0, and 256"
    ):
        pool.begin(0, [1] * 256)


def test_many_episodes_compile_nothing_more_and_keep_the_rows_busy(policy, tokenizer):
    def sample(count, seed):
        tasks = [number % 6 for number in range(count)]
        settings = replace(SETTINGS, rows=16)
        return play(policy, tokenizer, settings, tasks=tasks, seed=seed).stats

    sample(6, seed=0)
    gc.collect()
    before = len(jax.live_arrays())
    with counted_compiles() as compiles:
        stats = sample(60, seed=1)
        assert compiles.programs == 0
    gc.collect()
    assert len(jax.live_arrays()) == before, "a cache outlives its rollout"
    assert stats.rows_busy >= 0.85
    assert stats.refills == 60 * SETTINGS.group_size - 16


class Talk:
    """Two seats that speak in turn, for as many moves as the task and what is said make; one in five breaks off."""

    seats = 2

    def reset(self, task, seed):
        self.task, self.moves = task, 0
        return Position(0, {seat: [say("x" * (4 + 9 * seat + task))] for seat in range(2)})

    async def step(self, seat, assistant):
        self.moves += 1
        length = len(assistant["content"])
        if (length + self.task) % 5 == 0:
            raise ValueError("upset")
        if self.moves == 6 or (length + self.task) % 3 == 0:
            return Position(None, rewards={seat: 1.0, 1 - seat: -1.0}, stop_reason="over")
        return Position(1 - seat, {1 - seat: [say("y" * (3 + length % 30))]})


def test_seats_of_a_game_take_their_rows_together(policy, tokenizer):
    """In 4 rows there are two games at most, though 5 episodes would find a prompt to begin with."""
    tasks = [0, 1, 2, 3]
    settings = replace(SETTINGS, max_turns=2)
    want = play(policy, tokenizer, settings, Talk, tasks)
    reasons = {episode.stop_reason for episode in want.episodes}
    assert reasons >= {"over", "error"} and len(reasons) > 2, "a limit ends some game for one seat"
    states = {}

    def done(episodes, state):
        states[episodes[0].group] = [len(episode.tokens) for episode in episodes], state

    for slots in (4, 8):
        refill = replace(settings, rows=4, slots=slots)
        got = play(policy, tokenizer, refill, Talk, tasks, group_done=done)
        assert_same(got.episodes, want.episodes)
        assert [e.seat for e in got.episodes] == [e.seat for e in want.episodes]
        for lengths, state in states.values():
            assert state.prefix.length.size == 2, "what each seat begins with is held once"
            spoken = np.array(lengths) > 0
            assert np.asarray(state.position)[spoken].tolist() == np.array(lengths)[spoken].tolist()
    assert sorted(states) == tasks
    with pytest.raises(ValueError, match=r"rows: a game has 2 seats, .* at least 2, came 1"):
        play(policy, tokenizer, replace(SETTINGS, rows=1), Talk, tasks)


@dataclass
class Watched(Uneven):
    """Says when it opens and closes; the third to open answers when all others have closed, or never."""

    made: ClassVar[list["Watched"]] = []
    alone: ClassVar[asyncio.Event]
    closed: bool = False

    def __post_init__(self):
        Watched.made.append(self)

    async def step(self, assistant):
        if self is Watched.made[2]:
            await Watched.alone.wait()
        return await super().step(assistant)

    async def close(self):
        self.closed = True
        if sum(environment.closed for environment in Watched.made) == COUNT - 1:
            Watched.alone.set()


COUNT = len(TASKS) * SETTINGS.group_size


async def watched(policy, tokenizer, settings, **options):
    Watched.made, Watched.alone = [], asyncio.Event()
    renderer = get_renderer("chatml")
    return await collect(
        policy, renderer, tokenizer, Watched, TASKS, settings, seed=5, step=2, **options
    )


def test_an_environment_that_hangs_holds_up_its_own_row_alone(policy, tokenizer, together):
    async def run():
        # A scheduler that waits for it would wait for ever.
        return await asyncio.wait_for(watched(policy, tokenizer, REFILL), timeout=300)

    assert_same(asyncio.run(run()).episodes, together.episodes)
    assert all(environment.closed for environment in Watched.made)


def test_a_rollout_that_is_stopped_leaves_no_task_and_closes_what_it_opened(policy, tokenizer):
    class Stop(Exception):
        pass

    def stop():
        if len(Watched.made) > 9:
            raise Stop

    async def run(how):
        if how == "between":
            with pytest.raises(Stop):
                await watched(policy, tokenizer, REFILL, between=stop)
        else:
            task = asyncio.create_task(watched(policy, tokenizer, REFILL))
            while len(getattr(Watched, "made", ())) < 9:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    for how in ("between", "cancel"):
        Watched.made = []
        asyncio.run(run(how))
        assert 3 < len(Watched.made) < COUNT
        assert all(environment.closed for environment in Watched.made)


def test_a_fault_of_mintjax_ends_the_rollout(policy, tokenizer):
    def broken(episodes, state):
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        play(policy, tokenizer, REFILL, group_done=broken)


def test_settings_that_cannot_be_are_refused(policy, tokenizer):
    with pytest.raises(ValueError, match=r"group_done: expected None without settings\.rows"):
        play(policy, tokenizer, group_done=lambda episodes, state: None)
    with pytest.raises(ValueError, match="slots: 1 rows and 1 slots cannot hold a group of 3"):
        few = replace(SETTINGS, rows=1, slots=1)
        play(policy, tokenizer, few, group_done=lambda episodes, state: None)
