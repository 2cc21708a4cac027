import numpy as np
import pytest

from mintjax.train.advantages import advantage_metrics, group_advantages
from mintjax.train.estimators import GroupMean, GroupTurnMean, Grpo, TurnReturns
from mintjax.train.normalisers import normalise


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
    advantages = group_advantages(constant + mixed, Grpo())
    assert advantages.signal == {0: False, 1: True}
    assert not np.concatenate(advantages.trained[:3]).any()
    assert advantage_metrics(advantages)["groups/zero_signal"] == 1


def test_the_same_rewards_in_another_order_are_no_signal(make_episode):
    orders = [0.1, 0.2, 0.3], [0.3, 0.2, 0.1]
    assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1
    episodes = [make_episode(rewards, member=i) for i, rewards in enumerate(orders)]
    assert group_advantages(episodes, GroupMean()).signal == {0: False}
    assert group_advantages(episodes, TurnReturns()).trained[0].tolist() == [False, True, True]


def test_a_failed_episode_has_no_return_but_keeps_the_turns_it_finished(make_episode):
    episodes = [
        make_episode([1.0, 1.0], member=0),
        make_episode([0.0, 1.0], member=1),
        make_episode([0.5, None], member=2, stop_reason="error"),
    ]
    by_episode = group_advantages(episodes, GroupMean())
    assert [row.tolist() for row in by_episode.values] == [[0.5, 0.5], [-0.5, -0.5], [0, 0]]
    assert by_episode.trained[2].tolist() == [False, False]
    by_turn = group_advantages(episodes, GroupTurnMean())
    assert by_turn.values[2].tolist() == [0.0, 0.0]
    assert by_turn.trained[2].tolist() == [True, False]


def test_no_metrics_of_advantages_where_there_are_none(make_episode):
    episodes = [make_episode([1.0], member=i) for i in range(2)]
    assert advantage_metrics(group_advantages(episodes)) == {"groups/zero_signal": 1.0}


def test_a_group_of_one_is_refused(make_episode):
    with pytest.raises(ValueError, match="group 3: expected at least 2 episodes, came 1"):
        group_advantages([make_episode([1.0], group=3)])


def test_an_unknown_normaliser_is_refused(make_episode):
    episodes = [make_episode([float(i)], member=i) for i in range(2)]
    with pytest.raises(ValueError, match="normaliser: expected one of batch_tokens, "):
        normalise(group_advantages(episodes), episodes, "length", max_tokens=8)
