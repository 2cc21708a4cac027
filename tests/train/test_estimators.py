"""Every estimator against its definition, an episode and a turn at a time, and on groups worked by hand."""

import math
import statistics

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mintjax.train.advantages import group_advantages
from mintjax.train.estimators import (
    Estimator,
    Gigpo,
    GroupMean,
    GroupTurnMean,
    Grpo,
    MaxRl,
    ReinforcePlusPlus,
    Rloo,
    TurnReturns,
)

TOLERANCE = 1e-9

# Few values, so that equal rewards and whole constant groups come up often.
REWARDS = st.one_of(st.none(), st.sampled_from([-0.1, 0.0, 0.1, 0.3, 1.0]))
GROUPS = st.lists(st.lists(REWARDS, min_size=1, max_size=3), min_size=2, max_size=4)
GAMMA = 0.5


def total(rewards, gamma=1.0):
    """The return of an episode, discounted, None where no turn has a reward."""
    known = [gamma**k * reward for k, reward in enumerate(rewards) if reward is not None]
    return math.fsum(known) if known else None


def less_mean(score, others):
    return score - statistics.fmean(others)


def less_mean_over_deviation(score, others):
    return less_mean(score, others) / (statistics.stdev(others) + 1e-4)


def less_mean_of_others(score, others):
    rest = list(others)
    rest.remove(score)
    return less_mean(score, rest)


def less_mean_over_mean(score, others):
    return less_mean(score, others) / statistics.fmean(others)


# What a turn is scored by, given the episode's rewards and the turn's place; and how a score becomes an advantage.
DEFINITIONS = {
    "group_mean": (GroupMean(), lambda rewards, k: total(rewards), less_mean),
    "grpo": (Grpo(), lambda rewards, k: total(rewards), less_mean_over_deviation),
    "rloo": (Rloo(), lambda rewards, k: total(rewards), less_mean_of_others),
    "maxrl": (MaxRl(), lambda rewards, k: total(rewards), less_mean_over_mean),
    "group_turn_mean": (GroupTurnMean(), lambda rewards, k: rewards[k], less_mean),
    "turn_returns": (TurnReturns(), lambda rewards, k: total(rewards[k:]), less_mean),
    "turn_returns, discounted": (
        TurnReturns(GAMMA),
        lambda rewards, k: total(rewards[k:], GAMMA),
        less_mean,
    ),
}
# The others have tests of their own.
OTHERS = {"gigpo": Gigpo(), "reinforce_plus_plus": ReinforcePlusPlus()}
ESTIMATORS = {name: estimator for name, (estimator, *_) in DEFINITIONS.items()} | OTHERS


def test_every_estimator_is_among_those_tested():
    known = Estimator.get_known_choices().items()
    shipped = {name for name, kind in known if kind.__module__.startswith("mintjax.")}
    assert {name.split(",")[0] for name in ESTIMATORS} == shipped


def by_definition(name, group):
    """Advantages of one group, or None, an episode and a turn at a time."""
    _, score, compare = DEFINITIONS[name]
    per_episode = name in ("group_mean", "grpo", "rloo", "maxrl")
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


def check(advantages, expected):
    """Hold the advantages of one group against numbers, or None, a turn."""
    assert [[*row] for row in advantages.trained] == [
        [advantage is not None for advantage in row] for row in expected
    ]
    for values, row in zip(advantages.values, expected, strict=True):
        assert values == pytest.approx([advantage or 0 for advantage in row], abs=TOLERANCE)
    assert advantages.signal == {
        0: any(advantage is not None for row in expected for advantage in row)
    }


