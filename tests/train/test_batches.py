from functools import partial

import numpy as np
import pytest

from mintjax.train.advantages import Advantages, group_advantages
from mintjax.train.batches import micro_batches, padded_length
from mintjax.train.normalisers import normalise

BLOCK = 8


@pytest.fixture
def episodes(make_episode):
    """Two groups with a signal, of uneven lengths, and one constant group."""
    return [
        make_episode([1.0, 0.5], group=0, member=0, prompts=[3, 1], samples=[4, 2]),
        make_episode([0.0, 0.5], group=0, member=1, prompts=[3, 2], samples=[9, 5]),
        make_episode([1.0], group=1, member=0),
        make_episode([1.0], group=1, member=1),
        make_episode([1.0], group=2, member=0, prompts=[5], samples=[5]),
        make_episode([0.0], group=2, member=1, prompts=[5], samples=[5]),
        make_episode([None], group=2, member=2, prompts=[30], samples=[30]),
    ]


def by_hand(episode, values, trained):
    """One row, a token at a time: (token, mask, advantage, logprob)."""
    row = []
    for turn, value, counts in zip(episode.turns, values, trained, strict=True):
        for token, sampled, logprob in zip(turn.tokens, turn.sampled, turn.logprobs, strict=True):
            learns = bool(sampled and counts)
            row.append((token, learns, value if learns else 0, logprob if learns else 0))
    return row


def test_every_array_is_aligned_with_the_tokens(episodes):
    advantages = normalise(group_advantages(episodes), episodes, max_tokens=16)
    batches = micro_batches(episodes, advantages, rows=3, block=BLOCK)
    # By length: 19 tokens, then three of 10 (those of group 0 first), the last alone with two empty rows.
    order = [1, 0, 4, 5]
    assert [batch.length.tolist() for batch in batches] == [[19, 10, 10], [10, 0, 0]]
    assert [batch.tokens.shape for batch in batches] == [(3, 24), (3, 16)]
    rows = [(batch, row) for batch in batches for row in range(3)]
    for place, (batch, row) in zip(order, rows, strict=False):
        expected = by_hand(episodes[place], advantages.values[place], advantages.trained[place])
        real = slice(0, batch.length[row])
        laid_out = (batch.tokens, batch.mask, batch.advantages, batch.logprobs)
        for array, column in zip(laid_out, zip(*expected, strict=True), strict=True):
            assert array[row, real].tolist() == np.asarray(column, array.dtype).tolist()
            assert not array[row, batch.length[row] :].any()
        assert (batch.weights[row] == batch.advantages[row]).all()
    first, last = batches
    floats = (first.mask, first.advantages, first.logprobs, first.weights, first.temperature)
    assert all(array.dtype == np.float32 for array in floats)
    assert first.labels is None and first.scored is None
    assert [first.episodes.tolist(), last.episodes.tolist()] == [order[:3], [order[3], -1, -1]]


def test_groups_that_stay_together_keep_rows_for_their_missing_episodes(make_episode):
    lengths = {(0, 0): 20, (0, 1): 9, (1, 0): 30, (1, 1): 8, (1, 2): 12, (2, 0): 11, (2, 1): 11}
    episodes = [
        make_episode([float(member)], group=group, member=member, prompts=[n - 4], samples=[4])
        for (group, member), n in lengths.items()
    ]
    batches = partial(micro_batches, episodes, group_advantages(episodes), rows=8, block=BLOCK)
    whole = [batch.episodes.tolist() for batch in batches(together=4)]
    assert whole == [[2, 4, 3, -1, 0, 1, -1, -1], [5, 6, -1, -1, -1, -1, -1, -1]]
    some = [batch.episodes.tolist() for batch in batches(together=4, tokens=64)]
    assert some == [[2, 4], [3, -1], [0, 1], [-1, -1, 5, 6]]
    with pytest.raises(ValueError, match=r"together: expected a divisor of rows \(8\), came 3"):
        batches(together=3)
    blocks = np.concatenate([batch.episodes for batch in batches(together=2)]).reshape(-1, 2)
    groups = [{episodes[i].group for i in block if i >= 0} for block in blocks]
    assert [sum(group == {n} for group in groups) for n in (0, 1, 2)] == [1, 2, 1]


