"""One training step on sampled episodes: advantages, micro-batches, the summed gradient, the update."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import optax

from mintjax.cache import bucket
from mintjax.policy import Policy
from mintjax.train.advantages import (
    Advantages,
    advantage_metrics,
    divide,
    divisors,
    group_advantages,
)
from mintjax.train.batches import micro_batches
from mintjax.train.config import (
    CrossEntropyConfig,
    ImportanceSamplingConfig,
    LossConfig,
    PpoConfig,
    TrainConfig,
)
from mintjax.train.config_dataset import DatasetConfig
from mintjax.train.distillation import taught
from mintjax.train.gradient_sum import GradientSum
from mintjax.train.kl import loss_with_kl
from mintjax.train.losses import CrossEntropy, ImportanceSampling, Loss, Ppo
from mintjax.train.optimizer import (
    TrainState,
    global_norm,
    make_optimizer,
    make_schedule,
    update,
)
from mintjax.train.other_policies import OtherPolicies
from mintjax.train.plan_choice import named_plan
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
    raw = taught(group_advantages(episodes, config.advantage), config.teacher)
    whole, own = divisors(raw, episodes, config.normaliser, max_tokens=config.rollout.max_tokens)
    by = [whole * divisor for divisor in own]
    advantages = divide(raw, by)
    plan, policy = named_plan(config.gradients), train_state.policy
    total = GradientSum(policy, run_loss(config), plan)
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
        shares=[1 / divisor for divisor in by] if compares(config) else None,
    )
    for batch in others.compare(batches, episodes):
        total.add(batch)
    learned = step_with(config, train_state, total, raw, advantages)
    return learned._replace(metrics=learned.metrics | others.metrics())


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


def make_loss(config: LossConfig) -> Loss:
    """The loss that a configuration describes.

    Raises:
        TypeError: for a kind that is registered but has no loss here.

    Example:
        >>> make_loss(PpoConfig(clip_high_threshold=1.28))
        Ppo(clip_low_threshold=0.8, clip_high_threshold=1.28)
    """
    match config:
        case PpoConfig():
            return Ppo(config.clip_low_threshold, config.clip_high_threshold)
        case ImportanceSamplingConfig():
            return ImportanceSampling()
        case CrossEntropyConfig():
            return CrossEntropy()
    raise TypeError(f"loss: expected a kind that has a loss, got {type(config).__name__}")


def run_loss(config: TrainConfig) -> Loss:
    """The loss of a run: the one that it names, with the KL term where that stands in the loss.

    Example:
        >>> run_loss(config)
        Ppo(clip_low_threshold=0.8, clip_high_threshold=1.2)
    """
    return loss_with_kl(make_loss(config.loss), config.kl)


def compares(config: TrainConfig) -> bool:
    """Whether a run compares its policy with another one, so that its batches need shares."""
    return config.kl.on or config.teacher.on


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
