"""Log probabilities over segments and a carried cache, differentiable in the memory of one cache and one segment.

The forward pass extends a state segment by segment and keeps its cache. The backward pass walks from the last segment
to the first: it runs one segment again against the finished cache, of which it sees only the slots before that segment,
and takes its vector-Jacobian product with the cotangents of its log probabilities and of its own keys and values, to
which every later segment has added by then. What flows to earlier keys and values is added to buffers of the cache's
shape. The gradient is exact: slots are written once and never move. (SeCO, arXiv:2505.16710, gives the method.)

A segment scores the tokens that its own tokens predict, the first of the next segment among them. So nothing but keys
and values joins two segments.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from mintjax.adapters import Adapter, layer_adapter
from mintjax.attention import Before, block_of
from mintjax.attention_kernels import Kernel
from mintjax.cache import State, init_state
from mintjax.extension import read, run_segment, slots_of
from mintjax.models.dense import embed, final_norm
from mintjax.models.rope import rope_tables
from mintjax.policy import Policy
from mintjax.scoring import token_logprobs
from mintjax.segment_attention import attend_segment_vjp
from mintjax.train.layers import add_trees, after, end_layer, start_layer
from mintjax.types import Segment


class Segments(NamedTuple):
    """B token streams cut into at most T segments, right-padded each; P labels to score a segment.

    Attributes:
        tokens: ``[T, B, S]``.
        length: ``[T, B]``; trailing segments that are empty in every row cost nothing.
        positions: ``[T, P]`` places that predict a label, as indices into a segment's flattened ``[B, S]``.
        labels: ``[T, P]`` or ``[T, P, K]``, the ids to score there: a stream's next token, or any.
    """

    tokens: Int[Array | np.ndarray, "T B S"]
    length: Int[Array | np.ndarray, "T B"]
    positions: Int[Array | np.ndarray, "T P"]
    labels: Int[Array | np.ndarray, "T P *K"]


def segment_logprobs(
    adapter: Adapter | None,
    policy: Policy,
    segments: Segments,
    temperature: Float[ArrayLike, ""],
    remat: bool,
    kernel: Kernel = "blockwise",
) -> Float[Array, "T P *K"]:
    """Log probabilities of labels, each given a place in a segmented stream and all tokens before it in its row.

    Args:
        adapter: what the result is differentiated by; it takes the place of ``policy.adapter``.
        policy: the model.
        segments: the streams; their edges carry no meaning.
        temperature: what logits are divided by.
        remat: in the backward pass keep each layer's input alone, and run every layer of a segment once more.
        kernel: what computes attention.

    Returns:
        One log probability a label; 0 in trailing empty segments.

    Example:
        >>> logprobs = segment_logprobs(policy.adapter, policy, segments, 1.0, False)
    """
    return _segment_logprobs(adapter, policy, segments, temperature, remat, kernel)


# What flows to a segment's log probabilities, given the segment's number and themselves.
Cotangent = Callable[[Array, Array], Array]


class Scan(NamedTuple):
    """What the backward pass walks over: the arguments, and the finished cache."""

    adapter: Adapter
    policy: Policy
    segments: Segments
    temperature: Float[ArrayLike, ""]
    state: State


def _at(tree, t: Int[Array, ""]):
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, t, 0, False), tree)


def count(segments: Segments) -> Int[Array, ""]:
    """How many segments there are, without the trailing ones that are empty in every row."""
    used = segments.length.max(1) > 0
    return jnp.max(jnp.where(used, jnp.arange(used.size) + 1, 0))


def _score(policy: Policy, segment: Segments, hidden: Array, temperature):
    """Log probabilities of a segment's labels."""
    predictors = hidden.reshape(-1, hidden.shape[-1])[segment.positions]
    return token_logprobs(policy, predictors, segment.labels, temperature)


def _forward(adapter, policy, segments, temperature, remat, kernel):
    del remat
    policy = policy.replace(adapter=adapter)
    steps, batch, size = segments.tokens.shape

    def step(t, carry):
        state, logprobs = carry
        segment = _at(segments, t)
        piece = Segment(segment.tokens, segment.length)
        hidden, state = run_segment(policy, piece, state, kernel)
        scores = _score(policy, segment, hidden, temperature)
        return state, lax.dynamic_update_index_in_dim(logprobs, scores, t, 0)

    state = init_state(policy, batch, steps * size)
    logprobs = jnp.zeros(segments.labels.shape, state.hidden.dtype)
    state, logprobs = lax.fori_loop(0, count(segments), step, (state, logprobs))
    return logprobs, Scan(adapter, policy, segments, temperature, state)


