"""Checkpoints: what a run needs to go on, and nothing that it can load again.

One orbax save a step holds three trees: ``adapter``, ``optimizer`` and ``state`` (the step, the
seed and whatever else the loop counts by). The base weights are not in it: its metadata names them,
with the renderer and the tokenizer, by hash. A save is written aside, synced and renamed; only then
does its row enter the index, with a digest of every byte. So a directory without a row, or one
whose bytes do not match it, is no checkpoint, and is never loaded.
"""

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mintjax.train.config import CheckpointConfig
from mintjax.train.durable import read_rows, write_rows
from mintjax.train.run_directory import RunDirectory
from mintjax.train.saved_trees import CheckpointError, directory_digest, load_trees, save_trees

PyTree = Any


class CheckpointWarning(UserWarning):
    """A checkpoint of the index is damaged, so an older one is used."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: its optimizer step and its directory."""

    step: int
    path: Path


class Restored(NamedTuple):
    """What a checkpoint held, in the trees that were asked for."""

    adapter: PyTree
    optimizer: PyTree
    state: dict[str, Any]


def save(
    run: RunDirectory,
    step: int,
    adapter: PyTree,
    optimizer: PyTree,
    state: Mapping[str, Any],
    *,
    metrics: Mapping[str, Any],
    origin: Mapping[str, str],
    keep: CheckpointConfig,
) -> Checkpoint:
    """Write a checkpoint, enter it in the index, and delete those that are no longer kept.

    Args:
        run: the run's directory.
        step: optimizer steps taken.
        adapter: the trained arrays.
        optimizer: the optimizer's state.
        state: numbers, texts and numpy arrays by name, such as the seed and the data position.
        metrics: the step's row; ``reward`` decides which checkpoint is the best. It is what the
            policy *before* this step's update earned.
        origin: what the checkpoint is worthless without, as texts to compare: base model, renderer,
            tokenizer hash.
        keep: how many are kept.

    Returns:
        The checkpoint, on the disk and in the index.

    Example:
        >>> save(run, 10, policy.adapter, opt_state, {"seed": 0}, metrics=row,
        ...      origin={"renderer": "smollm2"}, keep=config.checkpoint)
    """
    path = run.checkpoint(step)
    trees = {"adapter": adapter, "optimizer": optimizer}
    digest = save_trees(path, trees, origin=origin, state=state)
    row = {
        "step": step,
        "path": str(path.relative_to(run.path)),
        "sha256": digest,
        "reward": metrics.get("reward"),
    }
    rows = [old for old in read_rows(run.index) if old["step"] < step] + [row]
    kept = _kept(rows, keep)
    write_rows(run.index, kept)
    discard_unlisted(run)
    return Checkpoint(step, path)


def latest(run: RunDirectory) -> Checkpoint | None:
    """Return the newest checkpoint that is whole.

    Args:
        run: the run's directory.

    Returns:
        The checkpoint, or None where none was ever written.

    Raises:
        CheckpointError: if the index has rows, and none of them is whole.

    Warns:
        CheckpointWarning: if a newer one is in the index but missing or damaged.

    Example:
        >>> latest(run).step
        10
    """
    rows = read_rows(run.index)
    for row in reversed(rows):
        path = run.path / row["path"]
        if path.is_dir() and directory_digest(path) == row["sha256"]:
            return Checkpoint(row["step"], path)
        problem = "its files are not those that were written" if path.is_dir() else "it is missing"
        warnings.warn(
            f"{path}: {problem}; looking for an older one", CheckpointWarning, stacklevel=2
        )
    if rows:
        raise CheckpointError(
            f"{run.index}: none of its {len(rows)} checkpoints is whole; put their files back, or "
            "start anew with --overwrite"
        )
    return None


def restore(
    checkpoint: Checkpoint, adapter: PyTree, optimizer: PyTree, *, origin: Mapping[str, str]
) -> Restored:
    """Load a checkpoint, bit for bit, onto the devices where arrays like it lie.

    Args:
        checkpoint: a whole one, see ``latest``.
        adapter: a tree of arrays, or of shapes with shardings, of the form to load.
        optimizer: the same for the optimizer's state.
        origin: what ``save`` was given; every text must be equal.

    Returns:
        The loaded trees and state.

    Raises:
        CheckpointError: if base model, renderer or tokenizer differ, or an array's path, shape or
            dtype.

    Example:
        >>> restored = restore(latest(run), policy.adapter, tx.init(policy.adapter), origin=origin)
    """
    trees = {"adapter": adapter, "optimizer": optimizer}
    return Restored(**load_trees(checkpoint.path, trees, origin=origin))


def discard_unlisted(run: RunDirectory, after: int | None = None) -> None:
    """Delete every checkpoint directory that has no row in the index.

    Args:
        run: the run's directory.
        after: if given, first take the rows of later steps out of the index.

    Example:
        >>> discard_unlisted(run, after=10)
    """
    rows = read_rows(run.index)
    if after is not None:
        rows = [row for row in rows if row["step"] <= after]
        write_rows(run.index, rows)
    listed = {run.path / row["path"] for row in rows}
    for entry in run.checkpoint(0).parent.iterdir():
        if entry not in listed:
            shutil.rmtree(entry)


def _kept(rows: list[dict[str, Any]], keep: CheckpointConfig) -> list[dict[str, Any]]:
    """Return the rows of the last few checkpoints, and of the best: at equal reward, the newest."""
    kept = rows[-keep.keep_last :]
    scored = [row for row in rows if row["reward"] is not None]
    if keep.keep_best and scored:
        best = max(scored, key=lambda row: (row["reward"], row["step"]))
        kept = kept if best in kept else [best, *kept]
    return kept
