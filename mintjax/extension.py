"""Extending a state by a segment: every token is run once, against the cache of all before it."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from mintjax.adapters import layer_adapter
from mintjax.attention_kernels import Kernel
from mintjax.cache import State, bucket, init_state
from mintjax.models.dense import (
    attention_options,
    embed,
    final_norm,
    finish_layer,
    queries_keys_values,
)
from mintjax.models.rope import layer_tables
from mintjax.policy import Policy
from mintjax.scoring import predictors, token_logprobs, top_logprobs
from mintjax.segment_attention import attend_segment
from mintjax.types import Segment


def write(
    buffer: Float[Array, "B K N H"], new: Float[Array, "B K S H"], slots: Int[Array, "B S"]
) -> Float[Array, "B K N H"]:
    """Writes each row's new keys or values at its own slots; a slot past the capacity is left out, never clamped."""
    rows = jnp.arange(buffer.shape[0])[:, None]
    return buffer.at[rows, :, slots].set(new.transpose(0, 2, 1, 3), mode="drop")


def read(buffer: Float[Array, "B K N H"], slots: Int[Array, "B S"]) -> Float[Array, "B K S H"]:
    """Reads each row's slots back; a slot past the capacity, as padding has, gives zeros."""
    rows = jnp.arange(buffer.shape[0])[:, None]
    return buffer.at[rows, :, slots].get(mode="fill", fill_value=0).transpose(0, 2, 1, 3)


def slots_of(
    state_length: Int[Array, " B"], length: Int[Array, " B"], size: int, capacity: int
) -> Array:
    """Slot of each token of a segment; padding gets the capacity, where :func:`write` drops it."""
    offset = jnp.arange(size)
    return jnp.where(offset < length[:, None], state_length[:, None] + offset, capacity)


def run_segment(
    policy: Policy,
    segment: Segment,
    state: State,
    kernel: Kernel = "blockwise",
    *,
    first: bool = False,
) -> tuple[Float[Array, "B S D"], State]:
    """Runs all layers over a segment and appends it to the cache.

    Args:
        policy: the model.
        segment: tokens, right-padded.
        state: what comes before; rows with a segment of length 0 do not move.
        kernel: what computes attention.
        first: whether the state's own buffers are known to be empty, so that only its prefix is read. Static.

    Returns:
        The final hidden state of each token (padding holds numbers without meaning), and the extended state.
    """
    config, lora = policy.config, policy.lora
    tokens, length = jnp.asarray(segment.tokens), jnp.asarray(segment.length)
    size = tokens.shape[1]
    ropes = layer_tables(config, state.position[:, None] + jnp.arange(size))
    slots = slots_of(state.length, length, size, state.capacity)
    # A row that does not move reads nothing: the blocks that are read end with the longest row that does.
    seen = state.replace(length=jnp.where(length > 0, state.length, 0))
    residual = embed(config, policy.base, tokens)
    buffers = []
    for i, weights in enumerate(policy.base["layers"]):
        adapter = layer_adapter(policy.adapter, i)
        q, k, v = queries_keys_values(config, lora, weights, adapter, residual, ropes[i])
        spans, options = seen.spans(i, own=not first), attention_options(config, weights, i)
        out = attend_segment(q, k, v, spans, kernel, **options)
        residual = finish_layer(config, lora, weights, adapter, residual, out)
        # Nothing but this sum tells the compiler that the cache is read before it is written; without it, on CPU, a
        # loop over this function copies every buffer at every step.
        read_first = 0 * out.reshape(-1)[0]
        # Values that are part of the keys have no buffer of their own.
        pairs = zip(state.buffers[i], (k, v), strict=False)
        buffers.append(tuple(write(buffer, x + read_first, slots) for buffer, x in pairs))
    hidden = final_norm(config, policy.base, residual)
    last = jnp.take_along_axis(hidden, jnp.maximum(length - 1, 0)[:, None, None], 1)[:, 0]
    end = state.length + length
    return hidden, state.replace(
        buffers=tuple(buffers),
        length=jnp.minimum(end, state.capacity).astype(jnp.int32),
        hidden=jnp.where(length[:, None] > 0, last, state.hidden),
        version=policy.version,
        overflow=state.overflow | (end > state.capacity),
    )


