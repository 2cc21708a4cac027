import asyncio
from dataclasses import replace

import jax
import numpy as np
import pytest

from mintjax.cache import ContextOverflowError
from mintjax.extension import forward
from mintjax.renderers import get_renderer
from mintjax.train.environment import Step
from mintjax.train.rollout import RolloutSettings, collect, rollout
from mintjax.train.sampler import Sampler
from mintjax.types import Segment
from tests.train.tiny_speaker import speaking_policy, speaking_tokenizer

LOGPROB_TOLERANCE = 1e-5
SETTINGS = RolloutSettings(group_size=2, max_tokens=12, max_turns=4, temperature=0.8)


@pytest.fixture(scope="module")
def tokenizer():
    return speaking_tokenizer()


@pytest.fixture(scope="module")
def policy():
    return speaking_policy()


def say(text, role="user"):
    return {"role": role, "content": text}


class Script:
    """Opens with a text and answers with one after the other; an exception among them is raised."""

    def __init__(self, *texts, opening=None, broken_close=False, yields=0):
        self.texts, self.opening, self.broken_close = list(texts), opening, broken_close
        self.yields = yields
        self.heard = []
        self.closed = False

    async def reset(self, task, seed):
        self.task, self.seed = task, seed
        return self.opening or [say(self.next_text())]

    async def step(self, assistant):
        self.heard.append(assistant)
        for _ in range(self.yields):
            await asyncio.sleep(0)
        if not self.texts:
            return Step([], 1.0, True, "finished", metrics={"turns": len(self.heard)})
        return Step([say(self.next_text())], None, False)

    async def close(self):
        self.closed = True
        if self.broken_close:
            raise OSError("cannot close")

    def next_text(self):
        text = self.texts.pop(0)
        if isinstance(text, Exception):
            raise text
        return text


