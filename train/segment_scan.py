"""Log probabilities over segments and a carried cache, differentiable in the memory of one cache and one segment.

The forward pass extends a state segment by segment and keeps its cache. The backward pass walks from the last segment
to the first: it runs one segment again against the finished cache, of which it sees only the slots before that segment,
and takes its vector-Jacobian product with the cotangents of its log probabilities, of the hidden state that it hands
on, and of its own keys and values, to which every later segment has added by then. What flows to earlier keys and
values is added to buffers of the cache's shape. The gradient is exact: slots are written once and never move.
(SeCO, arXiv:2505.16710, gives the method.)
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from mintjax.adapters import Adapter, layer_adapter
from mintjax.attention import Before, attend, attend_backward, block_of
from mintjax.cache import State, init_state
from mintjax.extension import read, run_segment, slots_of
from mintjax.models.dense import embed, final_norm
from mintjax.models.rope import rope_tables
from mintjax.policy import Policy
from mintjax.scoring import predictors, token_logprobs
from mintjax.train.layers import add_trees, after, end_layer, start_layer
from mintjax.types import Segment


class Segments(NamedTuple):
    """B token streams cut into at most T segments, right-padded each; P positions to score a segment.

    Attributes:
        tokens: ``[T, B, S]``.
        length: ``[T, B]``; trailing segments that are empty in every row cost nothing.
        positions: ``[T, P]`` places to score, as indices into a segment's flattened ``[B, S]``.
        labels: ``[T, P]`` or ``[T, P, K]``, the ids to score there; None scores the streams' own tokens.
    """

    tokens: Int[Array | np.ndarray, "T B S"]
    length: Int[Array | np.ndarray, "T B"]
    positions: Int[Array | np.ndarray, "T P"]
    labels: Int[Array | np.ndarray, "T P *K"] | None = None


def segment_logprobs(
    adapter: Adapter | None,
    policy: Policy,
    segments: Segments,
    temperature: Float[ArrayLike, ""],
    remat: bool,
) -> Float[Array, "T P *K"]:
    """Log probabilities of chosen tokens of a segmented stream, each given all tokens before it in its row.

    Args:
        adapter: what the result is differentiated by; it takes the place of ``policy.adapter``.
        policy: the model.
        segments: the streams; their edges carry no meaning.
        temperature: what logits are divided by.
        remat: in the backward pass keep each layer's input alone, and run every layer of a segment once more.

    Returns:
        One log probability a label; 0 in trailing empty segments.

    Example:
        >>> logprobs = segment_logprobs(policy.adapter, policy, segments, 1.0, False)
    """
    return _segment_logprobs(adapter, policy, segments, temperature, remat)


class _Carried(NamedTuple):
    """What a segment starts from: the length of each row before it, and the hidden state at its end."""

    length: Int[Array, " B"]
    hidden: Float[Array, "B D"]


class _Saved(NamedTuple):
    """What the backward pass needs: the arguments, the finished cache, and what each segment started from."""

    adapter: Adapter
    policy: Policy
    segments: Segments
    temperature: Float[ArrayLike, ""]
    state: State
    carried: _Carried


def _at(tree, t: Int[Array, ""]):
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, t, 0, False), tree)


def _put(tree, update, t: Int[Array, ""]):
    return jax.tree.map(lambda x, y: lax.dynamic_update_index_in_dim(x, y, t, 0), tree, update)


def _count(segments: Segments) -> Int[Array, ""]:
    """How many segments there are, without the trailing ones that are empty in every row."""
    used = segments.length.max(1) > 0
    return jnp.max(jnp.where(used, jnp.arange(used.size) + 1, 0))


def _finish(policy: Policy, segment: Segments, carried: _Carried, hidden: Array, temperature):
    """Log probabilities at a segment's positions, and the hidden state that the segment hands on."""
    # Nothing precedes a stream's first token: it is no label, but a nan there would reach the gradient as 0 * nan.
    before = jnp.where(carried.length[:, None] > 0, carried.hidden, 0)
    scored_by = predictors(before, hidden).reshape(-1, hidden.shape[-1])[segment.positions]
    labels = segment.labels
    if labels is None:
        labels = segment.tokens.reshape(-1)[segment.positions]
    last = jnp.take_along_axis(hidden, jnp.maximum(segment.length - 1, 0)[:, None, None], 1)[:, 0]
    handed_on = jnp.where(segment.length[:, None] > 0, last, before)
    return token_logprobs(policy, scored_by, labels, temperature), handed_on


