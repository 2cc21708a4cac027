"""Tasks that are numbers, in an order of their own for each run."""

import numpy as np


def shuffled_numbers(low: int, high: int, position: int, count: int, seed: int) -> list[int]:
    """Some of a run's numbers, which never end: all come once, in shuffled order, before any comes again.

    Args:
        low: the lowest.
        high: the highest.
        position: how many numbers come before these.
        count: how many to return.
        seed: seed of the run.

    Returns:
        ``count`` numbers.

    Example:
        >>> sorted(shuffled_numbers(3, 5, position=0, count=3, seed=0))
        [3, 4, 5]
    """
    size = high - low + 1
    chosen = []
    for place in range(position, position + count):
        epoch, i = divmod(place, size)
        chosen.append(low + int(np.random.default_rng([seed, epoch]).permutation(size)[i]))
    return chosen