def play(policy, tokenizer, environments, settings=SETTINGS, name="chatml", **options):
    """Rolls out environments given by group and member."""
    makers = iter(environments)
    tasks = list(range(len(environments) // settings.group_size))
    return rollout(
        policy,
        get_renderer(name),
        tokenizer,
        lambda: next(makers),
        tasks,
        settings,
        **{"seed": 0, **options},
    )


EXAMPLE = [say("x"), say("e", "assistant"), say("y")]


def uneven():
    """Two groups of two: long and short messages, one to three turns, one failure, an opening with an answer in it."""
    return [
        Script("hello there", "go on", "and then"),
        Script("hello there", "a"),
        Script(ValueError("broken"), "never said", opening=EXAMPLE),
        Script("a longer message", "b", opening=EXAMPLE),
    ]


@pytest.mark.parametrize("name", ["chatml", "role_colon"])
def test_one_pass_over_an_episode_repeats_the_samplers_logprobs(policy, tokenizer, name):
    episodes, *_ = play(policy, tokenizer, uneven(), name=name)
    assert [len(episode.turns) for episode in episodes] == [3, 2, 1, 3]
    size = 128
    tokens = np.zeros((len(episodes), size), np.int32)
    for row, episode in zip(tokens, episodes, strict=True):
        row[: len(episode.tokens)] = episode.tokens
    lengths = np.array([len(episode.tokens) for episode in episodes], np.int32)
    logprobs, _ = forward(policy, Segment(tokens, lengths), temperature=SETTINGS.temperature)
    for row, episode in zip(np.asarray(logprobs), episodes, strict=True):
        sampled = episode.sampled
        assert sampled.any() and np.isnan(episode.logprobs[~sampled]).all()
        rescored = row[: len(sampled)][sampled]
        assert np.abs(rescored - episode.logprobs[sampled]).max() < LOGPROB_TOLERANCE


def test_the_token_stream_is_the_chat_format_with_the_samples_in_it(policy, tokenizer):
    environments = uneven()
    episodes, stats, _ = play(policy, tokenizer, environments)
    stops = {tokenizer.token_to_id(name) for name in ("<|im_end|>", "<|endoftext|>")}
    hello, example = [say("hello there")], EXAMPLE
    said = [
        [hello, [say("go on")], [say("and then")]],
        [hello, [say("a")]],
        [example],
        [example, [say("a longer message")], [say("b")]],
    ]
    seen = set()
    for episode, news, environment in zip(episodes, said, environments, strict=True):
        glue = ""
        for turn, messages, heard in zip(episode.turns, news, environment.heard, strict=True):
            prompt = tokenizer.decode(turn.tokens[~turn.sampled], skip_special_tokens=False)
            written = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
            assert prompt == glue + "".join(written) + "<|im_start|>assistant\n"
            assert turn.sampled.argmax() == np.count_nonzero(~turn.sampled)
            sample = turn.tokens[turn.sampled]
            stopped = sample[-1] in stops
            assert turn.decode_stop == ("stop" if stopped else "length")
            assert heard["finish_reason"] == turn.decode_stop
            assert stopped or len(sample) == SETTINGS.max_tokens
            assert not stops & set(sample[:-1].tolist())
            assert turn.messages == (*messages, say(heard["content"], "assistant"))
            glue = "\n" if sample[-1] == tokenizer.token_to_id("<|im_end|>") else "<|im_end|>\n"
            seen.add(turn.decode_stop)
    assert seen == {"stop", "length"}, "the test needs both"
    turns = [turn for episode in episodes for turn in episode.turns]
    # Both members of a group begin with the same tokens, which are fed once.
    firsts = [episode.turns[0] for episode in episodes]
    shared = sum(int((~turn.sampled).sum()) for turn in firsts) // 2
    given = sum(int((~turn.sampled).sum()) for turn in turns)
    assert (stats.prefilled_tokens, stats.shared_tokens) == (given - shared, shared)
    assert stats.sampled_tokens == sum(int(turn.sampled.sum()) for turn in turns)
    # A row has room for 64 of its own tokens at first, then for 128, beside those that its group begins with.
    longest = max(int((~turn.sampled).sum()) for turn in firsts)
    assert (stats.cache_growths, stats.capacity) == (1, longest + 128)


def test_episodes_end_with_their_own_reasons(policy, tokenizer):
    environments = uneven()
    episodes, *_ = play(policy, tokenizer, environments)
    places = [(episode.group, episode.member) for episode in episodes]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [episode.stop_reason for episode in episodes] == [
        "finished",
        "finished",
        "error",
        "finished",
    ]
    assert [episode.error for episode in episodes] == [None, None, "ValueError: broken", None]
    rewards = [[turn.reward for turn in episode.turns] for episode in episodes]
    assert rewards == [[None, None, 1.0], [None, 1.0], [None], [None, None, 1.0]]
    assert episodes[1].turns[1].metrics == {"turns": 2.0}
    assert {episode.policy_version for episode in episodes} == {7}
    assert all(environment.closed for environment in environments)


def test_groups_share_a_task_and_a_seed(policy, tokenizer):
    environments = [Script("x") for _ in range(4)]
    play(policy, tokenizer, environments)
    assert [environment.task for environment in environments] == [0, 0, 1, 1]
    seeds = [environment.seed for environment in environments]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]


def streams(episodes):
    return [episode.tokens.tolist() for episode in episodes]


def test_slow_environments_other_groups_and_a_roomy_cache_change_no_sample(policy, tokenizer):
    calm, *_ = play(policy, tokenizer, uneven())
    jittery = uneven()
    for wait, environment in zip((3, 0, 7, 1), jittery, strict=True):
        environment.yields = wait
    assert streams(play(policy, tokenizer, jittery)[0]) == streams(calm)
    roomy = replace(SETTINGS, capacity=100)
    wide, stats, _ = play(policy, tokenizer, uneven(), roomy)
    assert streams(wide) == streams(calm)
    longest = max(int((~episode.turns[0].sampled).sum()) for episode in wide)
    assert (stats.cache_growths, stats.capacity) == (0, longest + 128)
    replaced = [*uneven()[:2], Script("y"), Script("z", "w")]
    assert streams(play(policy, tokenizer, replaced)[0])[:2] == streams(calm)[:2]


def test_members_steps_and_seeds_draw_different_samples(policy, tokenizer):
    def first_samples(**options):
        episodes, *_ = play(policy, tokenizer, [Script("x") for _ in range(4)], **options)
        return [tuple(episode.tokens[episode.sampled].tolist()) for episode in episodes]

    drawn = [*first_samples(), *first_samples(step=1), *first_samples(seed=2**32 - 1)]
    assert len(set(drawn)) == len(drawn)
    assert first_samples(step=1) == drawn[4:8]


def test_an_episode_that_goes_on_stops_at_max_turns(policy, tokenizer):
    episodes, *_ = play(policy, tokenizer, [Script(*"abcdefgh") for _ in range(4)])
    assert [len(episode.turns) for episode in episodes] == [4] * 4
    assert {episode.stop_reason for episode in episodes} == {"max_turns"}


def test_a_full_context_ends_its_episode_alone(policy, tokenizer):
    context = 64
    small = replace(policy, config=replace(policy.config, context=context))
    empty = len(get_renderer("chatml").render([say("")], tokenizer))
    nearly_full = "a" * (context - empty - 2)
    environments = [Script(nearly_full, "x"), Script(nearly_full, "x"), Script("a" * context)]
    environments.append(Script("x", "y"))
    episodes, stats, _ = play(small, tokenizer, environments)
    assert [episode.stop_reason for episode in episodes] == ["overflow"] * 3 + ["finished"]
    cut = [episode.turns[0].decode_stop for episode in episodes[:2]]
    assert "overflow" in cut, "the test needs a reply that the context cuts"
    for episode, environment, stop in zip(episodes, environments, cut, strict=False):
        assert len(episode.turns) == 1
        assert (len(episode.tokens) == context) or stop == "stop"
        assert environment.heard[0]["finish_reason"] == ("stop" if stop == "stop" else "length")
    assert episodes[2].turns == () and len(episodes[2].tokens) == 0
    assert (stats.cache_growths, stats.capacity) == (0, context - 2 + context)


def test_a_limit_on_tokens_cuts_the_reply_and_ends_the_episode(policy, tokenizer):
    def scripts():
        return [Script(*"abcd") for _ in range(4)]

    free = streams(play(policy, tokenizer, scripts())[0])
    limit = 52
    limited = replace(SETTINGS, max_episode_tokens=limit)
    episodes, *_ = play(policy, tokenizer, scripts(), limited)
    assert {episode.stop_reason for episode in episodes} == {"max_episode_tokens"}
    cut = [episode for episode in episodes if len(episode.tokens) == limit]
    assert cut and max(len(episode.tokens) for episode in episodes) == limit
    assert "overflow" in {episode.turns[-1].decode_stop for episode in cut}
    for whole, stream in zip(free, streams(episodes), strict=True):
        assert whole[: len(stream)] == stream


def test_an_environment_that_hangs_leaves_the_others_alone(policy, tokenizer):
    class Hanging(Script):
        async def step(self, assistant):
            await asyncio.get_running_loop().create_future()

    settings = replace(SETTINGS, step_timeout=0.5)
    environments = [*uneven()[:3], Hanging("a longer message", opening=EXAMPLE)]
    episodes, *_ = play(policy, tokenizer, environments, settings)
    assert episodes[3].stop_reason == "step_timeout" and environments[3].closed
    assert episodes[3].error.startswith("step did not return within 0.5 s (rollout.step_timeout)")
    calm, *_ = play(policy, tokenizer, uneven())
    assert streams(episodes)[:3] == streams(calm)[:3]
    assert streams(episodes)[3] == calm[3].turns[0].tokens.tolist()


def test_a_sampler_refuses_news_that_the_context_does_not_hold(policy, tokenizer):
    sampler = Sampler(policy, get_renderer("chatml", tokenizer), 1, SETTINGS)
    news = [1] * policy.config.context
    assert sampler.room(0, news) == 0
    with pytest.raises(ContextOverflowError, match="context of 512 tokens; 513 are needed"):
        sampler.turn([news], jax.random.split(jax.random.key(0), 1))


def test_environments_that_cannot_start_leave_the_others_alone(policy, tokenizer):
    environments = [
        Script(KeyError("no such task")),
        Script(opening=[say("x", "narrator")]),
        Script("x"),
        Script(opening=[say("x"), say("y", "assistant")]),
    ]
    episodes, *_ = play(policy, tokenizer, environments)
    assert [len(episode.turns) for episode in episodes] == [0, 0, 1, 0]
    assert [episode.stop_reason for episode in episodes] == ["error", "error", "finished", "error"]
    assert episodes[0].error == "KeyError: 'no such task'"
    assert episodes[1].error.startswith("RenderError: message 0: role 'narrator' is unknown")
    assert episodes[3].error.startswith("EnvironmentContractError: reset: expected a last message")


def test_a_close_that_fails_is_told_and_loses_nothing(policy, tokenizer):
    environments = [Script("x"), Script("x"), Script("x", broken_close=True), Script("x")]
    with pytest.warns(RuntimeWarning, match="group 1, member 0 raised OSError: cannot close"):
        episodes, *_ = play(policy, tokenizer, environments)
    assert [episode.stop_reason for episode in episodes] == ["finished"] * 4


def test_groups_of_a_step_that_are_sampled_apart_are_those_sampled_together(policy, tokenizer):
    together, *_ = play(policy, tokenizer, uneven())
    apart, *_ = play(policy, tokenizer, uneven()[2:], first_group=1)
    assert [episode.group for episode in apart] == [1, 1]
    assert streams(apart) == streams(together)[2:]


def test_more_tasks_than_groups_are_refused(policy, tokenizer):
    with pytest.raises(ValueError, match=r"tasks: expected at most 1 \(settings.groups\), came 2"):
        play(policy, tokenizer, uneven(), replace(SETTINGS, groups=1))


def test_a_running_loop_awaits_collect(policy, tokenizer):
    async def inside():
        with pytest.raises(RuntimeError, match="await collect"):
            play(policy, tokenizer, [])
        makers = iter(uneven())
        return await collect(
            policy,
            get_renderer("chatml"),
            tokenizer,
            lambda: next(makers),
            [0, 1],
            SETTINGS,
            seed=0,
        )

    episodes, *_ = asyncio.run(inside())
    assert streams(episodes) == streams(play(policy, tokenizer, uneven())[0])


CHATML_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_tokenizers_own_template_plays_as_the_format_that_it_writes(policy, tokenizer):
    import transformers

    own = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=CHATML_TEMPLATE, eos_token="<|im_end|>"
    )
    found, wanted = (
        rollout(
            policy, renderer, own, lambda: Script("hello there"), [0], SETTINGS, seed=0
        ).episodes
        for renderer in (get_renderer("hf_template", own), get_renderer("chatml", own))
    )
    assert [list(one.tokens) for one in found] == [list(one.tokens) for one in wanted]
    assert [one.stop_reason for one in found] == ["finished", "finished"]
