"""invocation.json and code.diff: how a run was started, each time it was."""

import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from mintjax.train.durable import write_atomic
from mintjax.train.run_directory import RunDirectory

_PACKAGES = ("mintjax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers")


def record_invocation(run: RunDirectory, *, seed: int, devices: Sequence[str]) -> None:
    """Add one entry to ``invocation.json`` and, in a git work tree, write ``code.diff``.

    Args:
        run: the run's directory.
        seed: the run's seed.
        devices: the accelerator devices, as texts.

    Raises:
        ValueError: if ``invocation.json`` is there but is no JSON list.

    Example:
        >>> record_invocation(run, seed=config.seed, devices=[str(d) for d in jax.devices()])
    """
    file = run.path / "invocation.json"
    entries = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    if not isinstance(entries, list):
        raise ValueError(
            f"{file}: expected a list of starts, got {type(entries).__name__}; move it away"
        )
    commit = _git("rev-parse", "HEAD")
    entries.append(
        {
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "argv": sys.argv,
            "directory": str(Path.cwd()),
            "python": platform.python_version(),
            "versions": {name: version for name in _PACKAGES if (version := _version(name))},
            "git": commit.strip() if commit else None,
            "seed": seed,
            "devices": list(devices),
        }
    )
    write_atomic(file, json.dumps(entries, indent=2) + "\n")
    if commit and (diff := _git("diff", "HEAD")) is not None:
        write_atomic(run.path / "code.diff", diff)


def _version(package: str) -> str | None:
    """Return an installed package's version; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Return what git prints in the working directory; None without git or outside a work tree."""
    try:
        result = subprocess.run(
            ["git", *arguments], capture_output=True, check=True, text=True, errors="replace"
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout
