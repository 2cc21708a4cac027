import math
import statistics

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mintjax.train.advantages import (
    ESTIMATORS,
    GRPO_EPSILON,
    NORMALISERS,
    advantage_metrics,
    divide,
    divisors,
    group_advantages,
    normalise,
)

TOLERANCE = 1e-9

# Few values, so that equal rewards and whole constant groups come up often.
REWARDS = st.one_of(st.none(), st.sampled_from([-0.1, 0.0, 0.1, 0.3, 1.0]))
GROUPS = st.lists(st.lists(REWARDS, min_size=1, max_size=3), min_size=2, max_size=4)


def total(rewards):
    """The return of an episode, None where no turn has a reward."""
    known = [reward for reward in rewards if reward is not None]
    return math.fsum(known) if known else None


def less_mean(score, others):
    return score - statistics.fmean(others)


def less_mean_over_deviation(score, others):
    return less_mean(score, others) / (statistics.stdev(others) + GRPO_EPSILON)


def less_mean_of_others(score, others):
    rest = list(others)
    rest.remove(score)
    return less_mean(score, rest)


# What a turn is scored by, given the episode's rewards and the turn's place; and how a score becomes an advantage.
DEFINITIONS = {
    "group_mean": (lambda rewards, k: total(rewards), less_mean),
    "grpo": (lambda rewards, k: total(rewards), less_mean_over_deviation),
    "rloo": (lambda rewards, k: total(rewards), less_mean_of_others),
    "group_turn_mean": (lambda rewards, k: rewards[k], less_mean),
    "turn_returns": (lambda rewards, k: total(rewards[k:]), less_mean),
}


def by_definition(name, group):
    """Advantages of one group, or None, an episode and a turn at a time."""
    score, compare = DEFINITIONS[name]
    per_episode = name in ("group_mean", "grpo", "rloo")
    result = []
    for rewards in group:
        row = []
        for k in range(len(rewards)):
            rivals = [other for other in group if per_episode or len(other) > k]
            known = [s for s in (score(other, k) for other in rivals) if s is not None]
            own = score(rewards, k)
            compared = own is not None and max(known) > min(known)
            row.append(compare(own, known) if compared else None)
        result.append(row)
    return result


