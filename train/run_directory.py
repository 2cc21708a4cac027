"""The directory of one run: its files, and the rules for entering it.

    <root>/<name>/
        config.yaml             the resolved configuration; reloadable
        plan.json               the gradient plan, where gradients.plan leaves the choice to the run
        invocation.json         one entry a start: arguments, versions, git commit, seed, devices
        code.diff               uncommitted changes, where the run was started in a git work tree
        metrics.jsonl           one row a step
        checkpoints.jsonl       the index of whole checkpoints
        checkpoints/step_000100/
        rollouts/, eval/        step_000100.jsonl, one episode a row
        transcripts/            step_000100.html, the same to read
        plots/, run.log

A directory holds one run for ever: the same configuration goes on with it, another one is refused,
and only ``overwrite`` discards it. One process at a time may be in it.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mintjax.train.config import TrainConfig
from mintjax.train.config_dataset import DatasetConfig
from mintjax.train.config_files import read_yaml, to_dict, to_yaml
from mintjax.train.durable import write_atomic

_LOCK = ".lock"
# Where a run lies is not what it is: moved, or under another name, it still goes on.
_PLACE = ("name", "root")


class RunDirectoryError(RuntimeError):
    """A run directory that this run must not enter; the message says why and what to do."""


@dataclass(frozen=True)
class RunDirectory:
    """The paths of a run's files; steps are numbered by the optimizer steps taken."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def plan(self) -> Path:
        """The gradient plan that was chosen, and why."""
        return self.path / "plan.json"

    @property
    def metrics(self) -> Path:
        """One row a step."""
        return self.path / "metrics.jsonl"

    @property
    def index(self) -> Path:
        """One row a whole checkpoint."""
        return self.path / "checkpoints.jsonl"

    @property
    def log(self) -> Path:
        """What was printed, with the time of each line."""
        return self.path / "run.log"

    def checkpoint(self, step: int) -> Path:
        """Return the directory of a step's checkpoint."""
        return self.path / "checkpoints" / step_name(step)

    def rollouts(self, step: int) -> Path:
        """Return the file of the episodes that a step was trained on."""
        return self.path / "rollouts" / f"{step_name(step)}.jsonl"

    def evaluation(self, step: int) -> Path:
        """Return the file of the episodes of the evaluation after a step."""
        return self.path / "eval" / f"{step_name(step)}.jsonl"

    def transcript(self, step: int) -> Path:
        """Return the readable page of a step's episodes."""
        return self.path / "transcripts" / f"{step_name(step)}.html"

    def plot(self, name: str) -> Path:
        """Return the file of a plot; ``name`` has its suffix."""
        return self.path / "plots" / name


def step_name(step: int) -> str:
    """Return the name that files and directories of a step have.

    Args:
        step: optimizer steps taken.

    Example:
        >>> step_name(100)
        'step_000100'
    """
    return f"step_{step:06d}"


@contextmanager
def open_run(
    config: TrainConfig | DatasetConfig, *, overwrite: bool = False
) -> Iterator[RunDirectory]:
    """Enter the directory of a run, alone, until the block ends.

    Args:
        config: the run; its directory is made where there is none.
        overwrite: discard what an earlier run left there.

    Yields:
        The directory. It holds ``config.yaml``, and all that an interrupted run of the same
        configuration wrote: ``mintjax.train.resume`` takes it from there.

    Raises:
        RunDirectoryError: if another process is in it, if it holds a run of another configuration
            (the message names the fields that differ), or if it holds something that is no run.

    Example:
        >>> with open_run(config) as run:
        ...     checkpoint = resume(run)
    """
    run = RunDirectory(Path(config.root) / config.name)
    run.path.mkdir(parents=True, exist_ok=True)
    with _alone(run.path):
        held = [entry for entry in run.path.iterdir() if not entry.name.startswith(_LOCK)]
        # config.yaml is the first file a run writes, aside and then renamed.
        if run.config.exists() and not overwrite:
            _refuse_other(run, config)
        elif not run.config.exists() and [e for e in held if e.name != "config.yaml.partial"]:
            raise RunDirectoryError(
                f"{run.path}: expected an empty directory or a run, got files without a "
                "config.yaml; choose another name or root, or empty it yourself"
            )
        else:
            # config.yaml goes last: until then a kill leaves a run, not files of unknown origin.
            for entry in sorted(held, key=lambda entry: entry == run.config):
                shutil.rmtree(
                    entry
                ) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            write_atomic(run.config, to_yaml(config))
        for folder in ("checkpoints", "rollouts", "eval", "transcripts", "plots"):
            (run.path / folder).mkdir(exist_ok=True)
        yield run


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Compare two raw configurations.

    Args:
        old: nested mappings, as ``read_yaml`` and ``to_dict`` give them.
        new: the same.

    Returns:
        For each dotted field that differs, what either holds; None where a field is missing.

    Example:
        >>> differences({"loss": {"type": "ppo"}}, {"loss": {"type": "cross_entropy"}})
        {'loss.type': ('ppo', 'cross_entropy')}
    """
    a, b = dict(_flat(old)), dict(_flat(new))
    return {k: (a.get(k), b.get(k)) for k in sorted({*a, *b}) if a.get(k) != b.get(k)}


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the directory's lock; the kernel lets go of it however the process ends."""
    with (path / _LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise RunDirectoryError(
                f"{path}: in use by process {lock.read().strip() or 'unknown'}; "
                "wait for it, or choose another name"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _refuse_other(run: RunDirectory, config: TrainConfig | DatasetConfig) -> None:
    """Raise unless the run in a directory has the same configuration."""
    found = differences(read_yaml(run.config), to_dict(config))
    changed = {field: pair for field, pair in found.items() if field not in _PLACE}
    if changed:
        lines = [f"  {field}: {old!r} there, {new!r} now" for field, (old, new) in changed.items()]
        raise RunDirectoryError(
            f"{run.path}: holds a run of another configuration\n" + "\n".join(lines) + "\n"
            "make the fields equal to go on with it, choose another name, or discard it with "
            "--overwrite"
        )


def _flat(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Walk nested mappings as dotted fields."""
    for key, value in raw.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
