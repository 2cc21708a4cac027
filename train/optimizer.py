"""The optimizer step: AdamW on the adapter, as one jitted function of a train state."""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Float, Int32

from mintjax.adapters import Adapter
from mintjax.policy import Policy


class TrainState(struct.PyTreeNode):
    """A policy in training.

    Attributes:
        policy: its adapter is what is trained; its version is the number of updates made.
        optimizer_state: optax's.
        optimizer: the gradient transformation. Static.
    """

    policy: Policy
    optimizer_state: optax.OptState
    optimizer: optax.GradientTransformation = struct.field(pytree_node=False)

    @property
    def step(self) -> Int32[Array, ""]:
        """Updates made so far."""
        return self.policy.version


def make_schedule(
    learning_rate: float,
    kind: Literal["constant", "cosine", "linear"],
    warmup_steps: int,
    steps: int,
) -> optax.Schedule:
    """The learning rate at each update: a linear rise over ``warmup_steps``, then constant or falling to 0 at ``steps``.

    Args:
        learning_rate: peak.
        kind: what it does after the rise.
        warmup_steps: updates that the rise takes; the first update has a rate above 0 all the same.
        steps: updates in all.

    Returns:
        A function of the number of updates made.

    Example:
        >>> float(make_schedule(1.0, "linear", 0, 4)(2))
        0.5
    """
    rest = max(1, steps - warmup_steps)
    after = {
        "constant": optax.constant_schedule(learning_rate),
        "cosine": optax.cosine_decay_schedule(learning_rate, rest),
        "linear": optax.linear_schedule(learning_rate, 0.0, rest),
    }[kind]
    if warmup_steps == 0:
        return after
    rise = optax.linear_schedule(
        learning_rate / warmup_steps, learning_rate, max(1, warmup_steps - 1)
    )
    return optax.join_schedules([rise, after], [warmup_steps])


def make_optimizer(
    learning_rate: float | optax.Schedule,
    *,
    b1: float = 0.9,
    b2: float = 0.95,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    clip_norm: float | None = 1.0,
) -> optax.GradientTransformation:
    """AdamW with decoupled weight decay (arXiv:1711.05101), behind clipping by the global norm.

    Args:
        learning_rate: a number, or a schedule over updates.
        b1: decay of the gradient's mean.
        b2: decay of the mean of its square.
        eps: added to the root of the mean square.
        weight_decay: times the learning rate, taken from the adapter itself.
        clip_norm: a gradient of a larger global norm is scaled down to it; None is off.

    Returns:
        An optax transformation.

    Example:
        >>> optimizer = make_optimizer(3e-4, clip_norm=None)
    """
    adamw = optax.adamw(learning_rate, b1, b2, eps, weight_decay=weight_decay)
    return adamw if clip_norm is None else optax.chain(optax.clip_by_global_norm(clip_norm), adamw)


class AdamSettings(NamedTuple):
    """What :func:`make_optimizer` takes, as numbers that may change at every step without a compilation.

    Attributes:
        learning_rate: of the step.
        b1: decay of the gradient's mean.
        b2: decay of the mean of its square.
        eps: added to the root of the mean square.
        weight_decay: times the learning rate, taken from the adapter itself.
        clip_norm: a gradient of a larger global norm is scaled down to it; infinity is off.
    """

    learning_rate: float
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = float("inf")


# One value for the whole process: a train state's optimizer is static, so all of them share their compiled update.
_ADJUSTABLE = optax.inject_hyperparams(make_optimizer)(**AdamSettings(0.0)._asdict())


def init_adjustable(policy: Policy) -> TrainState:
    """A train state before its first :func:`adjusted_update`.

    Raises:
        ValueError: if the policy has no adapter.

    Example:
        >>> train_state = init_adjustable(policy)
    """
    return init_train_state(policy, _ADJUSTABLE)


def adjusted_update(train_state: TrainState, grads: Adapter, settings: AdamSettings) -> TrainState:
    """One optimizer step with settings of its own.

    Args:
        train_state: one that :func:`init_adjustable` made.
        grads: a tree like the adapter, of the sum that is to be minimised.
        settings: this step's.

    Returns:
        What :func:`update` returns with ``make_optimizer(**settings)``, but for rounding: there the settings are
        constants of the compiled program.

    Example:
        >>> train_state = adjusted_update(train_state, grads, AdamSettings(learning_rate=1e-4))
    """
    state: Any = train_state.optimizer_state
    values = {
        name: np.asarray(value, state.hyperparams[name].dtype)
        for name, value in settings._asdict().items()
    }
    return update(train_state.replace(optimizer_state=state._replace(hyperparams=values)), grads)


@jax.jit
def global_norm(grads: Adapter) -> Float[Array, ""]:
    """The norm of a whole tree, as if it were one vector.

    Example:
        >>> float(global_norm({"a": jnp.array([3.0, 4.0])}))
        5.0
    """
    return optax.tree.norm(grads)


def init_train_state(policy: Policy, optimizer: optax.GradientTransformation) -> TrainState:
    """A train state before its first update.

    Raises:
        ValueError: if the policy has no adapter.

    Example:
        >>> train_state = init_train_state(policy, make_optimizer(3e-4))
    """
    if policy.adapter is None:
        raise ValueError(
            "policy.adapter: None cannot be trained; load_policy makes a policy with an adapter"
        )
    return TrainState(policy, jax.jit(optimizer.init)(policy.adapter), optimizer)


def update(train_state: TrainState, grads: Adapter) -> TrainState:
    """One optimizer step; the base weights are the same arrays before and after.

    Args:
        train_state: before the step.
        grads: a tree like the adapter, of the sum that is to be minimised.

    Returns:
        The train state with the stepped adapter, and a policy version one higher.

    Example:
        >>> grads, _ = gradients(train_state.policy, batch, Ppo())
        >>> train_state = update(train_state, grads)
    """
    policy = train_state.policy
    assert policy.adapter is not None  # init_train_state refuses a policy without one
    adapter, version, optimizer_state = _step(
        policy.adapter, policy.version, train_state.optimizer_state, grads, train_state.optimizer
    )
    return train_state.replace(
        policy=policy.replace(adapter=adapter, version=version), optimizer_state=optimizer_state
    )


# Without the base weights: what passes through a compiled function is copied.
@partial(jax.jit, static_argnames="optimizer")
def _step(adapter, version, optimizer_state, grads, optimizer: optax.GradientTransformation):
    changes, optimizer_state = optimizer.update(grads, optimizer_state, adapter)
    return optax.apply_updates(adapter, changes), version + jnp.int32(1), optimizer_state
