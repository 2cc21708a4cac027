"""Where the chance in a rollout comes from: the run's seed and a turn's place in it, and nothing that depends on time."""

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int, Integer, Key

_SEAT = 1 << 16  # members of one seat that there is room for in the key of a sample


def drawn_as(seat: Int[ArrayLike, "*B"], member: Int[ArrayLike, "*B"]) -> Int[np.ndarray, "*B"]:
    """The number that stands for a seat's member in the key of a sample.

    Example:
        >>> drawn_as(np.array([0, 1]), np.array([3, 3])).tolist()
        [3, 65539]
    """
    return np.asarray(seat) * _SEAT + np.asarray(member)


def environment_seed(seed: int, step: int, group: int) -> int:
    """The seed that all environments of a group get.

    Args:
        seed: of the run.
        step: of the run.
        group: number of the group within the step.

    Example:
        >>> environment_seed(0, 1, 2) == environment_seed(0, 1, 2)
        True
    """
    return int(np.random.SeedSequence([seed, step, group]).generate_state(1)[0])


@jax.jit
def turn_keys(
    seed: Integer[ArrayLike, ""],
    step: Int[ArrayLike, ""],
    turns: Int[ArrayLike, " B"],
    groups: Int[ArrayLike, " B"],
    members: Int[ArrayLike, " B"],
) -> Key[Array, " B"]:
    """The key of each row's sample in one turn.

    Args:
        seed: of the run, uint32.
        step: of the run.
        turns: the turn that each row is in, from 0.
        groups: the group of each row's episode.
        members: what :func:`drawn_as` makes of its seat and its number within the group.

    Example:
        >>> keys = turn_keys(np.uint32(0), 1, np.zeros(4, int), np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]))
    """

    def key(*numbers: Int[ArrayLike, ""]) -> Key[Array, ""]:
        folded = jax.random.fold_in(jax.random.key(seed), step)
        for number in numbers:
            folded = jax.random.fold_in(folded, number)
        return folded

    return jax.vmap(key)(groups, members, turns)
