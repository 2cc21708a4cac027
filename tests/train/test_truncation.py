"""Truncated and overlong episodes, on batches worked by hand."""

from dataclasses import replace

import pytest

from mintjax.train.advantages import group_advantages
from mintjax.train.config_rollout import TruncationConfig
from mintjax.train.estimators import GroupMean
from mintjax.train.truncation import overlong_penalty, shaped, truncated, truncation_metrics

TOLERANCE = 1e-12
SOFT = TruncationConfig(budget=100, cache=20)


def rewards(episodes):
    return [[turn.reward for turn in episode.turns] for episode in episodes]


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    [(0, 0), (80, 0), (81, 0.05), (90, 0.5), (99, 0.95), (100, 1), (101, 1), (10_000, 1)],
)
def test_the_penalty_grows_over_the_cache_to_the_budget(tokens, penalty):
    assert overlong_penalty(tokens, SOFT) == pytest.approx(penalty, abs=TOLERANCE)


def test_without_a_cache_the_penalty_is_all_or_nothing_and_without_a_budget_nothing():
    assert overlong_penalty(100, TruncationConfig(budget=100)) == 0
    assert overlong_penalty(101, TruncationConfig(budget=100)) == 1
    assert overlong_penalty(10_000, TruncationConfig()) == 0


def test_the_penalty_is_taken_off_the_last_reward_by_sampled_tokens_alone(make_episode):
    # 90 tokens are sampled in each; those that were put in count nothing.
    long = {"prompts": [500, 500], "samples": [60, 30]}
    episodes = [
        make_episode([1.0, 0.25], **long),
        make_episode([1.0, None], member=1, **long),
        make_episode([None, None], member=2, **long),
        make_episode([1.0, 0.25], member=3, prompts=[500, 500], samples=[40, 30]),
        make_episode([], member=4, stop_reason="error"),
    ]
    found = shaped(episodes, SOFT)
    assert rewards(found) == [[1.0, -0.25], [0.5, None], [None, None], [1.0, 0.25], []]
    assert rewards(episodes)[0] == [1.0, 0.25], "what the environment gave is left as it was"
    metrics = truncation_metrics(episodes, SOFT)
    assert metrics == {"truncation/episodes": 0, "truncation/penalty_mean": 1.5 / 5}


def test_an_episode_is_truncated_by_its_reason_or_its_last_reply(make_episode):
    ended = make_episode([0.0, 0.0], decode_stops=["length", "stop"])
    cut = make_episode([0.0, 0.0], decode_stops=["stop", "length"])
    full = make_episode([0.0], decode_stops=["overflow"])
    limited = make_episode([0.0], stop_reason="max_turns")
    failed = make_episode([], stop_reason="error")
    options = TruncationConfig()
    assert [truncated(x, options) for x in (ended, cut, full, limited, failed)] == [
        False, True, True, True, False,
    ]  # fmt: skip
    assert not truncated(limited, TruncationConfig(reasons=("overflow",)))
    assert truncation_metrics([ended, cut, full, limited], options) == {"truncation/episodes": 0.75}


def test_a_masked_episode_is_neither_trained_nor_compared_with(make_episode):
    episodes = [
        make_episode([1.0], member=0),
        make_episode([0.0], member=1),
        make_episode([0.0, 0.0], member=2, decode_stops=["stop", "length"]),
        make_episode([5.0], member=3, stop_reason="max_turns"),
    ]
    masking = TruncationConfig(episodes="mask")
    taken = group_advantages(shaped(episodes, TruncationConfig()), GroupMean())
    masked = group_advantages(shaped(episodes, masking), GroupMean())
    assert [row.tolist() for row in taken.values] == [[-0.5], [-1.5], [-1.5, -1.5], [3.5]]
    assert [row.tolist() for row in masked.values] == [[0.5], [-0.5], [0.0, 0.0], [0.0]]
    assert [row.any() for row in masked.trained] == [True, True, False, False]
    # One that is left alone has nothing to be compared with.
    alone = group_advantages(shaped(episodes[1:], masking), GroupMean())
    assert alone.signal == {0: False}


def test_a_masked_episode_has_no_penalty_to_bear(make_episode):
    episode = make_episode([1.0], samples=[200], decode_stops=["length"])
    assert rewards(shaped([episode], replace(SOFT, episodes="mask"))) == [[None]]
    assert rewards(shaped([episode], SOFT)) == [[0.0]]
