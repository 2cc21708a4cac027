"""Named trees of arrays on the disk, bit for bit: what every kind of checkpoint is made of.

A save is a directory that orbax writes, with each tree's paths, shapes and dtypes in its metadata. It is written aside,
synced and renamed, and described by a digest of every byte, so that a half or a damaged one can be told from a whole.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from mintjax.train.durable import sync_directory

PyTree = Any


class CheckpointError(RuntimeError):
    """A checkpoint that does not fit what it is loaded into; the message names what differs."""


def save_trees(
    path: Path, trees: Mapping[str, PyTree], *, origin: Mapping[str, str], state: Mapping[str, Any]
) -> str:
    """Write trees to a directory, which is whole or not there at all.

    Args:
        path: the directory; what stands there is replaced. Its parent exists.
        trees: trees of arrays by name.
        origin: what the trees are worthless without, as texts to compare.
        state: numbers, texts and numpy arrays by name.

    Returns:
        The digest of its files.

    Example:
        >>> digest = save_trees(path, {"adapter": adapter}, origin={"base": "tiny"}, state={"step": 1})
    """
    aside = path.with_name(path.name + ".partial")
    for stale in (aside, path):
        if stale.exists():
            shutil.rmtree(stale)
    layout = {name: _layout(tree) for name, tree in trees.items()}
    metadata: Any = {"origin": dict(origin), "layout": layout}
    ocp.save_checkpointables(
        str(aside.absolute()),
        {**trees, "state": dict(state)},
        custom_metadata=metadata,
    )
    digest = directory_digest(aside, sync=True)
    os.rename(aside, path)
    sync_directory(path.parent)
    return digest


def load_trees(
    path: Path, trees: Mapping[str, PyTree], *, origin: Mapping[str, str]
) -> dict[str, Any]:
    """Load trees bit for bit, onto the devices where arrays like them lie.

    Args:
        path: a directory that ``save_trees`` wrote.
        trees: arrays, or shapes with shardings, of the form to load; saved trees that are not named are left out.
        origin: what ``save_trees`` was given; every text must be equal.

    Returns:
        The loaded trees by name, and ``"state"``.

    Raises:
        CheckpointError: if the origin differs, or an array's path, shape or dtype.

    Example:
        >>> adapter = load_trees(path, {"adapter": adapter}, origin={"base": "tiny"})["adapter"]
    """
    file = str(path.absolute())
    metadata: Any = ocp.checkpointables_metadata(file).custom_metadata
    _refuse_other(path, "origin", metadata["origin"], dict(origin))
    for name, tree in trees.items():
        # orbax would cast another dtype in silence, and reports another tree at length.
        _refuse_other(path, name, metadata["layout"].get(name, {}), _layout(tree))
    abstract = {name: _abstract(tree) for name, tree in trees.items()}
    return ocp.load_checkpointables(file, {**abstract, "state": None})


def directory_digest(path: Path, *, sync: bool = False) -> str:
    """Hash the names and bytes of all files below a directory, and make them durable if asked.

    Args:
        path: the directory.
        sync: wait until everything is on the disk.

    Returns:
        A sha256 as hex digits.

    Example:
        >>> directory_digest(path) == digest
        True
    """
    total = hashlib.sha256()
    for folder, names, files in os.walk(path):
        names.sort()
        for name in sorted(files):
            file = Path(folder, name)
            with file.open("rb") as stream:
                if sync:
                    os.fsync(stream.fileno())
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            total.update(f"{file.relative_to(path)}\0{content}\n".encode())
        if sync:
            sync_directory(Path(folder))
    return total.hexdigest()


def _layout(tree: PyTree) -> dict[str, str]:
    """Describe each array of a tree by path: dtype and shape."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}" for path, x in leaves}


def _abstract(tree: PyTree) -> PyTree:
    """Replace each array by its shape, dtype and sharding."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def _refuse_other(path: Path, what: str, saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise if two descriptions differ, naming the first few differences."""
    found = [key for key in sorted({*saved, *now}) if saved.get(key) != now.get(key)]
    if found:
        lines = [f"  {key}: {saved.get(key)} there, {now.get(key)} now" for key in found[:5]]
        more = f"\n  and {len(found) - 5} more" if len(found) > 5 else ""
        raise CheckpointError(
            f"{path}: its {what} is not this run's\n" + "\n".join(lines) + more + "\n"
            "load it with the model, renderer and adapter settings that it was saved with"
        )
