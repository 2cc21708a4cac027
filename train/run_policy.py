"""The policy of a run: loaded as a configuration names it, saved, and had back from the newest checkpoint."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from mintjax.loading import load_policy
from mintjax.policy import Policy
from mintjax.train import checkpoints
from mintjax.train.config import CheckpointConfig, PolicyConfig
from mintjax.train.optimizer import TrainState
from mintjax.train.resume import resume
from mintjax.train.run_directory import RunDirectory


def load_run_policy(model: PolicyConfig, seed: int) -> Policy:
    """The base model of a run with a fresh adapter.

    Args:
        model: the section of the configuration.
        seed: of the run.

    Raises:
        ValueError: see :func:`mintjax.load_policy`.

    Example:
        >>> policy = load_run_policy(config.model, config.seed)
    """
    return load_policy(
        model.name,
        rank=model.rank,
        alpha=model.alpha,
        seed=seed,
        train_attn=model.train_attn,
        train_mlp=model.train_mlp,
        train_unembed=model.train_unembed,
        dtype=model.dtype,
    )


class Resumed(NamedTuple):
    """Where a run goes on.

    Attributes:
        step: the last one that is done.
        train_state: after it.
        position: tasks or examples that were consumed by then.
    """

    step: int
    train_state: TrainState
    position: int


def resume_run(
    directory: RunDirectory, train_state: TrainState, origin: dict[str, str]
) -> Resumed | None:
    """Cuts a run back to its newest whole checkpoint, and restores that.

    Args:
        directory: the run's.
        train_state: at the start of the run, for its shapes and its base weights.
        origin: what the checkpoint must be of (:func:`mintjax.train.origin.origin_of`).

    Returns:
        None where the run starts from the beginning.

    Raises:
        CheckpointError: where the checkpoint is of something else.

    Example:
        >>> resumed = resume_run(directory, init_train_state(policy, optimizer), origin)
    """
    checkpoint = resume(directory)
    if checkpoint is None:
        return None
    policy = train_state.policy
    restored = checkpoints.restore(
        checkpoint, policy.adapter, train_state.optimizer_state, origin=origin
    )
    version = jnp.asarray(np.int32(restored.state["version"]))
    policy = policy.replace(adapter=restored.adapter, version=version)
    return Resumed(
        checkpoint.step,
        train_state.replace(policy=policy, optimizer_state=restored.optimizer),
        int(restored.state["data_position"]),
    )


def save_run(
    directory: RunDirectory,
    resumed: Resumed,
    *,
    seed: int,
    metrics: dict[str, Any],
    origin: dict[str, str],
    keep: CheckpointConfig,
) -> None:
    """Saves what `resume_run` gives back.

    Args:
        directory: the run's.
        resumed: the step that was made last, and what it left.
        seed: of the run.
        metrics: the step's row, by which the best checkpoint is told.
        origin: see `resume_run`.
        keep: which checkpoints stay.

    Example:
        >>> save_run(directory, Resumed(3, train_state, 24), seed=0, metrics=row, origin=origin, keep=config.checkpoint)
    """
    step, train_state, position = resumed
    policy = train_state.policy
    state = {
        "step": step,
        "version": int(policy.version),
        "seed": seed,
        "data_position": position,
    }
    checkpoints.save(
        directory, step, policy.adapter, train_state.optimizer_state, state,
        metrics=metrics, origin=origin, keep=keep,
    )  # fmt: skip