@pytest.mark.parametrize("name", ESTIMATORS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(group=GROUPS)
def test_estimators_follow_their_definitions(make_episode, name, group):
    episodes = [make_episode(rewards, member=i) for i, rewards in enumerate(group)]
    advantages = group_advantages(episodes, name)
    expected = by_definition(name, group)
    assert [[*row] for row in advantages.trained] == [
        [advantage is not None for advantage in row] for row in expected
    ]
    for values, row in zip(advantages.values, expected, strict=True):
        assert values == pytest.approx([advantage or 0 for advantage in row], abs=TOLERANCE)
    assert advantages.signal == {
        0: any(advantage is not None for row in expected for advantage in row)
    }


def test_groups_are_compared_apart_in_any_order(make_episode):
    rewards = {(0, 0): [1.0], (0, 1): [0.0], (1, 0): [5.0], (1, 1): [9.0]}
    order = [(1, 1), (0, 0), (1, 0), (0, 1)]
    episodes = [make_episode(rewards[place], group=place[0], member=place[1]) for place in order]
    advantages = group_advantages(episodes)
    assert np.concatenate(advantages.values).tolist() == [2.0, 0.5, -2.0, -0.5]


def test_equal_rewards_are_no_signal_though_their_deviation_is_not_zero(make_episode):
    assert np.std([0.1, 0.1, 0.1]) > 0
    constant = [make_episode([0.1], member=i) for i in range(3)]
    mixed = [make_episode([float(i)], group=1, member=i) for i in range(2)]
    advantages = group_advantages(constant + mixed, "grpo")
    assert advantages.signal == {0: False, 1: True}
    assert not np.concatenate(advantages.trained[:3]).any()
    assert advantage_metrics(advantages)["groups/zero_signal"] == 1


def test_the_same_rewards_in_another_order_are_no_signal(make_episode):
    orders = [0.1, 0.2, 0.3], [0.3, 0.2, 0.1]
    assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1
    episodes = [make_episode(rewards, member=i) for i, rewards in enumerate(orders)]
    assert group_advantages(episodes, "group_mean").signal == {0: False}
    assert group_advantages(episodes, "turn_returns").trained[0].tolist() == [False, True, True]


def test_a_failed_episode_has_no_return_but_keeps_the_turns_it_finished(make_episode):
    episodes = [
        make_episode([1.0, 1.0], member=0),
        make_episode([0.0, 1.0], member=1),
        make_episode([0.5, None], member=2, stop_reason="error"),
    ]
    by_episode = group_advantages(episodes, "group_mean")
    assert [row.tolist() for row in by_episode.values] == [[0.5, 0.5], [-0.5, -0.5], [0, 0]]
    assert by_episode.trained[2].tolist() == [False, False]
    by_turn = group_advantages(episodes, "group_turn_mean")
    assert by_turn.values[2].tolist() == [0.0, 0.0]
    assert by_turn.trained[2].tolist() == [True, False]


def test_episodes_without_turns_and_without_rewards_are_left_out(make_episode):
    episodes = [
        make_episode([], member=0, stop_reason="error"),
        make_episode([None], member=1),
        make_episode([1.0], member=2),
    ]
    for name in ESTIMATORS:
        advantages = group_advantages(episodes, name)
        assert advantages.signal == {0: False}
        assert [len(row) for row in advantages.values] == [0, 1, 1]


def test_no_metrics_of_advantages_where_there_are_none(make_episode):
    episodes = [make_episode([1.0], member=i) for i in range(2)]
    assert advantage_metrics(group_advantages(episodes)) == {"groups/zero_signal": 1.0}


def test_a_group_of_one_is_refused(make_episode):
    with pytest.raises(ValueError, match="group 3: expected at least 2 episodes, came 1"):
        group_advantages([make_episode([1.0], group=3)])


def test_unknown_names_are_refused(make_episode):
    episodes = [make_episode([float(i)], member=i) for i in range(2)]
    with pytest.raises(ValueError, match=r"advantage: expected one of group_mean, .*; came 'ppo'"):
        group_advantages(episodes, "ppo")
    with pytest.raises(ValueError, match="normaliser: expected one of batch_tokens, "):
        normalise(group_advantages(episodes), episodes, "length", max_tokens=8)


def test_normalisers_give_the_means_they_are_named_for(make_episode):
    # The advantages are 1 and -1 on the first turn, none on the second, and group 1 is constant.
    episodes = [
        make_episode([2.0, 3.0], member=0, samples=[4, 5]),
        make_episode([0.0, 3.0], member=1, samples=[2, 7]),
        make_episode([1.0], group=1, member=0),
        make_episode([1.0], group=1, member=1),
    ]
    advantages = group_advantages(episodes, "group_turn_mean")
    expected = {
        "batch_tokens": (1 / 6, -1 / 6),
        "episode_tokens": (1 / 2 / 4, -1 / 2 / 2),
        "max_tokens": (1 / (2 * 8), -1 / (2 * 8)),
    }
    for name, (first, second) in expected.items():
        values = normalise(advantages, episodes, name, max_tokens=8).values
        assert values[0] == pytest.approx([first, 0], abs=TOLERANCE)
        assert values[1] == pytest.approx([second, 0], abs=TOLERANCE)
        assert not np.concatenate(values[2:]).any()


def test_an_episodes_share_of_a_divisor_is_known_before_its_batch_is(make_episode):
    groups = [
        [make_episode([float(i), 1.0], group=g, member=i, samples=[4 + g, 5]) for i in range(2)]
        for g in range(3)
    ]
    batch = [episode for group in groups for episode in group]
    whole = group_advantages(batch, "group_mean")
    for name in NORMALISERS:
        want = normalise(whole, batch, name, max_tokens=8).values
        parts, count = [], 0.0
        for group in groups:
            raw = group_advantages(group, "group_mean")
            found = divisors(raw, group, name, max_tokens=8)
            parts += divide(raw, found.own).values
            count += found.batch
        for part, value in zip(parts, want, strict=True):
            assert part / count == pytest.approx(value, rel=TOLERANCE)
