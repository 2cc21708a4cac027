"""Sampling from a state, token by token, in one compiled loop."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Int32, Key

from mintjax.cache import State
from mintjax.extension import run_segment
from mintjax.models.dense import unembed
from mintjax.policy import Policy
from mintjax.sampling import sample_tokens
from mintjax.types import Segment

_STOPS = 8  # sets of stop tokens are padded to a multiple of it


class DecodeParams(NamedTuple):
    """How to sample. Every field is traced: changing one compiles nothing.

    Attributes:
        temperature: see :func:`mintjax.sampling.sample_tokens`; so top_k and top_p.
        top_k: 0 or less: off.
        top_p: 1: off.
        stop_tokens: ids that end a row once sampled, int32 ``[n]``; -1 pads.
        max_tokens: tokens to sample at most, int32 ``[B]``; a row with 0 does not move.
    """

    temperature: Float[ArrayLike, ""]
    top_k: Int[ArrayLike, ""]
    top_p: Float[ArrayLike, ""]
    stop_tokens: Int[ArrayLike, " n"]
    max_tokens: Int[ArrayLike, " B"]


def padded_stops(tokens: Sequence[int]) -> Int32[np.ndarray, " n"]:
    """Stop tokens as :class:`DecodeParams` takes them, -1 up to one of few sizes: another set compiles nothing.

    Example:
        >>> padded_stops([2, 7])
        array([ 2,  7, -1, -1, -1, -1, -1, -1], dtype=int32)
    """
    size = max(_STOPS, -(-len(tokens) // _STOPS) * _STOPS)
    return np.array([*tokens, *[-1] * (size - len(tokens))], np.int32)


class Sample(NamedTuple):
    """What was sampled; M is the buffer's size.

    Attributes:
        tokens: int32 ``[B, M]``, the stop token included; -1 past ``length``.
        logprobs: ``[B, M]``, of the temperature-scaled distribution; nan past ``length``.
        length: tokens sampled in each row.
        stopped: rows that ended on a stop token; the others reached max_tokens or ran out of room.
    """

    tokens: Int32[Array, "B M"]
    logprobs: Float[Array, "B M"]
    length: Int32[Array, " B"]
    stopped: Bool[Array, " B"]


def decode(
    policy: Policy,
    state: State,
    keys: Key[Array, " B"],
    params: DecodeParams,
    *,
    buffer: int,
    least: Int[ArrayLike, ""] = 1,
    donate: bool = False,
) -> tuple[Sample, State]:
    """Samples every row until a stop token, ``max_tokens`` or the end of its room.

    Each token is drawn from the carried hidden state and then fed, the stop token and the last one included, so the
    state that is returned holds all that was sampled. The randomness of a token is its row's key folded with its
    position: a turn sampled in several calls equals one sampled at once.

    Args:
        policy: the model.
        state: a state whose ``hidden`` is not nan in any row that is to move.
        keys: one typed key a row.
        params: how to sample.
        buffer: M, the size of the result; static, and at least every ``max_tokens``.
        least: rows that must be sampling for another step to be made. With more than 1 the call returns as soon as fewer
            are left, whose samples go on in another call with the same keys. Traced.
        donate: reuse the memory of ``state``, which can then not be used again.

    Returns:
        The sample, and the state after it. A row without room for its next token sets ``overflow`` in the state.

    Raises:
        ValueError: if the buffer is smaller than a row's ``max_tokens`` (checked outside of jit only).

    Example:
        >>> sample, state = decode(policy, state, jax.random.split(key, 1), params, buffer=64)
    """
    if not isinstance(params.max_tokens, Tracer) and np.max(params.max_tokens) > buffer:
        raise ValueError(
            f"buffer: expected at least max_tokens ({np.max(params.max_tokens)}), got {buffer}"
        )
    run = _decode_donated if donate else _decode
    return run(policy, state, keys, params, jnp.asarray(least, jnp.int32), buffer=buffer)


class _Loop(NamedTuple):
    step: Array
    state: State
    sample: Sample
    live: Array


def _decode_traced(
    policy: Policy, state: State, keys: Array, params: DecodeParams, least: Array, *, buffer: int
):
    batch = state.length.shape[0]
    temperature, top_k, top_p, stop_tokens, budget = (jnp.asarray(value) for value in params)

    def step(loop: _Loop) -> _Loop:
        state, sample = loop.state.replace(prefix=prefix), loop.sample
        room = state.length < state.capacity
        state = state.replace(overflow=state.overflow | (loop.live & ~room))
        live = loop.live & room
        logits = unembed(policy.lora, policy.base, policy.adapter, state.hidden)
        token_keys = jax.vmap(jax.random.fold_in)(keys, state.position)
        uniform = jax.vmap(lambda key: jax.random.uniform(key, (), logits.dtype))(token_keys)
        tokens, logprobs = sample_tokens(logits, uniform, temperature, top_k, top_p)
        _, state = run_segment(policy, Segment(tokens[:, None], live.astype(jnp.int32)), state)
        column = jnp.where(
            live, loop.step, buffer
        )  # a row that is done writes past the end, where it is dropped
        rows = jnp.arange(batch)
        stop = live & jnp.isin(tokens, stop_tokens)
        sample = Sample(
            sample.tokens.at[rows, column].set(tokens, mode="drop"),
            sample.logprobs.at[rows, column].set(logprobs, mode="drop"),
            sample.length + live,
            sample.stopped | stop,
        )
        state = state.replace(prefix=None)
        return _Loop(loop.step + 1, state, sample, live & ~stop & (loop.step + 1 < budget))

    empty = Sample(
        jnp.full((batch, buffer), -1, jnp.int32),
        jnp.full((batch, buffer), jnp.nan, state.hidden.dtype),
        jnp.zeros(batch, jnp.int32),
        jnp.zeros(batch, bool),
    )
    # The prefix stays outside of what the loop carries, since it does not change.
    prefix = state.prefix
    state = state.replace(version=policy.version, prefix=None)
    loop = _Loop(jnp.int32(0), state, empty, budget > 0)
    loop = lax.while_loop(lambda loop: loop.live.sum() >= least, step, loop)
    return loop.sample, loop.state.replace(prefix=prefix)


_decode = partial(jax.jit, static_argnames="buffer")(_decode_traced)
_decode_donated = partial(jax.jit, static_argnames="buffer", donate_argnames="state")(
    _decode_traced
)