@pytest.mark.parametrize("name", DEFINITIONS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(group=GROUPS)
def test_estimators_follow_their_definitions(make_episode, name, group):
    if name == "maxrl":
        group = [[reward and abs(reward) for reward in rewards] for rewards in group]
    episodes = [make_episode(rewards, member=i) for i, rewards in enumerate(group)]
    check(group_advantages(episodes, ESTIMATORS[name]), by_definition(name, group))


def test_maxrl_refuses_what_would_turn_its_sign(make_episode):
    episodes = [make_episode([r], group=2, member=i) for i, r in enumerate((1.0, -0.5))]
    with pytest.raises(
        ValueError, match=r"maxrl: expected returns of at least 0 in group 2, came -0\.5"
    ):
        group_advantages(episodes, MaxRl())


def whitened(scores, tokens):
    """Scores less their mean over tokens, over their deviation: the formula, a token at a time."""
    spread = [score for score, count in zip(scores, tokens, strict=True) for _ in range(count)]
    mean, deviation = statistics.fmean(spread), statistics.pstdev(spread)
    return [(score - mean) / (deviation + 1e-8) for score in scores]


def test_reinforce_plus_plus_whitens_over_the_tokens_of_the_batch(make_episode):
    # Returns to go, discounted by a half: 1 + 2 / 2 and 2; 0.5 of the turn without a reward and 1; 4; none.
    episodes = [
        make_episode([1.0, 2.0], samples=[3, 1]),
        make_episode([None, 1.0], member=1, samples=[2, 5]),
        make_episode([4.0], group=1, samples=[4]),
        make_episode([None], group=1, member=1, samples=[6]),
        make_episode([0.5], group=1, member=2, samples=[7], stop_reason="error"),
    ]
    advantages = group_advantages(episodes, ReinforcePlusPlus(GAMMA))
    a, b, c, d, e = whitened([2.0, 2.0, 0.5, 1.0, 4.0], [3, 1, 2, 5, 4])
    found = [values.tolist() for values in advantages.values]
    for got, want in zip(found, [[a, b], [c, d], [e], [0], [0]], strict=True):
        assert got == pytest.approx(want, abs=TOLERANCE)
    assert [row.tolist() for row in advantages.trained] == [
        [True] * 2,
        [True] * 2,
        [True],
        [False],
        [False],
    ]
    # The mean over tokens of what is trained is 0, and the mean square 1.
    tokens = [[3, 1], [2, 5], [4], [0], [0]]
    weights = [count for row in tokens for count in row]
    values = [value for row in found for value in row]
    assert sum(w * v for w, v in zip(weights, values, strict=True)) == pytest.approx(0, abs=1e-6)
    mean_square = sum(w * v * v for w, v in zip(weights, values, strict=True)) / 15
    assert mean_square == pytest.approx(1, abs=1e-6)


def test_reinforce_plus_plus_takes_the_groups_mean_off_before(make_episode):
    rewards = {0: (1.0, 0.0), 1: (9.0, 6.0), 2: (5.0, 5.0)}
    samples = {0: (1, 2), 1: (3, 4), 2: (5, 6)}
    episodes = [
        make_episode([rewards[g][i]], group=g, member=i, samples=[samples[g][i]])
        for i in range(2)
        for g in range(3)
    ]
    advantages = group_advantages(episodes, ReinforcePlusPlus(group_baseline=True))
    a, b, c, d = whitened([0.5, -0.5, 1.5, -1.5], [1, 2, 3, 4])
    got = [values[0] for values in advantages.values]
    assert got == pytest.approx([a, c, 0, b, d, 0], abs=TOLERANCE)
    assert advantages.signal == {0: True, 1: True, 2: False}
    plain = group_advantages(episodes, ReinforcePlusPlus())
    assert plain.signal == {0: True, 1: True, 2: True}, "5 is not what the batch is paid"
    constant = group_advantages([episodes[2], episodes[5]], ReinforcePlusPlus())
    assert constant.signal == {2: False}


def gigpo_by_definition(group, anchors, gamma, weight, std):
    """Advantages of one group, or None, as the paper has them."""

    def compared(score, others):
        known = [s for s in others if s is not None]
        if score is None or max(known) == min(known):
            return None
        scale = statistics.stdev(known) + 1e-6 if std else 1
        return less_mean(score, known) / scale

    totals = [total(rewards) for rewards in group]
    result = []
    for i, rewards in enumerate(group):
        row = []
        for k in range(len(rewards)):
            episode = compared(totals[i], totals)
            step = None
            if anchors[i][k] is not None and weight:
                same = [
                    total(other[j:], gamma)
                    for other, names in zip(group, anchors, strict=True)
                    for j in range(len(other))
                    if names[j] == anchors[i][k]
                ]
                step = compared(total(rewards[k:], gamma), same)
            nothing = episode is None and step is None
            row.append(None if nothing else (episode or 0) + weight * (step or 0))
        result.append(row)
    return result


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    group=GROUPS,
    data=st.data(),
    weight=st.sampled_from([0.0, 1.0, 2.0]),
    std=st.booleans(),
)
def test_gigpo_follows_its_definition(make_episode, group, data, weight, std):
    names = st.one_of(st.none(), st.sampled_from("ab"))
    anchors = [[data.draw(names) for _ in rewards] for rewards in group]
    anchors[0][0] = anchors[0][0] or "a"
    episodes = [
        make_episode(rewards, member=i, anchors=anchors[i]) for i, rewards in enumerate(group)
    ]
    advantages = group_advantages(episodes, Gigpo(GAMMA, weight, std))
    check(advantages, gigpo_by_definition(group, anchors, GAMMA, weight, std))


def test_gigpo_on_a_group_worked_by_hand(make_episode):
    # Two walks that meet at the door: one finds the way out from there, the other walks back to it once more.
    episodes = [
        make_episode([0.0, 1.0], member=0, anchors=["hall", "door"]),
        make_episode([0.0, 0.0, 0.0], member=1, anchors=["hall", "door", "door"]),
    ]
    # Returns 1 and 0: 1/2 and -1/2. At the door 1, 0, 0: 2/3, -1/3, -1/3. In the hall 1/2 and 0: 1/4 and -1/4.
    advantages = group_advantages(episodes, Gigpo(gamma=0.5, weight=2.0))
    assert advantages.values[0] == pytest.approx([1 / 2 + 2 / 4, 1 / 2 + 4 / 3], abs=TOLERANCE)
    assert advantages.values[1] == pytest.approx(
        [-1 / 2 - 2 / 4, -1 / 2 - 2 / 3, -1 / 2 - 2 / 3], abs=TOLERANCE
    )


def test_gigpo_without_an_anchor_is_refused(make_episode):
    episodes = [make_episode([float(i)], group=4, member=i) for i in range(2)]
    with pytest.raises(
        ValueError, match=r"no turn of group 4 has an anchor.* Step\(\.\.\., anchor="
    ):
        group_advantages(episodes, Gigpo())


def test_episodes_without_turns_and_without_rewards_are_left_out(make_episode):
    episodes = [
        make_episode([], member=0, stop_reason="error"),
        make_episode([None], member=1, anchors=["a"]),
        make_episode([1.0], member=2, anchors=["a"]),
    ]
    for estimator in ESTIMATORS.values():
        advantages = group_advantages(episodes, estimator)
        assert advantages.signal == {0: False}
        assert [len(row) for row in advantages.values] == [0, 1, 1]
