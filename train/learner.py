"""One training step on sampled episodes: advantages, micro-batches, the summed gradient, the update."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import optax

from mintjax.cache import bucket
from mintjax.policy import Policy
from mintjax.train.advantages import Advantages, advantage_metrics, group_advantages
from mintjax.train.batches import micro_batches
from mintjax.train.config import TrainConfig
from mintjax.train.config_dataset import DatasetConfig
from mintjax.train.distillation import taught
from mintjax.train.gradient_sum import GradientSum
from mintjax.train.normalisers import divide, divisors
from mintjax.train.optimizer import (
    TrainState,
    global_norm,
    make_optimizer,
    make_schedule,
    update,
)
from mintjax.train.other_policies import OtherPolicies
from mintjax.train.plan_choice import named_plan
from mintjax.train.truncation import masked, shaped
from mintjax.types import Episode


class NonFiniteError(RuntimeError):
    """A loss or gradient that is nan or infinite; the train state it came from is untouched."""


class Learned(NamedTuple):
    """What a step did.

    Attributes:
        train_state: after the step; the same object as before where nothing carried a signal.
        advantages: the episodes', normalised.
        metrics: the step's figures.
    """

    train_state: TrainState
    advantages: Advantages
    metrics: dict[str, float]


def learn(
    config: TrainConfig,
    train_state: TrainState,
    episodes: Sequence[Episode],
    teacher: Policy | None = None,
) -> Learned:
    """Makes one optimizer step from a batch of episodes, with gradients summed over micro-batches.

    Groups whose rewards are all equal have nothing to say; if all are so there is no update, which is counted in
    ``update/skipped``. The plan ``"reverse_only"`` takes its gradients as the batch is sampled:
    :class:`mintjax.train.accumulate.Accumulation`.

    Args:
        config: advantages, loss, plan and schedule.
        train_state: the policy that sampled the episodes, and its optimizer.
        episodes: one batch.
        teacher: the policy that ``config.teacher`` names, where it names one.

    Returns:
        The new train state, the advantages and the step's metrics.

    Raises:
        NonFiniteError: if the loss or the gradient is nan or infinite. Nothing is updated.

    Example:
        >>> learned = learn(config, train_state, episodes)
    """
    raw = compare(config, episodes)
    whole, own = divisors(raw, episodes, config.normaliser, max_tokens=config.rollout.max_tokens)
    by = [whole * divisor for divisor in own]
    advantages = divide(raw, by)
    plan, policy = named_plan(config.gradients), train_state.policy
    total = GradientSum(policy, config.full_loss, plan)
    others = OtherPolicies(policy, teacher, plan, config.kl, config.teacher)
    # Segments without a token cost nothing, but another number of them is another program.
    longest = max(len(episode.tokens) for episode in episodes)
    options = config.gradients
    segments = options.plan == "segments"
    group = config.rollout.group_size
    batches = micro_batches(
        episodes,
        advantages,
        rows=options.rows,
        tokens=options.tokens,
        size=bucket(longest) if segments else None,
        together=group if segments and options.rows % group == 0 else None,
        shares=[1 / divisor for divisor in by],
    )
    for batch in others.ask(batches, episodes):
        total.add(batch)
    learned = step_with(config, train_state, total, raw, advantages)
    return learned._replace(metrics=learned.metrics | others.metrics())


def compare(config: TrainConfig, episodes: Sequence[Episode]) -> Advantages:
    """The advantages that a configuration asks for, not yet normalised.

    Args:
        config: truncation, advantage and teacher.
        episodes: whole groups.

    Returns:
        The advantages; an episode that is left out because it was truncated has none.

    Raises:
        ValueError: see :func:`mintjax.train.advantages.group_advantages`.

    Example:
        >>> constant = [g for g, signal in compare(config, episodes).signal.items() if not signal]
    """
    raw = group_advantages(shaped(episodes, config.truncation), config.advantage)
    return taught(raw, config.teacher, [masked(x, config.truncation) for x in episodes])


def step_with(
    config: TrainConfig,
    train_state: TrainState,
    total: GradientSum,
    raw: Advantages,
    advantages: Advantages,
) -> Learned:
    """Makes the optimizer step of a batch whose gradient is there; none where nothing carried a signal.

    Args:
        config: the schedule.
        train_state: the policy that the gradient is of, and its optimizer.
        total: the gradient of the whole batch.
        raw: advantages of the batch, before they are normalised.
        advantages: after.

    Returns:
        The new train state, the advantages and the step's metrics.

    Raises:
        NonFiniteError: if the loss or the gradient is nan or infinite. Nothing is updated.

    Example:
        >>> learned = step_with(config, train_state, total, raw, advantages)
    """
    metrics = advantage_metrics(raw)
    if total.grads is None:
        return Learned(train_state, advantages, metrics | total.metrics() | {"update/skipped": 1.0})
    train_state, stepped = step(config, train_state, total)
    metrics |= total.metrics() | stepped | {"update/skipped": 0.0}
    return Learned(train_state, advantages, metrics)


def step(
    config: TrainConfig | DatasetConfig, train_state: TrainState, total: GradientSum
) -> tuple[TrainState, dict[str, float]]:
    """Makes the optimizer step of a gradient that is there.

    Args:
        config: the schedule.
        train_state: the policy that the gradient is of, and its optimizer.
        total: the gradient, of one micro-batch at least.

    Returns:
        The new train state, ``grad_norm`` and ``learning_rate``.

    Raises:
        NonFiniteError: if the loss or the gradient is nan or infinite. Nothing is updated.

    Example:
        >>> train_state, metrics = step(config, train_state, total)
    """
    assert total.grads is not None  # there was a micro-batch
    norm = float(global_norm(total.grads))
    if not np.isfinite([total.value, norm]).all():
        raise NonFiniteError(
            f"update {int(train_state.step) + 1}: the loss is {total.value} and the gradient's norm {norm}, expected "
            f"finite numbers; the policy was not updated. Lower optimizer.learning_rate or set optimizer.clip_norm"
        )
    rate = float(np.asarray(schedule(config)(int(train_state.step))))
    return update(train_state, total.grads), {"grad_norm": norm, "learning_rate": rate}


def schedule(config: TrainConfig | DatasetConfig) -> optax.Schedule:
    """The run's learning rate as a function of the updates made."""
    options = config.optimizer
    return make_schedule(
        options.learning_rate, options.schedule, options.warmup_steps, config.steps
    )


def optimizer(config: TrainConfig | DatasetConfig) -> optax.GradientTransformation:
    """The run's optimizer."""
    options = config.optimizer
    return make_optimizer(
        schedule(config),
        b1=options.b1,
        b2=options.b2,
        eps=options.eps,
        weight_decay=options.weight_decay,
        clip_norm=options.clip_norm,
    )
