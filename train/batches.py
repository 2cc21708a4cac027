"""Episodes and their advantages as padded arrays that a gradient plan takes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int32

from mintjax.train.advantages import Advantages
from mintjax.types import Episode

BLOCK = 32  # a row's padded length is a multiple of it


class Batch(NamedTuple):
    """B episodes, right-padded to N tokens. What stands at ``[b, n]`` is about ``tokens[b, n]`` given those before it.

    A pytree: it goes into jit as it is.

    Attributes:
        tokens: the episodes' token streams; 0 on padding.
        length: real tokens of each row; a row of length 0 fills the batch up.
        mask: 1 on the tokens that are trained, 0 on all others and on padding.
        advantages: the normalised advantage of the token's turn; 0 where ``mask`` is 0.
        logprobs: the sampler's log probabilities; 0 where ``mask`` is 0, where they must not be read.
        weights: what cross-entropy multiplies each token's log probability by; the advantages here, so that its
            gradient is REINFORCE's.
        temperature: the one that ``logprobs`` are of, for the loss to use too.
        labels: what is scored at each place: one id, or K of them, with ``mask``, ``advantages``, ``logprobs`` and
            ``weights`` then a number each. None scores ``tokens`` themselves.
        episodes: which of the episodes that were laid out a row is, -1 for one that fills the batch up; None where it
            was made of no episodes.
        scored: 1 where a log probability is wanted though ``mask`` may be 0; None is ``mask``.
        shares: what a loss's term without an advantage is multiplied by, so that it is normalised as the advantages are.
        reference: log probabilities under a reference policy, where a loss compares with one.
        starts: for each place the one in its row where its document begins, where rows hold several that do not see each
            other; padding is a document of its own. None where a row is one.
    """

    tokens: Int32[np.ndarray, "B N"]
    length: Int32[np.ndarray, " B"]
    mask: Float32[np.ndarray, "B N *K"]
    advantages: Float32[np.ndarray, "B N *K"]
    logprobs: Float32[np.ndarray, "B N *K"]
    weights: Float32[np.ndarray, "B N *K"]
    temperature: Float[np.ndarray, ""]
    labels: Int32[np.ndarray, "B N *K"] | None = None
    scored: Float32[np.ndarray, "B N"] | None = None
    episodes: Int32[np.ndarray, " B"] | None = None
    shares: Float32[np.ndarray, "B N *K"] | None = None
    reference: Float32[np.ndarray, "B N *K"] | None = None
    starts: Int32[np.ndarray, "B N"] | None = None


def micro_batches(
    episodes: Sequence[Episode],
    advantages: Advantages,
    *,
    rows: int,
    tokens: int | None = None,
    block: int = BLOCK,
    size: int | None = None,
    together: int | None = None,
    shares: Sequence[float] | None = None,
) -> list[Batch]:
    """Lay a batch of episodes out as micro-batches, whose losses are to be summed.

    A token is trained where the policy sampled it and its turn has an advantage. Episodes without a trained token have no
    gradient and are left out; their tokens are in no count. Episodes, or groups that stay together, are sorted by length,
    so that rows of like length share a micro-batch, and ties keep the order of group and member.

    Args:
        episodes: one batch, of one temperature.
        advantages: theirs, normalised, in the same order.
        rows: B of every micro-batch; the last one is filled up with rows of length 0.
        tokens: B is halved where as many rows would be more tokens, padding included: long rows share a micro-batch with
            fewer others, and so with others of like length. Each padded length has one B. A row that is longer by itself
            goes alone. None is no limit.
        block: see `padded_length`, which gives the N of each micro-batch.
        together: rows of one group that stand side by side, so that a plan can run once what they begin with; a divisor
            of ``rows``. A group has as many such blocks as it needs, the last one filled up. None is by length alone.
        size: N of every micro-batch instead, where padding costs less than a program for another length.
        shares: what a token of each episode counts, as its advantage was multiplied by; None lays none out.

    Returns:
        The micro-batches, the longest rows first; none where no episode carries a signal.

    Raises:
        ValueError: where ``rows`` or ``tokens`` is less than 1, ``together`` does not divide ``rows``, an episode is longer
            than ``size``, episodes and advantages differ in number, temperatures differ, or samples were drawn greedily.
        RuntimeError: where the trained tokens are not those that were sampled: a fault of mintjax.

    Example:
        >>> advantages = normalise(group_advantages(episodes), episodes, max_tokens=64)
        >>> [batch.tokens.shape for batch in micro_batches(episodes, advantages, rows=8)]
        [(8, 256), (8, 128)]
    """
    if rows < 1:
        raise ValueError(f"rows: expected at least 1, came {rows}.")
    if tokens is not None and tokens < 1:
        raise ValueError(f"tokens: expected at least 1, or None for no limit, came {tokens}.")
    if len(episodes) != len(advantages.values):
        raise ValueError(
            f"advantages: expected one entry an episode ({len(episodes)}), came "
            f"{len(advantages.values)}. Compute them from these very episodes."
        )
    trained = [i for i, turns in enumerate(advantages.trained) if turns.any()]
    trained.sort(key=lambda i: (-len(episodes[i].tokens), episodes[i].group, episodes[i].member))
    longest = len(episodes[trained[0]].tokens) if trained else 0
    if size is not None and longest > size:
        raise ValueError(f"size: expected at least {longest}, the longest episode, came {size}.")
    temperature = _one_temperature([episodes[i] for i in trained])
    places = trained if together is None else _side_by_side(trained, episodes, together, rows)
    batches = []
    while places:
        ahead = [len(episodes[place].tokens) for place in places[:rows] if place is not None]
        length = size or padded_length(max(ahead, default=1), block)
        here = rows
        while tokens is not None and here > 1 and here * length > tokens:
            here //= 2
        these, places = places[:here], places[here:]
        if all(place is None for place in these):
            continue
        batch = _empty_batch(here, length, temperature)
        if shares is not None:
            batch = batch._replace(shares=np.zeros_like(batch.mask))
        assert batch.episodes is not None
        for row, place in enumerate(these):
            if place is None:
                continue
            batch.episodes[row] = place
            _fill_row(
                batch, row, episodes[place], advantages.values[place], advantages.trained[place]
            )
            if batch.shares is not None and shares is not None:
                batch.shares[row] = batch.mask[row] * shares[place]
        batches.append(batch)
    _check_count(batches, episodes, advantages)
    return batches


def _side_by_side(
    places: Sequence[int], episodes: Sequence[Episode], together: int, rows: int
) -> list[int | None]:
    """Return the places group by group, the last block of each group filled up with None."""
    if together < 1 or rows % together:
        raise ValueError(f"together: expected a divisor of rows ({rows}), came {together}.")
    groups: dict[tuple[int, int], list[int | None]] = {}  # the seats of a game begin differently
    for place in places:
        groups.setdefault((episodes[place].group, episodes[place].seat), []).append(place)
    return [
        place for group in groups.values() for place in group + [None] * (-len(group) % together)
    ]


def padded_length(length: int, block: int = BLOCK) -> int:
    """The length that a row of ``length`` tokens is padded to.

    Multiples of ``block`` at first, then four lengths for each doubling: few shapes to compile, and at most a quarter
    of a long row is padding.

    Args:
        length: real tokens, at least 1.
        block: a power of two.

    Returns:
        A multiple of ``block``.

    Example:
        >>> [padded_length(n) for n in (1, 100, 500, 520, 1100)]
        [32, 128, 512, 640, 1280]
    """
    grid = max(block, 1 << max(0, (length - 1).bit_length() - 3))
    return -(-length // grid) * grid


def _one_temperature(episodes: Sequence[Episode]) -> float:
    """Return the temperature that all episodes were sampled at; 1 where there are none."""
    temperatures = {turn.temperature for episode in episodes for turn in episode.turns}
    if len(temperatures) > 1:
        raise ValueError(
            f"temperature: expected one for the batch, came {sorted(temperatures)}. A ratio needs "
            "the sampler's temperature: train on each in a batch of its own."
        )
    if 0 in temperatures:
        raise ValueError(
            "temperature: expected a positive one, came 0. A greedy sample has no log probability "
            "that a loss could use: sample at a temperature above 0 to train."
        )
    return temperatures.pop() if temperatures else 1.0


def _empty_batch(rows: int, size: int, temperature: float) -> Batch:
    """Return a batch of padding, to be filled in."""

    def zeros() -> np.ndarray:
        return np.zeros((rows, size), np.float32)

    return Batch(
        tokens=np.zeros((rows, size), np.int32),
        length=np.zeros(rows, np.int32),
        mask=zeros(),
        advantages=zeros(),
        logprobs=zeros(),
        weights=zeros(),
        temperature=np.asarray(temperature, np.float32),
        episodes=np.full(rows, -1, np.int32),
    )


def _fill_row(
    batch: Batch, row: int, episode: Episode, values: np.ndarray, trained: np.ndarray
) -> None:
    """Write an episode into a row of a batch that nobody else holds yet."""
    sizes = [len(turn.tokens) for turn in episode.turns]
    size = sum(sizes)
    chosen = episode.sampled & np.repeat(trained, sizes)
    batch.tokens[row, :size] = episode.tokens
    batch.length[row] = size
    batch.mask[row, :size] = chosen
    batch.advantages[row, :size] = np.where(chosen, np.repeat(values, sizes), 0)
    batch.weights[row] = batch.advantages[row]
    batch.logprobs[row, :size] = np.where(chosen, episode.logprobs, 0)


def _check_count(
    batches: Sequence[Batch], episodes: Sequence[Episode], advantages: Advantages
) -> None:
    """Refuse batches that train another number of tokens than was sampled in the trained turns."""
    expected = sum(
        int(turn.sampled.sum())
        for episode, trained in zip(episodes, advantages.trained, strict=True)
        for turn, counts in zip(episode.turns, trained, strict=True)
        if counts
    )
    laid_out = sum(int(batch.mask.sum()) for batch in batches)
    if laid_out != expected:
        raise RuntimeError(
            f"mask: {expected} tokens were sampled in trained turns, but {laid_out} are marked. "
            "Please report this."
        )
