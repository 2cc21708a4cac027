"""What advantages are divided by, so that a sum over trained tokens is the mean that one wants.

What a normaliser divides by is a number of each episode's own times a count over the whole batch, so an episode's share is
known before the batch is.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mintjax.train.advantages import Advantages
from mintjax.types import Episode


def normalise(
    advantages: Advantages,
    episodes: Sequence[Episode],
    normaliser: str = "batch_tokens",
    *,
    max_tokens: int,
) -> Advantages:
    """Divide the advantages, so that a sum over trained tokens is the mean one wants.

    Args:
        advantages: those of ``episodes``.
        episodes: the whole batch, however it is cut into micro-batches later.
        normaliser: a name in `NORMALISERS`.
        max_tokens: most tokens that one turn may sample; read by ``"max_tokens"`` alone.

    Returns:
        The divided advantages; ``trained`` and ``signal`` as they were.

    Raises:
        ValueError: where the name is unknown.

    Example:
        >>> advantages = normalise(group_advantages(episodes), episodes, max_tokens=64)
    """
    batch, own = divisors(advantages, episodes, normaliser, max_tokens=max_tokens)
    return divide(advantages, [batch * divisor for divisor in own])


class Divisors(NamedTuple):
    """What a normaliser divides by: an episode's advantages by ``batch * own[i]``.

    Attributes:
        batch: a count over all episodes, at least 1.
        own: one number an episode, at least 1, that does not depend on the others.
    """

    batch: float
    own: list[float]


def divisors(
    advantages: Advantages,
    episodes: Sequence[Episode],
    normaliser: str = "batch_tokens",
    *,
    max_tokens: int,
) -> Divisors:
    """What `normalise` divides by, in its two factors.

    Args:
        advantages: those of ``episodes``.
        episodes: a batch; of a part of one, ``own`` is right and ``batch`` counts that part.
        normaliser: a name in `NORMALISERS`.
        max_tokens: most tokens that one turn may sample; read by ``"max_tokens"`` alone.

    Returns:
        The factors.

    Raises:
        ValueError: where the name is unknown.

    Example:
        >>> batch, own = divisors(advantages, episodes, "episode_tokens", max_tokens=64)
    """
    if normaliser not in NORMALISERS:
        raise ValueError(
            f"normaliser: expected one of {', '.join(NORMALISERS)}; came {normaliser!r}."
        )
    count = NORMALISERS[normaliser]
    tokens = [
        np.array([turn.sampled.sum() for turn in episode.turns], int) * trained
        for episode, trained in zip(episodes, advantages.trained, strict=True)
    ]
    batch, own = count(tokens, max_tokens)
    return Divisors(float(max(1, batch)), [float(max(1, divisor)) for divisor in own])


def divide(advantages: Advantages, by: Sequence[float]) -> Advantages:
    """The advantages of each episode divided by its number; ``trained`` and ``signal`` as they were.

    Example:
        >>> shares = divide(advantages, divisors(advantages, episodes, max_tokens=64).own)
    """
    pairs = zip(advantages.values, by, strict=True)
    return advantages._replace(values=tuple(value / divisor for value, divisor in pairs))


def _batch_tokens(tokens: list[np.ndarray], max_tokens: int) -> tuple[int, list[int]]:
    """Divide by all trained tokens of the batch: every token counts alike (DAPO, arXiv 2503.14476)."""
    return sum(int(counts.sum()) for counts in tokens), [1] * len(tokens)


def _episode_tokens(tokens: list[np.ndarray], max_tokens: int) -> tuple[int, list[int]]:
    """Divide by trained episodes and by the episode's own tokens: every episode counts alike (GRPO)."""
    return sum(bool(counts.any()) for counts in tokens), [int(counts.sum()) for counts in tokens]


def _max_tokens(tokens: list[np.ndarray], max_tokens: int) -> tuple[int, list[int]]:
    """Divide by trained turns times the most tokens a turn may have: no bias by length (Dr.GRPO)."""
    return sum(int(np.count_nonzero(counts)) for counts in tokens), [max_tokens] * len(tokens)


# Each takes the trained tokens of every turn and max_tokens, and returns the factors of `Divisors`; 0 stands for 1.
NORMALISERS: dict[str, Callable[[list[np.ndarray], int], tuple[int, list[int]]]] = {
    "batch_tokens": _batch_tokens,
    "episode_tokens": _episode_tokens,
    "max_tokens": _max_tokens,
}
