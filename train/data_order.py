"""Which examples of a data set a step takes: a function of the seed and the place in the run, so resuming costs nothing."""

from functools import lru_cache

import numpy as np
from jaxtyping import Int


def examples_at(position: int, count: int, examples: int, seed: int) -> list[int]:
    """The numbers of the examples at some places of a run.

    All examples come once, in shuffled order, before any comes again; every epoch has an order of its own.

    Args:
        position: how many examples came before.
        count: how many to return.
        examples: how many there are, at least 1.
        seed: of the run.

    Returns:
        Numbers from 0 to ``examples - 1``; the same arguments give the same.

    Example:
        >>> sorted(examples_at(0, 4, 4, seed=0))
        [0, 1, 2, 3]
    """
    places = (divmod(place, examples) for place in range(position, position + count))
    return [int(_order(seed, epoch, examples)[place]) for epoch, place in places]


@lru_cache(maxsize=2)  # a step reaches into one epoch, or from one into the next
def _order(seed: int, epoch: int, examples: int) -> Int[np.ndarray, " N"]:
    return np.random.default_rng([seed, epoch]).permutation(examples)
