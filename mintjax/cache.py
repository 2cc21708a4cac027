"""The state that a conversation carries between turns: its decode cache, and the hidden state at its end."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Int32

from mintjax.attention import BLOCK, Span, span_of
from mintjax.models.config import ModelConfig
from mintjax.policy import Policy


class ContextOverflowError(ValueError):
    """A conversation needs more tokens than the model's context holds."""


class State(struct.PyTreeNode):
    """What attention keeps of every token so far of B rows, and what the next token is predicted from.

    ``length`` is the only truth about how full a row is: masks and positions are derived from it, and what stands at
    or past it is never read. N is the capacity, a multiple of ``BLOCK``; L the number of layers.

    Attributes:
        buffers: for each layer its keys, rotated, and its values; or latents alone, which are both
            (``ModelConfig.cached``).
        length: tokens in each row.
        hidden: final hidden state at the last token; nan where there is none, at length 0 and after :func:`truncate`.
        version: ``policy.version`` of the policy that filled the cache.
        overflow: rows that were given more tokens than their capacity; what did not fit was not written.
        prefix: what the rows go on from, with R rows of which each is shared by the next B / R rows (:func:`fork`).
            ``length`` and ``buffers`` are then of the tokens after it. None where rows begin here.
    """

    buffers: tuple[tuple[Float[Array, "B K N _"], ...], ...]
    length: Int32[Array, " B"]
    hidden: Float[Array, "B D"]
    version: Int32[Array, ""]
    overflow: Bool[Array, " B"]
    prefix: "State | None" = None

    @property
    def capacity(self) -> int:
        """Tokens that a row has room for, besides those of its prefix."""
        return self.buffers[0][0].shape[2]

    @property
    def position(self) -> Int32[Array, " B"]:
        """Tokens of each row in all, those of its prefix included: where its next one stands."""
        if self.prefix is None:
            return self.length
        before = self.prefix.position
        return self.length + jnp.repeat(before, self.length.size // before.size)

    @property
    def cache_bytes(self) -> int:
        """What the buffers take, those of the prefixes included."""
        return sum(x.nbytes for link in self.lineage for x in jax.tree.leaves(link.buffers))

    @property
    def lineage(self) -> "list[State]":
        """The prefixes, the first of all at the front, and the state itself."""
        return [*([] if self.prefix is None else self.prefix.lineage), self]

    def spans(self, layer: int, *, own: bool = True) -> list[Span]:
        """What a layer's attention sees: the prefixes, then the rows' own tokens unless there are known to be none."""
        seen = self.lineage if own else self.lineage[:-1]
        return [span_of(state.buffers[layer], state.length) for state in seen]


def row_capacity(state: State) -> int:
    """Tokens that the longest row has room for, those of its prefix included; on the host.

    Example:
        >>> row_capacity(fork(state, fan=8, capacity=64)) == int(state.length.max()) + 64
        True
    """
    before = 0 if state.prefix is None else int(np.asarray(state.prefix.position).max())
    return before + state.capacity


def bucket(length: int) -> int:
    """The capacity that holds ``length`` tokens: ``BLOCK`` times a power of two.

    Few capacities mean few compiled programs.

    Example:
        >>> bucket(100)
        128
    """
    return BLOCK << max(0, -(-length // BLOCK) - 1).bit_length()


def init_state(policy: Policy, batch: int, capacity: int) -> State:
    """An empty state.

    Args:
        policy: the model that will fill it.
        batch: rows.
        capacity: tokens that each row must hold; rounded up to a multiple of ``BLOCK``.

    Returns:
        A state of length 0 whose ``hidden`` is nan.

    Example:
        >>> state = init_state(policy, batch=1, capacity=bucket(200))
    """
    config, base = policy.config, policy.base
    size = -(-capacity // BLOCK) * BLOCK
    dtype = base["layers"][0]["o"].dtype
    accumulate = jnp.promote_types(dtype, jnp.float32)

    def buffers() -> tuple[Array, ...]:
        return tuple(
            jnp.zeros((batch, heads, size, width), dtype) for heads, width in config.cached
        )

    return State(
        buffers=tuple(buffers() for _ in range(config.num_layers)),
        length=jnp.zeros(batch, jnp.int32),
        hidden=jnp.full((batch, config.hidden_size), jnp.nan, accumulate),
        version=policy.version,
        overflow=jnp.zeros(batch, bool),
    )


def fork(state: State, fan: int, capacity: int) -> State:
    """A state whose rows all go on from those of another, without copying what is in it.

    Args:
        state: the prefixes; it is referred to, so it must not be donated.
        fan: rows that go on from each of its rows; they stand next to each other.
        capacity: tokens that each row must hold besides its prefix; rounded up to a multiple of ``BLOCK``.

    Returns:
        A state of ``fan`` times as many rows that can be extended and sampled from at once.

    Example:
        >>> group = fork(extend(policy, prompt, state), fan=8, capacity=bucket(64))
    """
    rows, size = state.length.size * fan, -(-capacity // BLOCK) * BLOCK

    def empty(x: Array) -> Array:
        return jnp.zeros((rows, x.shape[1], size, x.shape[3]), x.dtype)

    return state.replace(
        buffers=jax.tree.map(empty, state.buffers),
        length=jnp.zeros(rows, jnp.int32),
        hidden=jnp.repeat(state.hidden, fan, 0),
        overflow=jnp.repeat(state.overflow, fan),
        prefix=state,
    )


def grow(state: State, capacity: int) -> State:
    """The same state with room for more tokens.

    Args:
        state: any state.
        capacity: the new capacity, rounded up to a multiple of ``BLOCK``.

    Returns:
        A state with the larger buffers; ``overflow`` is kept, since what did not fit is lost.

    Raises:
        ValueError: if the capacity would shrink.
    """
    more = -(-capacity // BLOCK) * BLOCK - state.capacity
    if more < 0:
        raise ValueError(
            f"capacity: expected at least the present {state.capacity}, got {capacity}"
        )
    pad = ((0, 0), (0, 0), (0, more), (0, 0))
    return state.replace(buffers=jax.tree.map(lambda x: jnp.pad(x, pad), state.buffers))


def reserve(config: ModelConfig, state: State, tokens: int | Int[np.ndarray, " B"]) -> State:
    """The same state with room for ``tokens`` more in each row; on the host, since shapes may change.

    Args:
        config: the model, for its context.
        state: any state that has not overflowed.
        tokens: how many more tokens the rows must take, one number or one a row; a row that takes none needs no room.

    Returns:
        The state as it is where it has room, else grown to the next bucket.

    Raises:
        ContextOverflowError: if the need is beyond the model's context.

    Example:
        >>> state = reserve(policy.config, state, 100)
    """
    held, own = np.asarray(state.position), np.asarray(state.length)
    more = np.broadcast_to(tokens, held.shape)
    needs = np.where(more > 0, held + more, 0)
    row = int(needs.argmax())
    if (need := int(needs[row])) > config.context:
        raise ContextOverflowError(
            f"{config.name} has a context of {config.context} tokens; {need} are needed ({held[row]} in the cache and "
            f"{more[row]} more). Shorten the conversation, or ask for fewer new tokens"
        )
    room = int(np.where(more > 0, own + more, 0).max())
    return (
        state
        if room <= state.capacity
        else grow(state, min(bucket(room), _rounded_context(config)))
    )


def _rounded_context(config: ModelConfig) -> int:
    return -(-config.context // BLOCK) * BLOCK


def check_overflow(config: ModelConfig, state: State) -> None:
    """Raises if tokens of any row did not fit; a state that has overflowed is not to be used.

    Raises:
        ContextOverflowError: naming the rows, the capacity and the model's context.
    """
    rows = np.flatnonzero(np.asarray(state.overflow))
    if rows.size:
        raise ContextOverflowError(
            f"rows {rows.tolist()} were given more tokens than the cache's capacity of {state.capacity} ({config.name} "
            f"has a context of {config.context}); reserve room with mintjax.cache.reserve before extending"
        )


def take_rows(
    state: State, rows: Sequence[int] | Int[np.ndarray, " R"], *, fan: int | None = None
) -> State:
    """Rows of a state as a state of their own: one to keep, or one repeated to sample it several times.

    Args:
        state: any state.
        rows: which rows, in the order that they shall have; any of them several times. A prefix that as many rows go
            on from one after the other, in every part of the order, stays shared.
        fan: how many rows shall share a prefix, where there are prefixes; None is as many as can.

    Returns:
        A state of R rows in memory of its own.

    Raises:
        ValueError: if rows that shall share a prefix have different ones.

    Example:
        >>> four = take_rows(state, np.zeros(4, int))
    """
    rows = np.asarray(rows)
    if state.prefix is None:
        return _take_rows(state, rows)
    parents = rows // (state.length.size // state.prefix.length.size)
    fans = [n for n in range(rows.size, 0, -1) if rows.size % n == 0]
    fans = [n for n in fans if not np.ptp(parents.reshape(-1, n), axis=1).any()]
    fan = fan or fans[0]
    if fan not in fans:
        raise ValueError(
            f"fan: rows {rows.tolist()} go on from the prefixes {parents.tolist()}, so {fans} rows can share "
            f"one, got {fan}"
        )
    own = _take_rows(state.replace(prefix=None), rows)
    return own.replace(prefix=take_rows(state.prefix, parents[::fan]))


@jax.jit
def _take_rows(state: State, rows: Int[ArrayLike, " R"]) -> State:
    return state.replace(
        buffers=jax.tree.map(lambda x: x[rows], state.buffers),
        length=state.length[rows],
        hidden=state.hidden[rows],
        overflow=state.overflow[rows],
    )


def truncate(state: State, length: Int[ArrayLike, " B"]) -> State:
    """Forgets the tokens of each row at and past ``length``. Pure, and free: nothing is moved; a prefix stays.

    The hidden state of a row that got shorter is nan until its last kept token is fed again: truncate to one less and
    extend with that token (:func:`mintjax.generation.rewind` does both).

    Args:
        state: any state.
        length: tokens to keep in each row, those of a prefix not counted; a row that has fewer keeps what it has.

    Returns:
        The shorter state.

    Example:
        >>> state = truncate(state, state.length - 1)
    """
    kept = jnp.minimum(state.length, jnp.maximum(jnp.asarray(length, jnp.int32), 0))
    shorter = kept < state.length
    return state.replace(length=kept, hidden=jnp.where(shorter[:, None], jnp.nan, state.hidden))
