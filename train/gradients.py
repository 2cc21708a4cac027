"""The gradient of a loss over a batch of episodes: one function, and a plan that says how it is computed.

The plans agree; they differ in memory and time. ``"packed"`` runs each row whole, ``"segments"`` runs it in pieces over
a cache (``mintjax.train.segment_scan``), and ``"reverse_only"`` runs the pieces over the cache that sampling them left
(``mintjax.train.reverse_only``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from mintjax.adapters import Adapter
from mintjax.attention import block_of
from mintjax.attention_kernels import Kernel, choose_kernel, hardware_of
from mintjax.cache import State, bucket
from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.train.layers import add_trees
from mintjax.train.losses import Loss, LossInputs, masked_sum
from mintjax.train.packed import row_logprobs
from mintjax.train.reverse_only import check_state, reverse_gradients
from mintjax.train.segment_scan import Segments, flat, segment_logprobs
from mintjax.train.shared_prefixes import Level, find_levels, levels_of

_POSITIONS = 512  # scored positions are padded to this, doubled as often as it takes: few shapes, few compiles


@dataclass(frozen=True)
class Plan:
    """How a gradient is computed. Static.

    Attributes:
        kind: ``"packed"``: whole rows; ``"segments"``: pieces of ``segment`` tokens over a cache; ``"reverse_only"``:
            the same backwards alone, over the cache of fresh episodes.
        segment: tokens in a piece.
        remat: keep less and compute more: each layer's input alone is kept for the backward pass.
        share: run what rows that stand next to each other begin with once, as the rows of a group do. With
            ``"segments"``; ``"reverse_only"`` shares what the cache does, and ``"packed"`` nothing.
        attention: a kernel of ``mintjax.attention_kernels``, or ``"auto"``: for whole rows the platform's own where it
            serves the weights' dtype, heads and devices, and ``"blockwise"`` elsewhere and for pieces over a cache,
            which it does not read past the longest prefix.
    """

    kind: Literal["packed", "segments", "reverse_only"] = "packed"
    segment: int = 128
    remat: bool = False
    share: bool = True
    attention: Literal["auto", "blockwise", "cudnn", "splash"] = "auto"


def with_kernel(plan: Plan, policy: Policy) -> Plan:
    """The plan with the kernel that ``plan.attention`` stands for on the hardware where the policy lies.

    Raises:
        ValueError: if it names a kernel that cannot serve there.

    Example:
        >>> with_kernel(Plan(), policy).attention  # on a CPU
        'blockwise'
    """
    if plan.attention == "auto" and plan.kind != "packed":
        return replace(plan, attention="blockwise")
    dtype = jnp.dtype(policy.base["layers"][0]["q"].dtype)
    hardware = hardware_of(policy.base["norm"])
    kernel = choose_kernel(plan.attention, hardware, policy.config.head_dim, dtype)
    return replace(plan, attention=kernel)


class GradientMetrics(NamedTuple):
    """What a gradient tells besides itself.

    Attributes:
        loss: the sum of the loss's terms.
        logprobs: float ``[B, N]``, or ``[B, N, K]`` as the batch's labels, this policy's log probabilities of what the
            batch trains or scores; nan elsewhere.
    """

    loss: Float[Array, ""]
    logprobs: np.ndarray


def gradients(
    policy: Policy, batch: Batch, loss: Loss, plan: Plan = Plan(), state: State | None = None
) -> tuple[Adapter, GradientMetrics]:
    """The gradient of a loss's sum with respect to the adapter.

    Sums add up: the gradients of several batches, added leaf by leaf, are the gradient of all of them.

    Args:
        policy: the model; it must have an adapter.
        batch: rows of token streams with what the loss needs, one number a token.
        loss: terms to sum over ``batch.mask``.
        plan: how to compute it; the result does not depend on it but for rounding.
        state: for the plan ``"reverse_only"``: the cache of these very streams, a row each.

    Returns:
        A tree like ``policy.adapter``, and metrics. Compiled once for each shape of batch and number of scored
        positions, which are padded to few sizes.

    Raises:
        ValueError: if a row's first token is trained (nothing predicts it), the policy has no adapter, a state is
            missing or of other streams, or the plan names an attention kernel that cannot serve the policy.
        StaleCacheError: if the policy has been updated since it filled the state.

    Example:
        >>> grads, metrics = gradients(policy, batch, Ppo(), Plan("segments"))
    """
    if policy.adapter is None:
        raise ValueError(
            "policy.adapter: None has no gradient; load_policy makes a policy with an adapter"
        )
    plan = with_kernel(plan, policy)
    if plan.kind == "reverse_only":
        if state is None:
            raise ValueError(
                "state: the plan 'reverse_only' walks the cache that sampling left; pass it, or take 'segments'"
            )
        check_state(policy, batch, state)
    data, index = plan_arguments(batch, plan, state)
    inputs = _loss_inputs(batch, index)
    if plan.kind == "reverse_only":
        grads, value, scored = reverse_gradients(
            policy,
            data,
            state,
            inputs,
            batch.temperature,
            loss=loss,
            remat=plan.remat,
            kernel=_kernel(plan),
        )
    else:
        grads, value, scored = _gradients(
            policy, data, inputs, batch.temperature, loss=loss, plan=plan
        )
    return grads, GradientMetrics(value, _lay_back(batch, index, scored))


def evaluate(policy: Policy, batch: Batch, loss: Loss, plan: Plan = Plan()) -> GradientMetrics:
    """The loss and the log probabilities that :func:`gradients` reports, without the gradient.

    Args:
        policy: the model, with an adapter or without.
        batch: as for :func:`gradients`.
        loss: terms to sum over ``batch.mask``.
        plan: how to compute it.

    Returns:
        The same metrics.

    Raises:
        ValueError: if a row's first token is trained or scored, or the plan names an attention kernel that cannot serve
            the policy.

    Example:
        >>> evaluate(policy, batch, CrossEntropy()).loss
    """
    plan = with_kernel(plan, policy)
    data, index = plan_arguments(batch, plan)
    inputs = _loss_inputs(batch, index)
    value, scored = _evaluate(policy, data, inputs, batch.temperature, loss=loss, plan=plan)
    return GradientMetrics(value, _lay_back(batch, index, scored))


def lower_gradients(
    policy: Policy, batch: Batch, loss: Loss, plan: Plan = Plan(), state: State | None = None
) -> jax.stages.Lowered:
    """The program that :func:`gradients` runs, not compiled yet: it tells what a gradient will cost.

    Args:
        policy: as for :func:`gradients`; so the others.
        batch: what to take the gradient over.
        loss: terms to sum.
        plan: how to compute it.
        state: for the plan ``"reverse_only"``.

    Returns:
        What ``jax.jit(...).lower(...)`` returns.

    Example:
        >>> lower_gradients(policy, batch, Ppo()).compile().memory_analysis().temp_size_in_bytes
    """
    plan = with_kernel(plan, policy)
    data, index = plan_arguments(batch, plan, state)
    inputs = _loss_inputs(batch, index)
    if plan.kind == "reverse_only":
        options = {"remat": plan.remat, "kernel": _kernel(plan)}
        return reverse_gradients.lower(
            policy, data, state, inputs, batch.temperature, loss=loss, **options
        )
    return _gradients.lower(policy, data, inputs, batch.temperature, loss=loss, plan=plan)


@partial(jax.jit, donate_argnames="total")
def add_gradients(total: Adapter, more: Adapter) -> Adapter:
    """The sum of two gradients; the memory of ``total`` is reused, so it cannot be used again.

    Example:
        >>> total = add_gradients(total, gradients(policy, batch, loss)[0])
    """
    return add_trees(total, more)


def plan_arguments(
    batch: Batch, plan: Plan, state: State | None = None
) -> tuple["Rows | tuple[Segments, ...]", np.ndarray]:
    """A batch as a plan takes it, and where each of its scored positions stands in the batch.

    Args:
        batch: rows of token streams.
        plan: how they will be computed on.
        state: the cache that they will be computed on, for the plan ``"reverse_only"``.

    Returns:
        The arrays for :func:`plan_logprobs`, and ``[P]`` flat indices into ``[B, N]``, -1 on padding.

    Raises:
        ValueError: if a row's first token is trained or scored.

    Example:
        >>> data, index = plan_arguments(batch, Plan())
    """
    trained = np.asarray(batch.mask).reshape(*batch.tokens.shape, -1).max(-1, initial=0)
    wanted = np.greater(trained if batch.scored is None else trained + batch.scored, 0)
    if wanted[:, 0].any():
        raise ValueError(
            f"batch.mask: rows {np.flatnonzero(wanted[:, 0]).tolist()} train their first token, which nothing "
            f"predicts; set the mask to 0 there"
        )
    scored = np.flatnonzero(wanted)
    if plan.kind == "packed":
        return _packed_arguments(batch, scored)
    tokens, length = np.asarray(batch.tokens), np.asarray(batch.length)
    if plan.kind == "reverse_only" and state is not None:
        levels = levels_of(state, tokens, length, plan.segment)
    else:
        levels = find_levels(tokens, length, plan.segment, share=plan.share)
    return _segment_arguments(levels, batch, scored)


def fill(batches: Sequence[Batch], plan: Plan) -> float:
    """The share of real tokens among all that a plan runs through the model.

    Args:
        batches: micro-batches, with a token in each.
        plan: how they are computed on. ``"packed"`` runs every row to the padded length; the others run as many segments
            as the longest row fills, and what rows share once.

    Returns:
        A number up to 1; 1 is no padding.

    Example:
        >>> fill([batch], Plan("segments", 64))
        0.87
    """
    real, run = np.sum([_tokens_run(batch, plan) for batch in batches], axis=0)
    return float(real / run)


def _tokens_run(batch: Batch, plan: Plan) -> tuple[int, int]:
    """Tokens that a plan runs once, without padding and with it."""
    rows, size = batch.tokens.shape
    if plan.kind == "packed":
        return int(batch.length.sum()), rows * (size + _row_padding(size))
    share = plan.share and plan.kind == "segments"
    levels = find_levels(batch.tokens, batch.length, plan.segment, share=share)
    real = sum(int((level.end - level.start).sum()) for level in levels)
    return real, sum(level.padded for level in levels)


def plan_logprobs(
    adapter: Adapter | None,
    policy: Policy,
    data: "Rows | tuple[Segments, ...]",
    temperature: Float[ArrayLike, ""],
    plan: Plan,
) -> Float[Array, " P *K"]:
    """Log probabilities at the positions of :func:`plan_arguments`, to be traced and differentiated.

    Args:
        adapter: what the result is differentiated by; it takes the place of ``policy.adapter``.
        policy: the model.
        data: what to score.
        temperature: what logits are divided by.
        plan: the one that the arguments were made for, with its kernel (:func:`with_kernel`): a trace does not tell where it will
            run, so ``"auto"`` is ``"blockwise"`` here.

    Returns:
        Log probabilities in the order of the indices that came with the arguments.

    Example:
        >>> logprobs = plan_logprobs(policy.adapter, policy, data, 1.0, Plan())
    """
    kernel = _kernel(plan)
    if not isinstance(data, Rows):
        return flat(segment_logprobs(adapter, policy, data, temperature, plan.remat, kernel))
    block = block_of(data.tokens.shape[1])
    place = (data.tokens, data.positions, data.labels)
    return row_logprobs(
        adapter, policy, *place, temperature, block=block, remat=plan.remat, kernel=kernel
    )


def _kernel(plan: Plan) -> Kernel:
    """The kernel to trace with."""
    return "blockwise" if plan.attention == "auto" else plan.attention


def _loss_inputs(batch: Batch, index: np.ndarray) -> LossInputs:
    """The loss's constants at flat indices into the batch."""
    arrays = (batch.mask, batch.weights, batch.advantages, batch.logprobs)
    return LossInputs(*(_pick(index, x) for x in arrays))