def test_a_limit_on_tokens_lets_fewer_of_the_long_rows_together(make_episode):
    # Padded to 64, 64, 24, 24, 24, 8: two rows of 64 are more than 100, three of 24 are not.
    lengths = [60, 58, 22, 21, 20, 8]
    episodes = [
        make_episode([float(i % 2)], member=i, prompts=[n - 4], samples=[4])
        for i, n in enumerate(lengths)
    ]
    advantages = group_advantages(episodes)
    batches = micro_batches(episodes, advantages, rows=4, tokens=100, block=BLOCK)
    assert [batch.tokens.shape for batch in batches] == [(1, 64), (1, 64), (4, 24)]
    assert [batch.length.tolist() for batch in batches] == [[60], [58], [22, 21, 20, 8]]
    assert [place for batch in batches for place in batch.episodes] == list(range(6))
    # A row that is more by itself is not cut; without a limit, all go by fours.
    alone = micro_batches(episodes, advantages, rows=4, tokens=10, block=BLOCK)
    assert [len(batch.length) for batch in alone] == [1] * 6
    unlimited = micro_batches(episodes, advantages, rows=4, block=BLOCK)
    assert [batch.tokens.shape for batch in unlimited] == [(4, 64), (4, 24)]


def test_trained_tokens_are_the_sampled_ones_of_turns_with_a_signal(episodes):
    batches = micro_batches(episodes, group_advantages(episodes), rows=2, block=BLOCK)
    assert sum(int(batch.mask.sum()) for batch in batches) == (4 + 9) + (5 + 5)


def test_the_order_of_the_episodes_changes_nothing(episodes):
    shuffled = [episodes[i] for i in (6, 5, 2, 0, 4, 3, 1)]
    first = micro_batches(episodes, group_advantages(episodes), rows=3)
    second = micro_batches(shuffled, group_advantages(shuffled), rows=3)
    for one, other in zip(first, second, strict=True):
        for name in set(one._fields) - {"episodes"}:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        for a, b in zip(one.episodes, other.episodes, strict=True):
            assert (a < 0 and b < 0) or episodes[a] is shuffled[b]


def test_a_batch_without_signal_has_no_micro_batches(make_episode):
    episodes = [make_episode([1.0], member=i) for i in range(2)]
    assert micro_batches(episodes, group_advantages(episodes), rows=2) == []


def test_the_temperature_is_the_samplers(make_episode):
    episodes = [make_episode([float(i)], member=i, temperature=0.7) for i in range(2)]
    (batch,) = micro_batches(episodes, group_advantages(episodes), rows=2)
    assert batch.temperature == np.float32(0.7)


@pytest.mark.parametrize(
    ("temperatures", "complaint"),
    [((1.0, 0.5), r"expected one for the batch, came \[0.5, 1.0\]"), ((0.0, 0.0), "came 0")],
)
def test_temperatures_that_cannot_be_trained_on_are_refused(make_episode, temperatures, complaint):
    episodes = [
        make_episode([float(i)], member=i, temperature=temperature)
        for i, temperature in enumerate(temperatures)
    ]
    with pytest.raises(ValueError, match=complaint):
        micro_batches(episodes, group_advantages(episodes), rows=2)


def test_advantages_of_other_episodes_are_refused(episodes):
    with pytest.raises(ValueError, match=r"expected one entry an episode \(7\), came 0"):
        micro_batches(episodes, Advantages((), (), {}), rows=2)


def test_a_size_that_is_given_is_that_of_every_micro_batch(episodes):
    advantages = group_advantages(episodes)
    own = micro_batches(episodes, advantages, rows=3, block=BLOCK)
    wide = micro_batches(episodes, advantages, rows=3, size=40)
    assert [batch.tokens.shape for batch in wide] == [(3, 40), (3, 40)]
    for a, b in zip(own, wide, strict=True):
        assert not b.tokens[:, a.tokens.shape[1] :].any() and not b.mask[:, a.mask.shape[1] :].any()
        assert (b.tokens[:, : a.tokens.shape[1]] == a.tokens).all()
    with pytest.raises(
        ValueError, match="size: expected at least 19, the longest episode, came 18"
    ):
        micro_batches(episodes, advantages, rows=3, size=18)


def test_no_rows_and_no_tokens_are_refused(episodes):
    with pytest.raises(ValueError, match="rows: expected at least 1, came 0"):
        micro_batches(episodes, group_advantages(episodes), rows=0)
    with pytest.raises(ValueError, match=r"tokens: expected at least 1, or None .*, came 0"):
        micro_batches(episodes, group_advantages(episodes), rows=1, tokens=0)


def test_padded_lengths_are_few_and_close():
    lengths = [padded_length(n, BLOCK) for n in range(1, 4097)]
    assert all(size >= n and size % BLOCK == 0 for n, size in enumerate(lengths, 1))
    assert all(size < n + max(BLOCK, n / 4) for n, size in enumerate(lengths, 1))
    assert len({size for size in lengths if 1024 < size <= 2048}) == 4
