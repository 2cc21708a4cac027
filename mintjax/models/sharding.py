"""Which axes of a device mesh the base weights are split over.

A mesh names its axes ``data``, ``fsdp``, ``tensor`` and ``expert``, any of which may be absent. Weights are
split over ``fsdp`` along the residual width, over ``tensor`` along heads, MLP width and vocabulary, and over
``expert`` from expert to expert; every ``data`` slice holds them whole.
"""

from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mintjax.models.config import ModelConfig
from mintjax.models.dense import weight_shapes

MESH_AXES = ("data", "fsdp", "tensor", "expert")

# Mesh axis of each dimension of a weight; shapes are those of `mintjax.models.dense`.
_RULES: dict[str, tuple[str | None, ...]] = {
    "embed": ("tensor", "fsdp"),
    "unembed": ("tensor", "fsdp"),
    "norm": (None,),
    "attn_norm": (None,),
    "attn_post_norm": (None,),
    "mlp_norm": (None,),
    "mlp_post_norm": (None,),
    "q_norm": (None,),
    "k_norm": (None,),
    "sinks": ("tensor",),
    # All heads need the whole latent.
    "q_a": (None, "fsdp"),
    "q_a_norm": (None,),
    "q_b": ("tensor", None),
    "kv_a": (None, "fsdp"),
    "kv_a_norm": (None,),
    "kv_b": ("tensor", None),
    "q_bias": ("tensor",),
    "k_bias": ("tensor",),
    "v_bias": ("tensor",),
    "o_bias": (None,),
    "q": ("tensor", "fsdp"),
    "k": ("tensor", "fsdp"),
    "v": ("tensor", "fsdp"),
    "o": ("fsdp", "tensor"),
    "gate": ("tensor", "fsdp"),
    "up": ("tensor", "fsdp"),
    "down": ("fsdp", "tensor"),
    # Each token needs the logits of all experts, and the router is small.
    "router": (None, "fsdp"),
    "router_bias": (None,),
    "router_correction": (None,),
    "experts_gate": ("expert", "tensor", "fsdp"),
    "experts_up": ("expert", "tensor", "fsdp"),
    "experts_down": ("expert", "fsdp", "tensor"),
    "experts_gate_bias": ("expert", "tensor"),
    "experts_up_bias": ("expert", "tensor"),
    "experts_down_bias": ("expert", None),
    "shared_gate": ("tensor", "fsdp"),
    "shared_up": ("tensor", "fsdp"),
    "shared_down": ("fsdp", "tensor"),
}


def base_shardings(config: ModelConfig, mesh: Mesh) -> dict[str, Any]:
    """Where each base weight lives on a mesh.

    Args:
        config: the decoder.
        mesh: axes among ``data``, ``fsdp``, ``tensor`` and ``expert``, all of type Auto.

    Returns:
        A tree of ``NamedSharding`` with the structure of ``Policy.base``.

    Raises:
        ValueError: for an unknown or explicit mesh axis, and for a dimension that its axis does not
            divide; the message names it.

    Example:
        >>> shardings = base_shardings(config, mesh)  # doctest: +SKIP
        >>> shardings["embed"].spec  # doctest: +SKIP
        PartitionSpec('tensor', 'fsdp')
    """
    unknown = set(mesh.axis_names) - set(MESH_AXES)
    if unknown:
        raise ValueError(
            f"mesh: expected axes among {MESH_AXES}, got {sorted(unknown)}; rename them to what "
            "they split"
        )
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise ValueError(
            f"mesh: expected axes of type Auto, got {mesh.axis_types}; make it with "
            "jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto,) * n)"
        )

    def sharding(path: tuple[Any, ...], weight: jax.ShapeDtypeStruct) -> NamedSharding:
        key = weight_key(path)
        axes = [axis if axis in mesh.shape else None for axis in _RULES[key.rpartition(".")[2]]]
        for dimension, (size, axis) in enumerate(zip(weight.shape, axes, strict=True)):
            if axis is not None and size % mesh.shape[axis]:
                raise ValueError(
                    f"{key}: dimension {dimension} of {weight.shape} is split over mesh axis "
                    f"{axis!r}, which has {mesh.shape[axis]} devices and does not divide it; "
                    "choose another mesh"
                )
        return NamedSharding(mesh, PartitionSpec(*axes))

    return jax.tree_util.tree_map_with_path(sharding, weight_shapes(config))


def weight_key(path: tuple[Any, ...]) -> str:
    """The dotted name of a leaf of the base weights, such as ``layers.3.q``.

    Example:
        >>> weight_key((jax.tree_util.DictKey("layers"), jax.tree_util.SequenceKey(3)))
        'layers.3'
    """
    return jax.tree_util.keystr(path, simple=True, separator=".")
