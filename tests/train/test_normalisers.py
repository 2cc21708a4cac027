import numpy as np
import pytest

from mintjax.train.advantages import group_advantages
from mintjax.train.estimators import GroupMean, GroupTurnMean
from mintjax.train.normalisers import NORMALISERS, divide, divisors, normalise

TOLERANCE = 1e-9


def test_normalisers_give_the_means_they_are_named_for(make_episode):
    # The advantages are 1 and -1 on the first turn, none on the second, and group 1 is constant.
    episodes = [
        make_episode([2.0, 3.0], member=0, samples=[4, 5]),
        make_episode([0.0, 3.0], member=1, samples=[2, 7]),
        make_episode([1.0], group=1, member=0),
        make_episode([1.0], group=1, member=1),
    ]
    advantages = group_advantages(episodes, GroupTurnMean())
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
    whole = group_advantages(batch, GroupMean())
    for name in NORMALISERS:
        want = normalise(whole, batch, name, max_tokens=8).values
        parts, count = [], 0.0
        for group in groups:
            raw = group_advantages(group, GroupMean())
            found = divisors(raw, group, name, max_tokens=8)
            parts += divide(raw, found.own).values
            count += found.batch
        for part, value in zip(parts, want, strict=True):
            assert part / count == pytest.approx(value, rel=TOLERANCE)
