"""Tasks that are numbers, in an order of their own for each run."""

import numpy as np


def shuffled_numbers(low: int, high: int, step: int, groups: int, seed: int) -> list[int]:
    """The numbers of one training step, one a group.

    All numbers come once, in shuffled order, before any comes again, across the borders of steps too.

    Args:
        low: the lowest.
        high: the highest.
        step: index of the training step, from 0.
        groups: how many numbers to return.
        seed: seed of the run.

    Returns:
        ``groups`` numbers; the same arguments give the same numbers.

    Example:
        >>> sorted(shuffled_numbers(3, 5, step=0, groups=3, seed=0))
        [3, 4, 5]
    """
    count = high - low + 1
    chosen = []
    for position in range(step * groups, (step + 1) * groups):
        epoch, place = divmod(position, count)
        chosen.append(low + int(np.random.default_rng([seed, epoch]).permutation(count)[place]))
    return chosen