class _Walk(NamedTuple):
    """What the backward pass carries from a segment to the one before it."""

    adapter: Adapter
    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    logprobs: Float[Array, "T P *K"]


def walk_back(
    scan: Scan,
    cotangent: Cotangent,
    remat: bool,
    kernel: Kernel = "blockwise",
) -> tuple[Adapter, Float[Array, "T P *K"]]:
    """Walks a finished cache from its last segment to its first.

    Args:
        scan: what to walk over.
        cotangent: what flows to the log probabilities of a segment, given its number and themselves.
        remat: see :func:`segment_logprobs`.
        kernel: what computes attention.

    Returns:
        The gradient of the adapter, and the log probabilities, which the walk computes anyway.

    Example:
        >>> grads, logprobs = walk_back(scan, lambda t, scores: cotangents[t], remat=False)
    """
    state, segments = scan.state, scan.segments
    dtype = state.hidden.dtype
    steps = count(segments)
    length = jnp.asarray(segments.length)
    starts = jnp.cumsum(length, 0) - length

    def step(i, walk):
        t = steps - 1 - i
        return _segment_backward(scan, t, _at(starts, t), cotangent, walk, remat, kernel)

    zeros = partial(jax.tree.map, lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, dtype)))
    logprobs = jnp.zeros(segments.labels.shape, dtype)
    walk = _Walk(zeros(scan.adapter), zeros(state.keys), zeros(state.values), logprobs)
    walk = lax.fori_loop(0, steps, step, walk)
    return walk.adapter, walk.logprobs


def _backward(remat, kernel, scan: Scan, cotangents: Float[Array, "T P *K"]):
    grads, _ = walk_back(scan, lambda t, _: _at(cotangents, t), remat, kernel)
    return grads, None, None, None


def _segment_backward(
    scan: Scan,
    t: Int[Array, ""],
    start: Int[Array, " B"],
    cotangent: Cotangent,
    walk: _Walk,
    remat: bool,
    kernel: Kernel,
) -> _Walk:
    """Runs one segment again and adds what its gradient is to the walk."""
    adapter, policy, state = scan.adapter, scan.policy.replace(adapter=None), scan.state
    segment = _at(scan.segments, t)
    size, block = segment.tokens.shape[1], block_of(state.capacity)
    rope = rope_tables(policy.config, start[:, None] + jnp.arange(size))
    slots = slots_of(start, jnp.asarray(segment.length), size, state.capacity)

    def layer(i: int, residual: Array):
        """Layer ``i``, and the function that pulls a cotangent back through it."""
        q_k_v, pull_start = jax.vjp(
            start_layer(policy, i, rope), layer_adapter(adapter, i), residual
        )
        q, k, v = q_k_v
        before = Before(state.keys[i], state.values[i], start)
        out, pull_attention = attend_segment_vjp(q, k, v, before, block=block, kernel=kernel)
        residual, pull_end = jax.vjp(end_layer(policy, i), layer_adapter(adapter, i), residual, out)

        def pull(cotangent: Array, d_keys: Array, d_values: Array):
            d_end, d_residual, d_out = pull_end(cotangent)
            grads = pull_attention(d_out, d_keys, d_values)
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

    def finish(adapter: Adapter, residual: Array):
        final = final_norm(policy.config, policy.base, residual)
        return _score(policy.replace(adapter=adapter), segment, final, scan.temperature)

    scores, pull_finish = jax.vjp(finish, adapter, residuals[-1])
    d_adapter, d_residual = pull_finish(cotangent(t, scores))
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
        lax.dynamic_update_index_in_dim(walk.logprobs, scores, t, 0),
    )


_segment_logprobs = jax.custom_vjp(lambda *args: _forward(*args)[0], nondiff_argnums=(4, 5))
_segment_logprobs.defvjp(_forward, _backward)
