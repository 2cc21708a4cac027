"""Work on a few rows of a state, at the cost of a few: extending them, and putting another conversation in their place.

A batch of rows rarely has news for all of them at once. To extend the few that have, their caches are read into a small
state, a segment is run there, and only what is new is written back; the other rows are neither run nor moved.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from mintjax.cache import State
from mintjax.extension import read, run_segment, slots_of
from mintjax.policy import Policy
from mintjax.types import Segment


@partial(jax.jit, donate_argnames="state")
def extend_rows(
    policy: Policy, segment: Segment, state: State, rows: Int[ArrayLike, " R"]
) -> State:
    """Appends a segment to some rows of a state. One program serves any rows, as long as they are as many.

    What it costs is R rows of the segment, and reading the caches of R rows once.

    Args:
        policy: the model.
        segment: tokens ``[R, S]`` and real lengths ``[R]``.
        state: without a prefix; its memory is reused, so it cannot be used again.
        rows: which rows, each once. A number past the last row stands for none, and its segment is dropped.

    Returns:
        The state after the segment.

    Example:
        >>> state = extend_rows(policy, to_segment([[5, 6], []]), state, np.array([3, 8]))  # of 8 rows, the fourth alone
    """
    rows = jnp.asarray(rows)
    real = jnp.where(rows < state.length.size, jnp.asarray(segment.length), 0)
    few = jax.tree.map(
        lambda x: x.at[rows].get(mode="clip") if x.ndim else x, state.replace(prefix=None)
    )
    slots = slots_of(few.length, real, segment.tokens.shape[1], state.capacity)
    _, after = run_segment(policy, Segment(segment.tokens, real), few)

    def put(x: Array, new: Array) -> Array:
        return x.at[rows].set(new, mode="drop")

    def append(buffer: Array, new: Array) -> Array:
        kept = read(new, slots).transpose(0, 2, 1, 3)
        return buffer.at[rows[:, None], :, slots].set(kept, mode="drop")

    return after.replace(
        buffers=jax.tree.map(append, state.buffers, after.buffers),
        length=put(state.length, after.length),
        hidden=put(state.hidden, after.hidden),
        overflow=put(state.overflow, after.overflow),
    )


@partial(jax.jit, donate_argnames="state")
def put_row(state: State, row: Int[ArrayLike, ""], one: State) -> State:
    """Puts another conversation into a row, in the place of what was there.

    Args:
        state: without a prefix; its memory is reused, so it cannot be used again.
        row: which.
        one: a state of one row, without a prefix and of at most the same capacity; it is copied.

    Returns:
        The state with that row.

    Example:
        >>> state = put_row(state, 3, extend(policy, prompt, init_state(policy, 1, state.capacity)))
    """

    def put(x: Array, new: Array) -> Array:
        if not x.ndim:
            return new
        return lax.dynamic_update_slice(x, new, (row, *(0 for _ in x.shape[1:])))

    return jax.tree.map(put, state, one)


@jax.jit
def join_rows(states: Sequence[State]) -> State:
    """One state of several states' rows, one after the other; they are of one capacity and have no prefix.

    Example:
        >>> group = join_rows([take_rows(state, [0]), take_rows(state, [5])])
    """
    return jax.tree.map(lambda *x: jnp.concatenate(x) if x[0].ndim else x[0], *states)


@jax.jit
def share_start(state: State, start: State) -> State:
    """The same rows with what they begin with held once for those that stand next to each other.

    Args:
        state: B rows without a prefix.
        start: R rows without a prefix, of which each is what the next B / R rows begin with, unless they are empty; these
            were put in place from it.

    Returns:
        A state as :func:`mintjax.cache.fork` would have begun it: ``start`` is its prefix.

    Example:
        >>> group = share_start(join_rows(rows), prompt)
    """
    shared = jnp.repeat(start.length, state.length.size // start.length.size)
    roll = jax.vmap(lambda x, by: jnp.roll(x, -by, axis=1))
    return state.replace(
        buffers=jax.tree.map(lambda x: roll(x, shared), state.buffers),
        length=jnp.maximum(state.length - shared, 0),
        prefix=start,
    )
