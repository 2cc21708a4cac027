"""How a gradient is computed: a plan, and the attention kernel that it stands for on some hardware."""

from dataclasses import dataclass, replace
from typing import Literal

import jax.numpy as jnp

from mintjax.attention_kernels import Kernel, choose_kernel, hardware_of
from mintjax.policy import Policy


@dataclass(frozen=True)
class Plan:
    """How a gradient is computed. Static.

    Attributes:
        kind: ``"packed"``: whole rows; ``"segments"``: pieces of ``segment`` tokens over a cache; ``"reverse_only"``:
            the same backwards alone, over the cache of fresh episodes.
        segment: tokens in a piece.
        remat: keep less and compute more: each layer's input alone is kept for the backward pass.
        share: run what rows that stand next to each other begin with once, as the rows of a group do. With
            ``"segments"``; ``"reverse_only"`` shares what the cache does, and ``"packed"`` nothing.
        attention: a kernel of ``mintjax.attention_kernels``, or ``"auto"``: for whole rows the platform's own where it
            serves the weights' dtype, heads and devices, and ``"blockwise"`` elsewhere and for pieces over a cache,
            which it does not read past the longest prefix.
    """

    kind: Literal["packed", "segments", "reverse_only"] = "packed"
    segment: int = 128
    remat: bool = False
    share: bool = True
    attention: Literal["auto", "blockwise", "cudnn", "splash"] = "auto"


def with_kernel(plan: Plan, policy: Policy, *, documents: bool = False) -> Plan:
    """The plan with the kernel that ``plan.attention`` stands for on the hardware where the policy lies.

    Args:
        plan: as it was named.
        policy: the model.
        documents: whether rows hold several documents.

    Raises:
        ValueError: if it names a kernel that cannot serve there, or documents are packed and it is another plan than
            ``"packed"``.

    Example:
        >>> with_kernel(Plan(), policy).attention  # on a CPU
        'blockwise'
    """
    if documents and (plan.kind != "packed" or plan.attention not in ("auto", "blockwise")):
        raise ValueError(
            f"batch.starts: documents that share a row need the plan 'packed' with attention 'blockwise' or 'auto', got "
            f"{plan.kind!r} with {plan.attention!r}; give each document a row of its own, or take those"
        )
    if plan.attention == "auto" and (plan.kind != "packed" or documents):
        return replace(plan, attention="blockwise")
    dtype = jnp.dtype(policy.base["layers"][0]["o"].dtype)
    hardware = hardware_of(policy.base["norm"])
    config = policy.config
    features = config.attention_features
    kernel = choose_kernel(plan.attention, hardware, config.head_dim, dtype, features=features)
    return replace(plan, attention=kernel)


def kernel_of(plan: Plan) -> Kernel:
    """The kernel to trace with.

    Example:
        >>> kernel_of(Plan())
        'blockwise'
    """
    return "blockwise" if plan.attention == "auto" else plan.attention
