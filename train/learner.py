"""One training step on sampled episodes: advantages, micro-batches, the summed gradient, the update."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import optax

from mintjax.cache import State, take_rows
from mintjax.train.advantages import Advantages, advantage_metrics, group_advantages, normalise
from mintjax.train.batches import Batch, micro_batches
from mintjax.train.config import (
    CrossEntropyConfig,
    ImportanceSamplingConfig,
    LossConfig,
    PpoConfig,
    TrainConfig,
)
from mintjax.train.gradients import add_gradients, gradients
from mintjax.train.losses import CrossEntropy, ImportanceSampling, Loss, Ppo
from mintjax.train.optimizer import (
    TrainState,
    global_norm,
    make_optimizer,
    make_schedule,
    update,
)
from mintjax.train.plan_choice import named_plan
from mintjax.train.policy_metrics import policy_metrics
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
    state: State | None = None,
) -> Learned:
    """Makes one optimizer step from a batch of episodes, with gradients summed over micro-batches.

    Groups whose rewards are all equal have nothing to say; if all are so there is no update, which is counted in
    ``update/skipped``.

    Args:
        config: advantages, loss, plan and schedule.
        train_state: the policy that sampled the episodes, and its optimizer.
        episodes: one batch.
        state: the cache that sampling them left, a row each; for the plan ``"reverse_only"``.

    Returns:
        The new train state, the advantages and the step's metrics.

    Raises:
        NonFiniteError: if the loss or the gradient is nan or infinite. Nothing is updated.

    Example:
        >>> learned = learn(config, train_state, episodes)
    """
    raw = group_advantages(episodes, config.advantage)
    advantages = normalise(raw, episodes, config.normaliser, max_tokens=config.rollout.max_tokens)
    metrics = advantage_metrics(raw)
    batches = micro_batches(episodes, advantages, rows=config.gradients.rows)
    if not batches:
        return Learned(train_state, advantages, metrics | {"update/skipped": 1.0})
    loss = make_loss(config.loss)
    plan = named_plan(config.gradients)
    total, value, logprobs = None, 0.0, []
    for batch in batches:
        grads, found = gradients(train_state.policy, batch, loss, plan, _rows_of(state, batch))
        total = grads if total is None else add_gradients(total, grads)
        value += float(found.loss)
        logprobs.append(found.logprobs)
    assert total is not None  # there is a batch
    norm = float(global_norm(total))
    if not np.isfinite([value, norm]).all():
        raise NonFiniteError(
            f"update {int(train_state.step) + 1}: the loss is {value} and the gradient's norm {norm}, expected finite "
            f"numbers; the policy was not updated. Lower optimizer.learning_rate or set optimizer.clip_norm"
        )
    rate = np.asarray(schedule(config)(int(train_state.step)))
    metrics |= policy_metrics(batches, logprobs, loss)
    metrics |= {
        "loss": value,
        "grad_norm": norm,
        "learning_rate": float(rate),
        "update/skipped": 0.0,
    }
    return Learned(update(train_state, total), advantages, metrics)


def _rows_of(state: State | None, batch: Batch) -> State | None:
    """The cache of a micro-batch's episodes; a row that fills it up has no token, so any cache will do."""
    if state is None or batch.episodes is None:
        return None
    return take_rows(state, np.maximum(batch.episodes, 0))


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


def schedule(config: TrainConfig) -> optax.Schedule:
    """The run's learning rate as a function of the updates made."""
    options = config.optimizer
    return make_schedule(
        options.learning_rate, options.schedule, options.warmup_steps, config.steps
    )


def optimizer(config: TrainConfig) -> optax.GradientTransformation:
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
