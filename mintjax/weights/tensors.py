"""A checkpoint's named tensors become the base weights of a policy, each one checked."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from mintjax.models.config import ModelConfig
from mintjax.models.dense import weight_shapes
from mintjax.models.expert_config import FLOAT32_WEIGHTS
from mintjax.models.sharding import base_shardings, weight_key
from mintjax.weights.stored import Stored

FLOAT_TYPES = ("float32", "float16", "bfloat16")


def assemble_base(
    config: ModelConfig,
    stored: Callable[[str], tuple[Stored, ...]],
    present: Collection[str],
    read: Callable[[str], np.ndarray],
    *,
    source: str,
    dtype: Any = None,
    mesh: Mesh | None = None,
) -> dict[str, Any]:
    """Reads every base weight from a checkpoint, one tensor at a time.

    Args:
        config: the decoder; it says which weights there are, and their shapes.
        stored: where the checkpoint may have a weight of a dotted name, such as ``layers.3.q``: the first place whose
            tensors are all present is read.
        present: names of the checkpoint's tensors.
        read: the tensor of a name.
        source: what to call the checkpoint in errors.
        dtype: dtype of the weights; None keeps the checkpoint's, which must be one for all but those that are kept in
            float32 always.
        mesh: devices to spread them over (``mintjax.models.sharding``); None uses jax's default.

    Returns:
        The tree of ``Policy.base``.

    Raises:
        ValueError: for missing or unexpected tensors, a wrong shape, or a dtype that is not a plain
            float; each is named.

    Example:
        >>> places = lambda key: (Stored(key),)
        >>> base = assemble_base(config, places, arrays, arrays.get, source="memory")  # doctest: +SKIP
    """
    shapes = weight_shapes(config)
    keys = jax.tree_util.tree_map_with_path(lambda path, _: weight_key(path), shapes)
    present = set(present)

    def home(key: str, shape: jax.ShapeDtypeStruct) -> Stored:
        places = stored(key)
        whole = (place for place in places if present.issuperset(place.tensors(shape.shape)))
        return next(whole, places[0])

    homes = jax.tree.map(home, keys, shapes)
    tensors = jax.tree.map(lambda _, place, shape: place.tensors(shape.shape), keys, homes, shapes)
    expected = set(jax.tree.leaves(tensors))
    missing, unexpected = sorted(expected - present), sorted(present - expected)
    if missing or unexpected:
        raise ValueError(
            f"{source}: its tensors are not those of {config}: missing {_some(missing)}, unexpected "
            f"{_some(unexpected)}; the configuration and the weights belong to different models, or "
            "the model has a part that is not implemented"
        )
    shardings = None if mesh is None else base_shardings(config, mesh)
    target = None if dtype is None else jnp.dtype(dtype)
    seen: dict[str, str] = {}

    def read_float(name: str, *, kept: bool) -> np.ndarray:
        array = read(name)
        kind = str(array.dtype)
        if kind not in FLOAT_TYPES:
            raise ValueError(
                f"{source}: {name}: expected one of {FLOAT_TYPES}, got {kind}; convert the "
                "checkpoint to plain floats"
            )
        if not kept:
            seen.setdefault(kind, name)
        if target is None and len(seen) > 1:
            raise ValueError(
                f"{source}: its tensors are of more than one dtype, {seen}; choose one by dtype="
            )
        return array

    def place(key: str, home: Stored, shape: jax.ShapeDtypeStruct, sharding: Any = None):
        kept = key.rpartition(".")[2] in FLOAT32_WEIGHTS
        array = home.array(shape.shape, partial(read_float, kept=kept))
        if array.shape != shape.shape:
            raise ValueError(f"{source}: {home.name}: expected {shape.shape}, got {array.shape}")
        final = jnp.dtype(jnp.float32) if kept else target
        array = array if final is None else array.astype(final)
        return jnp.asarray(array) if sharding is None else jax.device_put(array, sharding)

    # The tree of keys comes first: its leaves are strings, where those of homes would be tuples.
    trees = (keys, homes, shapes) if shardings is None else (keys, homes, shapes, shardings)
    return jax.tree.map(place, *trees)


def _some(names: list[str]) -> str:
    """A list in full where it is short, its first few and its length where not."""
    shown = ", ".join(names[:8]) or "none"
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