def _forward(adapter, policy, segments, temperature, remat):
    del remat
    policy = policy.replace(adapter=adapter)
    steps, batch, size = segments.tokens.shape

    def step(t, carry):
        state, logprobs, carried = carry
        segment, start = _at(segments, t), _Carried(state.length, state.hidden)
        hidden, state = run_segment(policy, Segment(segment.tokens, segment.length), state)
        scores, _ = _finish(policy, segment, start, hidden, temperature)
        return state, _put(logprobs, scores, t), _put(carried, start, t)

    state = init_state(policy, batch, steps * size)
    carried = _Carried(
        *(jnp.zeros((steps, *x.shape), x.dtype) for x in (state.length, state.hidden))
    )
    scored = segments.positions if segments.labels is None else segments.labels
    logprobs = jnp.zeros(scored.shape, state.hidden.dtype)
    state, logprobs, carried = lax.fori_loop(0, _count(segments), step, (state, logprobs, carried))
    return logprobs, _Saved(adapter, policy, segments, temperature, state, carried)


class _Walk(NamedTuple):
    """What the backward pass carries from a segment to the one before it."""

    adapter: Adapter
    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    hidden: Float[Array, "B D"]


def _backward(remat, saved: _Saved, cotangent: Float[Array, "T P *K"]):
    state, dtype = saved.state, cotangent.dtype
    count = _count(saved.segments)

    def step(i, walk):
        t = count - 1 - i
        segment, start = _at(saved.segments, t), _at(saved.carried, t)
        return _segment_backward(saved, segment, start, _at(cotangent, t), walk, remat)

    zeros = partial(jax.tree.map, lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, dtype)))
    walk = _Walk(zeros(saved.adapter), zeros(state.keys), zeros(state.values), zeros(state.hidden))
    walk = lax.fori_loop(0, count, step, walk)
    return walk.adapter, None, None, None


def _segment_backward(
    saved: _Saved, segment: Segments, start: _Carried, cotangent: Array, walk: _Walk, remat: bool
) -> _Walk:
    """Runs one segment again and adds what its gradient is to the walk."""
    adapter, policy, state = saved.adapter, saved.policy.replace(adapter=None), saved.state
    size, block = segment.tokens.shape[1], block_of(state.capacity)
    rope = rope_tables(policy.config, start.length[:, None] + jnp.arange(size))
    slots = slots_of(start.length, jnp.asarray(segment.length), size, state.capacity)

    def layer(i: int, residual: Array):
        """Layer ``i``, and the function that pulls a cotangent back through it."""
        q_k_v, pull_start = jax.vjp(
            start_layer(policy, i, rope), layer_adapter(adapter, i), residual
        )
        q, k, v = q_k_v
        before = Before(state.keys[i], state.values[i], start.length)
        attended = attend(q, k, v, before, block=block)
        residual, pull_end = jax.vjp(
            end_layer(policy, i), layer_adapter(adapter, i), residual, attended.out
        )

        def pull(cotangent: Array, d_keys: Array, d_values: Array):
            d_end, d_residual, d_out = pull_end(cotangent)
            grads = attend_backward(q, k, v, before, attended, d_out, d_keys, d_values, block=block)
            # Every later segment has added to the slots of this one by now. They are read where the attention has
            # left them, though it has not touched them: read before it, the buffers would be copied at every step.
            assert grads.keys is not None and grads.values is not None  # given, so returned
            d_k, d_v = grads.k + read(grads.keys, slots), grads.v + read(grads.values, slots)
            d_q_k_v = tuple(
                d.astype(x.dtype) for d, x in zip((grads.q, d_k, d_v), q_k_v, strict=True)
            )
            d_start, more = pull_start(d_q_k_v)
            return add_trees(d_end, d_start), d_residual + more, grads.keys, grads.values

        return residual, pull

    residuals, pulls = [embed(policy.base, jnp.asarray(segment.tokens))], []
    for i in range(policy.config.num_layers):
        residual, pull = layer(i, residuals[-1])
        residuals.append(residual)
        pulls.append(pull)

    def finish(adapter: Adapter, residual: Array, hidden: Array):
        final = final_norm(policy.config, policy.base, residual)
        carried = _Carried(start.length, hidden)
        return _finish(policy.replace(adapter=adapter), segment, carried, final, saved.temperature)

    _, pull_finish = jax.vjp(finish, adapter, residuals[-1], start.hidden)
    d_adapter, d_residual, d_hidden = pull_finish((cotangent, walk.hidden))
    d_layers, d_keys, d_values = [], [], []
    for i in reversed(range(policy.config.num_layers)):
        pull = layer(i, after(residuals[i], d_residual))[1] if remat else pulls[i]
        d_layer, d_residual, keys, values = pull(d_residual, walk.keys[i], walk.values[i])
        d_layers.append(d_layer)
        d_keys.append(keys)
        d_values.append(values)
    # The head's share is in d_adapter already; its layers are zeros so far.
    d_adapter = d_adapter | {"layers": tuple(reversed(d_layers))}
    return _Walk(
        add_trees(walk.adapter, d_adapter),
        tuple(reversed(d_keys)),
        tuple(reversed(d_values)),
        d_hidden,
    )


_segment_logprobs = jax.custom_vjp(lambda *args: _forward(*args)[0], nondiff_argnums=(4,))
_segment_logprobs.defvjp(_forward, _backward)
