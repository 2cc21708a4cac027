"""A checkpoint's named tensors become the base weights of a policy, each one checked."""

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from mintjax.models.config import ModelConfig
from mintjax.models.dense import weight_shapes
from mintjax.models.sharding import base_shardings, weight_key

FLOAT_TYPES = ("float32", "float16", "bfloat16")


def assemble_base(
    config: ModelConfig,
    names: Callable[[str], str],
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
        names: the checkpoint's name for a weight's dotted name, such as ``layers.3.q``.
        present: names of the checkpoint's tensors.
        read: the tensor of a name.
        source: what to call the checkpoint in errors.
        dtype: dtype of the weights; None keeps the checkpoint's, which must be one for all.
        mesh: devices to spread them over (``mintjax.models.sharding``); None uses jax's default.

    Returns:
        The tree of ``Policy.base``.

    Raises:
        ValueError: for missing or unexpected tensors, a wrong shape, or a dtype that is not a plain
            float; each is named.

    Example:
        >>> base = assemble_base(config, str, arrays, arrays.get, source="memory")  # doctest: +SKIP
    """
    shapes = weight_shapes(config)
    keys = jax.tree_util.tree_map_with_path(lambda path, _: weight_key(path), shapes)
    expected = {names(key) for key in jax.tree.leaves(keys)}
    missing, unexpected = sorted(expected - set(present)), sorted(set(present) - expected)
    if missing or unexpected:
        raise ValueError(
            f"{source}: its tensors are not those of {config}: missing {_some(missing)}, unexpected "
            f"{_some(unexpected)}; the configuration and the weights belong to different models, or "
            "the model has a part that is not implemented"
        )
    shardings = None if mesh is None else base_shardings(config, mesh)
    target = None if dtype is None else jnp.dtype(dtype)
    seen: dict[str, str] = {}

    def place(key: str, shape: jax.ShapeDtypeStruct, sharding: Any = None) -> jax.Array:
        name = names(key)
        array = read(name)
        if array.shape != shape.shape:
            raise ValueError(f"{source}: {name}: expected {shape.shape}, got {array.shape}")
        kind = str(array.dtype)
        if kind not in FLOAT_TYPES:
            raise ValueError(
                f"{source}: {name}: expected one of {FLOAT_TYPES}, got {kind}; convert the "
                "checkpoint to plain floats"
            )
        seen.setdefault(kind, name)
        if target is None and len(seen) > 1:
            raise ValueError(
                f"{source}: its tensors are of more than one dtype, {seen}; choose one by dtype="
            )
        array = array if target is None else array.astype(target)
        return jnp.asarray(array) if sharding is None else jax.device_put(array, sharding)

    trees = (keys, shapes) if shardings is None else (keys, shapes, shardings)
    return jax.tree.map(place, *trees)


def _some(names: list[str]) -> str:
    """A list in full where it is short, its first few and its length where not."""
    shown = ", ".join(names[:8]) or "none"
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
