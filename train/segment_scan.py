"""Log probabilities over segments and a carried cache, differentiable in the memory of one cache and one segment.

The forward pass extends a state segment by segment, several short ones at once, keeps its cache and scores the labels of
all of them together. The backward pass walks from the last segment to the first: it runs one segment again against the
finished cache, of which it sees only the slots before that segment, and takes its vector-Jacobian product with the
cotangents of its log probabilities and of its own keys and values, to which every later segment has added by then. What
flows to earlier keys and values is added to buffers of the cache's shape. The gradient is exact: slots are written once
and never move. (SeCO, arXiv:2505.16710, gives the method.)

A segment scores the tokens that its own tokens predict, the first of the next segment among them. So nothing but keys
and values joins two segments.

What several streams begin with is run once. Streams then are the leaves of a tree of levels: each row goes on from a row
of the level above, sees that row's cache beside its own, and adds to its gradient; that row is walked when all have.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from mintjax.adapters import Adapter, layer_adapter
from mintjax.attention_kernels import Kernel
from mintjax.cache import State, fork, init_state
from mintjax.extension import read, run_segment, slots_of
from mintjax.models.dense import attention_options, embed, final_norm
from mintjax.models.rope import layer_tables
from mintjax.ordering import after
from mintjax.policy import Policy
from mintjax.scoring import has_slopes, logprobs_and_slopes, token_logprobs
from mintjax.segment_attention import attend_segment_vjp
from mintjax.train.layers import add_trees, end_layer, start_layer
from mintjax.train.plan_memory import joined_segments, shapes_of
from mintjax.train.segments import Segments, count, joined, parted
from mintjax.types import Segment


def segment_logprobs(
    adapter: Adapter | None,
    policy: Policy,
    levels: tuple[Segments, ...],
    temperature: Float[ArrayLike, ""],
    remat: bool,
    kernel: Kernel = "blockwise",
) -> tuple[Float[Array, "_ _ *K"], ...]:
    """Log probabilities of labels, each given a place in a segmented stream and all tokens before it in its row.

    Args:
        adapter: what the result is differentiated by; it takes the place of ``policy.adapter``.
        policy: the model.
        levels: the streams, or what they share and then what follows it; edges of segments and levels carry no
            meaning.
        temperature: what logits are divided by.
        remat: in the backward pass keep each layer's input alone, and run every layer of a segment once more.
        kernel: what computes attention.

    Returns:
        For each level one log probability a label; 0 in trailing empty segments.

    Example:
        >>> (logprobs,) = segment_logprobs(policy.adapter, policy, (segments,), 1.0, False)
    """
    return _segment_logprobs(adapter, policy, levels, temperature, remat, kernel)


def flat(levels: Sequence[Float[Array, "_ _ *K"]]) -> Float[Array, " P *K"]:
    """The labels' numbers of all levels and segments, one after the other."""
    return jnp.concatenate([x.reshape(-1, *x.shape[2:]) for x in levels])


# What flows to a segment's log probabilities, given its level, its number there and themselves.
Cotangent = Callable[[int, Array, Array], Array]


class Scan(NamedTuple):
    """What the backward pass walks over: the arguments, and the finished cache, whose prefixes are the upper levels.

    ``slopes`` are gradients of each level's log probabilities with respect to the hidden states that predict them, where
    a forward pass has left them: the backward pass then does without the head.
    """

    adapter: Adapter
    policy: Policy
    levels: tuple[Segments, ...]
    temperature: Float[ArrayLike, ""]
    state: State
    slopes: tuple[Float[Array, "T P D"], ...] | None = None


def _at(tree, t: Int[ArrayLike, ""]):
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, t, 0, False), tree)


def _predictors(positions: Int[Array | np.ndarray, " P"], hidden: Array) -> Float[Array, "P D"]:
    """The hidden state that each of a segment's labels is predicted from."""
    return hidden.reshape(-1, hidden.shape[-1])[positions]


def _score(policy: Policy, segment: Segments, hidden: Array, temperature) -> Array:
    """Log probabilities of a segment's labels."""
    predictors = _predictors(segment.positions, hidden)
    return token_logprobs(policy, predictors, segment.labels, temperature, segment.scored)


def _forward(adapter, policy, levels, temperature, remat, kernel):
    del remat
    policy = policy.replace(adapter=adapter)
    predictors, _ = _run(policy, levels, kernel)
    return _score_levels(policy, levels, predictors, temperature)


def _forward_for_backward(adapter, policy, levels, temperature, remat, kernel):
    del remat
    policy = policy.replace(adapter=adapter)
    predictors, state = _run(policy, levels, kernel)
    if not all(has_slopes(policy, level.labels, level.positions) for level in levels):
        scores = _score_levels(policy, levels, predictors, temperature)
        return scores, Scan(adapter, policy, levels, temperature, state)
    found = (
        logprobs_and_slopes(policy, rows, level.labels, temperature, level.scored)
        for level, rows in zip(levels, predictors, strict=True)
    )
    scores, slopes = zip(*found, strict=True)
    return scores, Scan(adapter, policy, levels, temperature, state, slopes)


