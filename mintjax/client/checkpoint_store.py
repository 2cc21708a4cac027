"""Checkpoints of training clients on the disk.

    <home>/<run id>/weights/<name>/             with the optimizer's state
    <home>/<run id>/sampler_weights/<name>/     the adapter alone
        checkpoint.json                         what it is, and the digest of its trees
        trees/                                  written by mintjax.train.saved_trees

A checkpoint is written to `<name>.partial` and renamed, so one that is there is whole.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mintjax.adapters import LoraConfig
from mintjax.client.errors import RequestFailedError
from mintjax.train.durable import sync_directory, write_atomic
from mintjax.train.saved_trees import directory_digest, load_trees, save_trees
from mintjax.types import Checkpoint, ParsedCheckpointTinkerPath

_RECORD, _TREES = "checkpoint.json", "trees"


@dataclass(frozen=True)
class Owner:
    """Whose checkpoint it is: the run, the base model under its adapter, and the adapter's form."""

    run_id: str
    base_model: str
    lora: LoraConfig
    user_metadata: dict[str, str] | None = None


@dataclass(frozen=True)
class Record:
    """A checkpoint with its owner and the digest of its trees."""

    checkpoint: Checkpoint
    owner: Owner
    sha256: str


class CheckpointStore:
    """All checkpoints below one directory.

    Example:
        >>> store = CheckpointStore(Path("~/.mintjax").expanduser())
        >>> [record.checkpoint.tinker_path for record in store.records()]
        []
    """

    def __init__(self, home: Path) -> None:
        """Take a directory; it is made when something is saved."""
        self.home = home

    def save(
        self,
        path: ParsedCheckpointTinkerPath,
        owner: Owner,
        trees: Mapping[str, Any],
        *,
        step: int,
        overwrite: bool = False,
        ttl_seconds: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> None:
        """Writes a checkpoint.

        Args:
            path: where.
            owner: whose it is.
            trees: arrays by name; ``"adapter"``, and ``"optimizer"`` for a training checkpoint.
            step: optimizer steps taken.
            overwrite: whether to replace one of the same path.
            ttl_seconds: after how long it is deleted; None is never.
            user_metadata: texts to keep with it.

        Raises:
            RequestFailedError: where there is one of the same path, or the time to live is not positive.
        """
        folder = self._folder(path)
        if self._exists(path) and not overwrite:
            raise RequestFailedError(
                f"name: {path.tinker_path} exists; save with overwrite=True, or under another name"
            )
        now = datetime.now(UTC)
        expires = _expiry(now, ttl_seconds)
        aside = folder.with_name(folder.name + ".partial")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        digest = save_trees(
            aside / _TREES, trees, origin={"base_model": owner.base_model}, state={"step": step}
        )
        size = sum(file.stat().st_size for file in aside.rglob("*") if file.is_file())
        checkpoint = Checkpoint(
            checkpoint_id=path.checkpoint_id,
            checkpoint_type=path.checkpoint_type,
            time=now,
            tinker_path=path.tinker_path,
            size_bytes=size,
            user_metadata=user_metadata,
            expires_at=expires,
        )
        _write(aside, Record(checkpoint, owner, digest))
        if folder.exists():
            old = folder.with_name(folder.name + ".old.partial")
            shutil.rmtree(old, ignore_errors=True)
            os.rename(folder, old)
            os.rename(aside, folder)
            shutil.rmtree(old)
        else:
            os.rename(aside, folder)
        sync_directory(folder.parent)

    def record(self, path: ParsedCheckpointTinkerPath) -> Record:
        """What a checkpoint is.

        Raises:
            RequestFailedError: where it is not there; its run's checkpoints are named.
        """
        if not self._exists(path):
            near = [
                record.checkpoint.tinker_path
                for record in self.records()
                if record.owner.run_id == path.training_run_id
            ]
            there = (
                f"that run has {', '.join(near)}" if near else "no checkpoint of that run is there"
            )
            raise RequestFailedError(
                f"path: {path.tinker_path} is not in {self.home}; {there}. Set MINTJAX_HOME or ServiceClient(home=...) "
                f"to where it was saved"
            )
        return _read(self._folder(path))

    def load(
        self, path: ParsedCheckpointTinkerPath, trees: Mapping[str, Any], owner: Owner
    ) -> dict[str, Any]:
        """Loads a checkpoint's trees, bit for bit.

        Args:
            path: which.
            trees: arrays of the form to load, by name.
            owner: what they are loaded into.

        Returns:
            The trees by name, and ``"state"`` with the ``step``.

        Raises:
            RequestFailedError: where it is missing, damaged, without an optimizer's state that is asked for, or of
                another base model or form of adapter.
        """
        record = self.record(path)
        saved = record.owner
        if saved.base_model != owner.base_model:
            raise RequestFailedError(
                f"path: {path.tinker_path} is an adapter of {saved.base_model!r}, and this client trains "
                f"{owner.base_model!r}; create a client with create_training_client_from_state(path)"
            )
        if saved.lora != owner.lora:
            names = [
                f"{name} {there} there and {here} here"
                for (name, there), here in zip(
                    asdict(saved.lora).items(), asdict(owner.lora).values(), strict=True
                )
                if there != here
            ]
            raise RequestFailedError(
                f"path: {path.tinker_path} is an adapter of another form: {', '.join(names)}; create a client with "
                f"create_training_client_from_state(path)"
            )
        if "optimizer" in trees and record.checkpoint.checkpoint_type != "training":
            raise RequestFailedError(
                f"path: {path.tinker_path} was saved for sampling and has no optimizer state; load it with load_state, "
                f"or save with save_state"
            )
        folder = self._folder(path) / _TREES
        if not folder.is_dir() or directory_digest(folder) != record.sha256:
            raise RequestFailedError(
                f"path: {path.tinker_path} is damaged: the files in {folder} are not those that were written; put them "
                f"back, or load another checkpoint"
            )
        return load_trees(folder, trees, origin={"base_model": owner.base_model})

    def records(self) -> list[Record]:
        """All checkpoints, the newest first. Those whose time is up are deleted here."""
        found = [
            _read(file.parent)
            for kind in ("weights", "sampler_weights")
            for file in self.home.glob(f"*/{kind}/*/{_RECORD}")
            if not file.parent.name.endswith(".partial")
        ]
        alive = []
        for record in found:
            if _is_over(record):
                self.delete(
                    ParsedCheckpointTinkerPath.from_tinker_path(record.checkpoint.tinker_path)
                )
            else:
                alive.append(record)
        return sorted(alive, key=lambda record: record.checkpoint.time, reverse=True)

    def delete(self, path: ParsedCheckpointTinkerPath) -> None:
        """Deletes a checkpoint, and its run's directory with the last one.

        Raises:
            RequestFailedError: where it is not there.
        """
        folder = self._folder(path)
        if not folder.is_dir():
            self.record(path)
        gone = folder.with_name(folder.name + ".old.partial")
        os.rename(folder, gone)
        shutil.rmtree(gone)
        for parent in (folder.parent, folder.parent.parent):
            if not any(parent.iterdir()):
                parent.rmdir()

    def set_ttl(self, path: ParsedCheckpointTinkerPath, ttl_seconds: int | None) -> None:
        """Sets after how long from now a checkpoint is deleted; None is never.

        Raises:
            RequestFailedError: where it is not there, or the time is not positive.
        """
        record = self.record(path)
        expires = _expiry(datetime.now(UTC), ttl_seconds)
        _write(
            self._folder(path),
            replace(record, checkpoint=replace(record.checkpoint, expires_at=expires)),
        )

    def _folder(self, path: ParsedCheckpointTinkerPath) -> Path:
        return self.home / path.training_run_id / path.checkpoint_id

    def _exists(self, path: ParsedCheckpointTinkerPath) -> bool:
        """Whether a checkpoint is there; one whose time is up is deleted."""
        folder = self._folder(path)
        if not (folder / _RECORD).exists():
            return False
        if _is_over(_read(folder)):
            self.delete(path)
            return False
        return True


def _is_over(record: Record) -> bool:
    expires = record.checkpoint.expires_at
    return expires is not None and expires <= datetime.now(UTC)


def _expiry(now: datetime, ttl_seconds: int | None) -> datetime | None:
    if ttl_seconds is None:
        return None
    if ttl_seconds <= 0:
        raise RequestFailedError(
            f"ttl_seconds: expected above 0, or None to keep the checkpoint, got {ttl_seconds}"
        )
    return now + timedelta(seconds=ttl_seconds)


def _write(folder: Path, record: Record) -> None:
    row = {"sha256": record.sha256, **asdict(record.owner), **asdict(record.checkpoint)}
    row["run_metadata"] = record.owner.user_metadata
    for name in ("time", "expires_at"):
        row[name] = row[name] and row[name].isoformat()
    write_atomic(folder / _RECORD, json.dumps(row, indent=2) + "\n")


def _read(folder: Path) -> Record:
    row = json.loads((folder / _RECORD).read_text())
    owner = Owner(
        row.pop("run_id"),
        row.pop("base_model"),
        LoraConfig(**row.pop("lora")),
        row.pop("run_metadata"),
    )
    digest = row.pop("sha256")
    for name in ("time", "expires_at"):
        row[name] = row[name] and datetime.fromisoformat(row[name])
    return Record(Checkpoint(**row), owner, digest)