def forward(
    policy: Policy,
    segment: Segment,
    extends: State | None = None,
    *,
    temperature: Float[ArrayLike, ""] = 1.0,
) -> tuple[Float[Array, "B S"], State]:
    """Scores every token of a segment given all before it, and returns the state after it.

    The first token is scored by the hidden state that ``extends`` carries, so nothing is fed twice and no label crosses
    the edge of a segment. One compiled program serves all segments of a shape.

    Args:
        policy: the model.
        segment: tokens ``[B, S]`` and real lengths ``[B]``.
        extends: the state after everything before; None starts a conversation. Room for it must be there
            (:func:`mintjax.cache.reserve`): what does not fit sets ``overflow`` in the state that is returned.
        temperature: logits are divided by it, so that sampled log probabilities at that temperature are equalled.

    Returns:
        Log probabilities of the segment's own tokens, in at least float32: nan at a conversation's first token and on
        padding. And the state after the segment.

    Example:
        >>> logprobs, state = forward(policy, Segment(tokens, length))
        >>> more, state = forward(policy, next_segment, state)
    """
    if extends is None:
        extends = init_state(policy, segment.tokens.shape[0], bucket(segment.tokens.shape[1]))
    return _forward(policy, segment, extends, temperature)


def extend(policy: Policy, segment: Segment, state: State, *, donate: bool = False) -> State:
    """Appends a segment to a state without scoring it: what a prompt needs.

    Args:
        policy: the model.
        segment: tokens ``[B, S]`` and real lengths ``[B]``.
        state: what comes before, with room (see :func:`forward`).
        donate: reuse the memory of ``state``, which can then not be used again.

    Returns:
        The state after the segment.

    Example:
        >>> state = extend(policy, Segment(tokens, length), init_state(policy, 1, 256))
    """
    return (_extend_donated if donate else _extend)(policy, segment, state)


class TopLogprobs(NamedTuple):
    """The likeliest tokens at each place of a segment, likeliest first; without meaning where ``logprobs`` are nan.

    Attributes:
        tokens: int32 ``[B, S, k]``.
        logprobs: ``[B, S, k]``; nan at a conversation's first token and on padding.
    """

    tokens: Int[Array, "B S k"]
    logprobs: Float[Array, "B S k"]


@partial(jax.jit, static_argnames="k")
def forward_top(
    policy: Policy, segment: Segment, state: State, *, k: int
) -> tuple[Float[Array, "B S"], TopLogprobs, State]:
    """What :func:`forward` returns at temperature 1, and the likeliest tokens at each place.

    Args:
        policy: the model.
        segment: tokens ``[B, S]`` and real lengths ``[B]``.
        state: what comes before, with room.
        k: how many likeliest tokens; static.

    Returns:
        Log probabilities of the segment's own tokens, the likeliest, and the state after the segment.

    Example:
        >>> logprobs, top, state = forward_top(policy, segment, init_state(policy, 1, 256), k=5)
    """
    hidden, after = run_segment(policy, segment, state)
    scored_by = predictors(state.hidden, hidden)
    tokens = jnp.asarray(segment.tokens)
    logprobs = token_logprobs(policy, scored_by, tokens)
    ids, best = top_logprobs(policy, scored_by.reshape(-1, scored_by.shape[-1]), k)
    real = jnp.arange(tokens.shape[1]) < jnp.asarray(segment.length)[:, None]
    top = TopLogprobs(
        ids.reshape(*tokens.shape, k),
        jnp.where(real[..., None], best.reshape(*tokens.shape, k), jnp.nan),
    )
    return jnp.where(real, logprobs, jnp.nan), top, after


@jax.jit
def _forward(policy: Policy, segment: Segment, state: State, temperature: Float[ArrayLike, ""]):
    before = state
    hidden, state = run_segment(policy, segment, state)
    scored_by = predictors(before.hidden, hidden)
    logprobs = token_logprobs(policy, scored_by, jnp.asarray(segment.tokens), temperature)
    real = jnp.arange(logprobs.shape[1]) < jnp.asarray(segment.length)[:, None]
    return jnp.where(real, logprobs, jnp.nan), state


def _extend_traced(policy: Policy, segment: Segment, state: State) -> State:
    return run_segment(policy, segment, state)[1]


_extend = jax.jit(_extend_traced)
_extend_donated = partial(jax.jit, donate_argnames="state")(_extend_traced)