def _score_levels(policy: Policy, levels, predictors, temperature) -> tuple[Array, ...]:
    return tuple(
        token_logprobs(policy, rows, level.labels, temperature, level.scored)
        for level, rows in zip(levels, predictors, strict=True)
    )


def _run(policy: Policy, levels, kernel: Kernel) -> tuple[tuple[Float[Array, "T P D"], ...], State]:
    """The hidden states that each level's labels are predicted from, and the finished cache.

    The head waits for all segments, since few labels of each would fill its chunks badly.
    """
    state: State | None = None
    found = []
    for segments in levels:
        state, predictors = _run_level(policy, segments, state, kernel)
        found.append(predictors)
    assert state is not None  # there is a level
    return tuple(found), state


def _run_level(
    policy: Policy, segments: Segments, prefix: State | None, kernel: Kernel
) -> tuple[State, Float[Array, "T P D"]]:
    """The cache of one level, filled, and the hidden states that its labels are predicted from."""
    steps, batch, size = segments.tokens.shape
    if prefix is None:
        state = init_state(policy, batch, steps * size)
    else:
        state = fork(prefix, batch // prefix.length.size, steps * size)
    wide = joined(segments, joined_segments(shapes_of(policy), batch * size, steps))

    def step(t, carry):
        state, predictors = carry
        segment = _at(wide, t)
        # The prefix stays outside of what the loop carries, since it does not change.
        state = state.replace(prefix=prefix)
        tokens = Segment(segment.tokens, segment.length)
        hidden, state = run_segment(policy, tokens, state, kernel, first=len(wide.tokens) == 1)
        found = _predictors(segment.positions, hidden)
        predictors = lax.dynamic_update_index_in_dim(predictors, found, t, 0)
        return state.replace(prefix=None), predictors

    empty = jnp.zeros((*wide.positions.shape, state.hidden.shape[-1]), state.hidden.dtype)
    carry = state.replace(prefix=None), empty
    state, predictors = lax.fori_loop(0, count(wide.length), step, carry)
    return state.replace(prefix=prefix), parted(predictors, segments)


class _Walk(NamedTuple):
    """What the backward pass carries from a segment to the one before it.

    ``caches`` holds what flows to each level's cache: a layer's buffers, for all layers.
    """

    adapter: Adapter
    caches: tuple[tuple[tuple[Array, ...], ...], ...]
    logprobs: Float[Array, "T P *K"]


def walk_back(
    scan: Scan,
    cotangent: Cotangent,
    remat: bool,
    kernel: Kernel = "blockwise",
) -> tuple[Adapter, tuple[Float[Array, "_ _ *K"], ...]]:
    """Walks a finished cache from its last segment to its first, level by level.

    Args:
        scan: what to walk over.
        cotangent: what flows to the log probabilities of a segment, given its level, its number and themselves.
        remat: see :func:`segment_logprobs`.
        kernel: what computes attention.

    Returns:
        The gradient of the adapter, and the log probabilities of each level, which the walk computes anyway.

    Example:
        >>> grads, logprobs = walk_back(scan, lambda level, t, scores: cotangents[level][t], remat=False)
    """
    dtype = scan.state.hidden.dtype
    states = scan.state.lineage
    zeros = partial(jax.tree.map, lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, dtype)))
    adapter = zeros(scan.adapter)
    caches = tuple(zeros(state.buffers) for state in states)
    for slopes in scan.slopes or ():  # no room is taken while labels are scored
        caches = jax.tree.map(partial(after, awaited=slopes), caches)
    found = []
    for level in reversed(range(len(states))):
        segments = scan.levels[level]
        steps = count(segments.length)
        length = jnp.asarray(segments.length)
        starts = jnp.cumsum(length, 0) - length

        def step(i, walk, level=level, steps=steps, starts=starts):
            t = steps - 1 - i
            own = states[level].replace(length=_at(starts, t))
            return _segment_backward(scan, level, t, own, cotangent, walk, remat, kernel)

        walk = _Walk(adapter, caches, jnp.zeros(segments.labels.shape, dtype))
        # All that flows to this level's cache has arrived once it is walked.
        adapter, (*caches, _), logprobs = lax.fori_loop(0, steps, step, walk)
        caches = tuple(caches)
        found.append(logprobs)
    return adapter, tuple(reversed(found))


def _backward(remat, kernel, scan: Scan, cotangents: tuple[Float[Array, "_ _ *K"], ...]):
    grads, _ = walk_back(scan, lambda level, t, _: _at(cotangents[level], t), remat, kernel)
    return grads, None, None, None


