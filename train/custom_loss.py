"""The gradient of a loss that is any JAX function of log probabilities, over all of a batch at once."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mintjax.adapters import Adapter
from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.train.gradients import add_gradients, plan_logprobs
from mintjax.train.plan import Plan, with_kernel
from mintjax.train.plan_arguments import plan_arguments

CustomLoss = Callable[[Sequence[Float[Array, "B N *K"]]], tuple[Float[Array, ""], Any]]


class CustomGradient(NamedTuple):
    """What :func:`custom_gradients` returns.

    Attributes:
        grads: a tree like the adapter.
        loss: the loss's value.
        aux: whatever else it returned.
        logprobs: what it was given.
    """

    grads: Adapter
    loss: Float[Array, ""]
    aux: Any
    logprobs: list[Float[Array, "B N *K"]]


def custom_gradients(
    policy: Policy, batches: Sequence[Batch], loss: CustomLoss, plan: Plan
) -> CustomGradient:
    """The gradient of a loss that couples tokens, episodes or micro-batches in any way.

    Each micro-batch runs forwards once, the loss runs once on all their log probabilities, and its cotangents run
    backwards once through each: one vector-Jacobian product. What the backward pass needs of all micro-batches is held
    until then. The loss is not compiled, so it may be another function at every call.

    Args:
        policy: the model; it must have an adapter.
        batches: micro-batches; their advantages, weights and sampler's log probabilities are not read.
        loss: takes the log probabilities of each batch, nan at places that are neither trained nor scored, and returns
            a scalar and anything else.
        plan: how to compute it.

    Returns:
        The gradient, and what the loss saw and said.

    Raises:
        ValueError: if the policy has no adapter, a row's first token is trained or scored, or the plan names an
            attention kernel that cannot serve the policy.
        TypeError: if the loss is no scalar.

    Example:
        >>> custom_gradients(policy, [batch], lambda scores: (-jnp.nansum(scores[0]), None), Plan()).grads
    """
    if policy.adapter is None:
        raise ValueError(
            "policy.adapter: None has no gradient; load_policy makes a policy with an adapter"
        )
    packed = any(batch.starts is not None for batch in batches)
    plan = with_kernel(plan, policy, documents=packed)
    scores, pulls = [], []
    for batch in batches:
        data, index = plan_arguments(batch, plan)
        shape = (batch.tokens if batch.labels is None else batch.labels).shape
        # Padding goes past the end, where it is dropped.
        place = jnp.where(index < 0, batch.tokens.size, index)
        score = partial(_scores, policy, data, place, batch.temperature, plan=plan, shape=shape)
        logprobs, pull = jax.vjp(score, policy.adapter)
        scores.append(logprobs)
        pulls.append(pull)
    value, pull_loss, aux = jax.vjp(loss, scores, has_aux=True)
    if jnp.shape(value) != ():
        raise TypeError(
            f"loss: expected a scalar, got an array of shape {jnp.shape(value)}; sum it"
        )
    (cotangents,) = pull_loss(jnp.ones_like(value))
    total = None
    for pull, cotangent in zip(pulls, cotangents, strict=True):
        (grads,) = pull(cotangent)
        total = grads if total is None else add_gradients(total, grads)
    assert total is not None  # there is a batch
    return CustomGradient(total, value, aux, scores)


@partial(jax.jit, static_argnames=("plan", "shape"))
def _scores(policy: Policy, data, place, temperature, adapter: Adapter, *, plan: Plan, shape):
    logprobs = plan_logprobs(adapter, policy, data, temperature, plan)
    nothing = jnp.full((shape[0] * shape[1], *shape[2:]), jnp.nan, logprobs.dtype)
    return nothing.at[place].set(logprobs, mode="drop").reshape(shape)
