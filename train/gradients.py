"""The gradient of a loss over a batch of episodes: one function, and a plan that says how it is computed.

The plans agree; they differ in memory and time. ``"packed"`` runs each row whole, ``"segments"`` runs it in pieces over
a cache (``mintjax.train.segment_scan``), and ``"reverse_only"`` runs the pieces over the cache that sampling them left
(``mintjax.train.reverse_only``).
"""

from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from mintjax.adapters import Adapter
from mintjax.attention import block_of
from mintjax.cache import State
from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.train.layers import add_trees
from mintjax.train.losses import Loss, LossInputs, masked_sum
from mintjax.train.packed import row_logprobs
from mintjax.train.plan import Plan, kernel_of, with_kernel
from mintjax.train.plan_arguments import (
    Rows,
    TokensRun,
    labels_of,
    pick,
    plan_arguments,
    row_numbers,
    tokens_run,
)
from mintjax.train.reverse_only import check_state, reverse_gradients
from mintjax.train.segment_scan import flat, segment_logprobs
from mintjax.train.segments import Segments


class GradientMetrics(NamedTuple):
    """What a gradient tells besides itself.

    Attributes:
        loss: the sum of the loss's terms.
        logprobs: float ``[B, N]``, or ``[B, N, K]`` as the batch's labels, this policy's log probabilities of what the
            batch trains or scores; nan elsewhere.
        tokens: how many the plan ran, with padding and without.
    """

    loss: Float[Array, ""]
    logprobs: np.ndarray
    tokens: TokensRun


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
        A tree like ``policy.adapter``, and metrics. Compiled once for each shape of the plan's arguments
        (:func:`mintjax.train.plan_arguments.plan_arguments`), which are padded to few sizes.

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
    plan = with_kernel(plan, policy, documents=batch.starts is not None)
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
            kernel=kernel_of(plan),
        )
    else:
        grads, value, scored = _gradients(
            policy, data, inputs, batch.temperature, loss=loss, plan=plan
        )
    return grads, GradientMetrics(value, _lay_back(batch, index, scored), tokens_run(batch, data))


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
    plan = with_kernel(plan, policy, documents=batch.starts is not None)
    data, index = plan_arguments(batch, plan)
    inputs = _loss_inputs(batch, index)
    value, scored = _evaluate(policy, data, inputs, batch.temperature, loss=loss, plan=plan)
    return GradientMetrics(value, _lay_back(batch, index, scored), tokens_run(batch, data))


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
    plan = with_kernel(plan, policy, documents=batch.starts is not None)
    data, index = plan_arguments(batch, plan, state)
    inputs = _loss_inputs(batch, index)
    if plan.kind == "reverse_only":
        options = {"remat": plan.remat, "kernel": kernel_of(plan)}
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
        plan: the one that the arguments were made for, with its kernel (:func:`mintjax.train.plan.with_kernel`): a
            trace does not tell where it will run, so ``"auto"`` is ``"blockwise"`` here.

    Returns:
        Log probabilities in the order of the indices that came with the arguments.

    Example:
        >>> logprobs = plan_logprobs(policy.adapter, policy, data, 1.0, Plan())
    """
    kernel = kernel_of(plan)
    if not isinstance(data, Rows):
        return flat(segment_logprobs(adapter, policy, data, temperature, plan.remat, kernel))
    block = block_of(data.tokens.shape[1])
    place = (data.tokens, data.positions, data.labels)
    options = {"block": block, "remat": plan.remat, "kernel": kernel}
    return row_logprobs(adapter, policy, *place, temperature, starts=data.starts, **options)


def _loss_inputs(batch: Batch, index: np.ndarray) -> LossInputs:
    """The loss's constants at flat indices into the batch."""
    shape = np.shape(batch.mask)
    row = row_numbers(batch).reshape(*batch.tokens.shape, *[1] * (len(shape) - 2))

    def picked(x: np.ndarray | None) -> np.ndarray | None:
        return None if x is None else pick(index, x)

    always = (batch.mask, batch.weights, batch.advantages, batch.logprobs)
    return LossInputs(
        *(pick(index, x) for x in always),
        shares=picked(batch.shares),
        reference=picked(batch.reference),
        row=pick(index, np.broadcast_to(row, shape)),
    )


def _lay_back(batch: Batch, index: np.ndarray, scored: Array) -> np.ndarray:
    """Log probabilities at their places in the batch; nan elsewhere."""
    shape = labels_of(batch).shape
    logprobs = np.full((shape[0] * shape[1], *shape[2:]), np.nan, scored.dtype)
    real = index >= 0
    logprobs[index[real]] = np.asarray(scored)[real]
    return logprobs.reshape(shape)


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