def _labels(batch: Batch) -> np.ndarray:
    """What is scored at each place of a batch."""
    return batch.tokens if batch.labels is None else batch.labels


def _pick(index: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Numbers at flat indices into the first two dimensions; 0 where the index is -1."""
    x = np.asarray(x)
    real = (index >= 0).reshape(*index.shape, *(1 for _ in x.shape[2:]))
    return np.where(real, x.reshape(-1, *x.shape[2:])[index], 0).astype(x.dtype)


def _lay_back(batch: Batch, index: np.ndarray, scored: Array) -> np.ndarray:
    """Log probabilities at their places in the batch; nan elsewhere."""
    shape = _labels(batch).shape
    logprobs = np.full((shape[0] * shape[1], *shape[2:]), np.nan, scored.dtype)
    real = index >= 0
    logprobs[index[real]] = np.asarray(scored)[real]
    return logprobs.reshape(shape)


def _padded(count: int, most: int) -> int:
    """The number of positions that ``count`` are padded to; there are no more than ``most``."""
    return min(most, _POSITIONS << max(0, -(-count // _POSITIONS) - 1).bit_length())


class Rows(NamedTuple):
    """B right-padded rows, and P labels at positions of the flattened rows.

    Attributes:
        tokens: ``[B, N]``.
        positions: ``[P]``.
        labels: ``[P]`` or ``[P, K]``.
    """

    tokens: Int[Array | np.ndarray, "B N"]
    positions: Int[Array | np.ndarray, " P"]
    labels: Int[Array | np.ndarray, " P *K"]


def _packed_arguments(batch: Batch, trained: np.ndarray) -> tuple[Rows, np.ndarray]:
    """Rows padded to the attention block, and for every scored position its index in the batch (-1 on padding)."""
    size = batch.tokens.shape[1]
    padding = _row_padding(size)
    index = np.full(_padded(trained.size, batch.tokens.size), -1)
    index[: trained.size] = trained
    positions = np.where(index >= 0, index + index // size * padding, 0).astype(np.int32)
    tokens = np.pad(batch.tokens, ((0, 0), (0, padding)))
    return Rows(tokens, positions, _pick(index, _labels(batch))), index


def _row_padding(size: int) -> int:
    """What a row lacks to a multiple of the attention block."""
    return -size % block_of(size)


def _segment_arguments(
    levels: Sequence[Level], batch: Batch, trained: np.ndarray
) -> tuple[tuple[Segments, ...], np.ndarray]:
    """Levels of rows cut into segments, and for every scored position its index in the batch (-1 on padding)."""
    size = batch.tokens.shape[1]
    row, column = np.divmod(trained, size)
    found, indices = [], []
    for level in levels:
        rows, segment = level.row.size, level.segment
        # Segments without a token cost nothing, and another number of them is another program.
        steps = -(-(bucket(level.longest) if len(levels) > 1 else size) // segment)
        columns = level.start[:, None] + np.arange(steps * segment)
        tokens = np.where(
            columns < level.end[:, None],
            batch.tokens[level.row[:, None], np.minimum(columns, size - 1)],
            0,
        )
        start = level.start + np.arange(steps)[:, None] * segment
        length = np.clip(level.end - start, 0, segment).astype(np.int32)
        # A token is scored where the one before it stands.
        owner, predictor = row // level.fan, column - 1
        here = (level.start[owner] <= predictor) & (predictor < level.end[owner])
        owner, place = owner[here], (predictor - level.start[owner])[here]
        step = place // segment
        scored = np.bincount(step, minlength=steps).astype(np.int32)
        # As many as there are places: another number of labels is no other program. A place may have several.
        count = rows * segment * max(1, -(-int(scored.max()) // (rows * segment)))
        index = np.full((steps, count), -1)
        positions = np.zeros(index.shape, np.int32)
        for t in range(steps):
            now = step == t
            index[t, : now.sum()] = trained[here][now]
            positions[t, : now.sum()] = owner[now] * segment + place[now] % segment
        tokens = tokens.reshape(rows, steps, segment).swapaxes(0, 1)
        labels = _pick(index, _labels(batch))
        found.append(Segments(tokens, length, positions, labels, scored))
        indices.append(index.reshape(-1))
    return tuple(found), np.concatenate(indices)


@partial(jax.jit, static_argnames=("loss", "plan"))
def _gradients(policy: Policy, data, inputs: LossInputs, temperature, *, loss: Loss, plan: Plan):
    total = partial(_total, policy, data, inputs, temperature, loss, plan)
    (value, logprobs), grads = jax.value_and_grad(total, has_aux=True)(policy.adapter)
    return grads, value, logprobs


@partial(jax.jit, static_argnames=("loss", "plan"))
def _evaluate(policy: Policy, data, inputs: LossInputs, temperature, *, loss: Loss, plan: Plan):
    return _total(policy, data, inputs, temperature, loss, plan, policy.adapter)


def _total(policy: Policy, data, inputs: LossInputs, temperature, loss: Loss, plan: Plan, adapter):
    logprobs = plan_logprobs(adapter, policy, data, temperature, plan)
    return masked_sum(loss, logprobs, inputs), logprobs