def _segment_backward(
    scan: Scan,
    level: int,
    t: Int[Array, ""],
    state: State,
    cotangent: Cotangent,
    walk: _Walk,
    remat: bool,
    kernel: Kernel,
) -> _Walk:
    """Runs one segment again, after a level's cache as it was before it, and adds its gradient to the walk."""
    adapter, policy = scan.adapter, scan.policy.replace(adapter=None)
    segment = _at(scan.levels[level], t)
    size = segment.tokens.shape[1]
    first = len(scan.levels[level].tokens) == 1  # the only one of its level
    ropes = layer_tables(policy.config, state.position[:, None] + jnp.arange(size))
    slots = slots_of(state.length, jnp.asarray(segment.length), size, state.capacity)

    def layer(i: int, residual: Array):
        """Layer ``i``, and the function that pulls a cotangent back through it."""
        q_k_v, pull_start = jax.vjp(
            start_layer(policy, i, ropes[i], lean=not remat),
            layer_adapter(adapter, i),
            residual,
        )
        q, k, v = q_k_v
        spans = state.spans(i, own=not first)
        options = attention_options(policy.config, policy.base["layers"][i], i)
        out, pull_attention = attend_segment_vjp(q, k, v, spans, kernel, **options)
        end = end_layer(policy, i, lean=not remat)
        residual, pull_end = jax.vjp(end, layer_adapter(adapter, i), residual, out)

        def pull(cotangent: Array, d_spans: list[tuple[Array, ...]]):
            d_end, d_residual, d_out = pull_end(cotangent)
            grads = pull_attention(d_out, d_spans[: len(spans)])
            d_spans = [*grads.spans, *d_spans[len(spans) :]]
            # Every later segment has added to the slots of this one by now. They are read where the attention has
            # left them, though it has not touched them: read before it, the buffers would be copied at every step.
            later = [read(buffer, slots) for buffer in d_spans[-1]]
            d_k, *d_v = (own + d for own, d in zip((grads.k, grads.v), later, strict=False))
            own = grads.q, d_k, *(d_v or [grads.v])
            d_q_k_v = tuple(d.astype(x.dtype) for d, x in zip(own, q_k_v, strict=True))
            d_start, more = pull_start(d_q_k_v)
            return add_trees(d_end, d_start), d_residual + more, d_spans

        return residual, pull

    residuals, pulls = [embed(policy.config, policy.base, jnp.asarray(segment.tokens))], []
    for i in range(policy.config.num_layers):
        residual, pull = layer(i, residuals[-1])
        residuals.append(residual)
        pulls.append(pull)

    scores, d_adapter, d_residual = _head_backward(
        scan, level, t, segment, residuals[-1], cotangent
    )
    d_layers, d_caches = [], []
    for i in reversed(range(policy.config.num_layers)):
        pull = layer(i, after(residuals[i], d_residual))[1] if remat else pulls[i]
        d_layer, d_residual, d_spans = pull(d_residual, [cache[i] for cache in walk.caches])
        d_layers.append(d_layer)
        d_caches.append(d_spans)
    # The head's share is in d_adapter already; its layers are zeros so far.
    d_adapter = d_adapter | {"layers": tuple(reversed(d_layers))}
    return _Walk(
        add_trees(walk.adapter, d_adapter),
        tuple(zip(*reversed(d_caches), strict=True)),
        lax.dynamic_update_index_in_dim(walk.logprobs, scores, t, 0),
    )


def _head_backward(scan: Scan, level, t, segment: Segments, residual: Array, cotangent: Cotangent):
    """A segment's log probabilities, and what flows to the adapter and to the last layer's output."""
    policy = scan.policy.replace(adapter=None)

    def final(residual: Array) -> Array:
        return final_norm(policy.config, policy.base, residual)

    if scan.slopes is not None:
        slopes = _at(scan.slopes[level], t)
        scores = jnp.zeros(segment.labels.shape, slopes.dtype)  # the forward pass has returned them
        pull = jax.vjp(lambda residual: _predictors(segment.positions, final(residual)), residual)[
            1
        ]
        (d_residual,) = pull(cotangent(level, t, scores)[:, None] * slopes)
        return scores, jax.tree.map(jnp.zeros_like, scan.adapter), d_residual

    def finish(adapter: Adapter, residual: Array) -> Array:
        policy = scan.policy.replace(adapter=adapter)
        return _score(policy, segment, final(residual), scan.temperature)

    scores, pull = jax.vjp(finish, scan.adapter, residual)
    return scores, *pull(cotangent(level, t, scores))


_segment_logprobs = jax.custom_vjp(_forward, nondiff_argnums=(4, 5))
_segment_logprobs.defvjp(_forward_for_backward, _backward)
