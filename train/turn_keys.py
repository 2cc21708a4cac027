"""Where the chance of an episode comes from: numbers alone, so that nobody's speed changes a sample."""

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
        group: number of the task.

    Returns:
        A number from 0 to 2**32 - 1.

    Example:
        >>> environment_seed(0, step=1, group=2) == environment_seed(0, step=1, group=2)
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
    """The key of each row's next sample.

    Args:
        seed: of the run, uint32.
        step: of the run.
        turns: replies that each episode has had.
        groups: number of each row's task.
        members: what :func:`drawn_as` makes of each row's seat and of its number within the group.

    Returns:
        One typed key a row.

    Example:
        >>> keys = turn_keys(np.uint32(0), 1, np.array([0, 0]), np.array([0, 0]), np.array([0, 1]))
    """

    def key(
        group: Int[ArrayLike, ""], member: Int[ArrayLike, ""], turn: Int[ArrayLike, ""]
    ) -> Key[Array, ""]:
        folded = jax.random.fold_in(jax.random.key(seed), step)
        for number in (group, member, turn):
            folded = jax.random.fold_in(folded, number)
        return folded

    return jax.vmap(key)(groups, members, turns)
