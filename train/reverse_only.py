"""The gradient over fresh episodes from the cache that sampling them left: a backward walk, and no forward pass."""

from functools import partial

import jax
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from mintjax.adapters import Adapter
from mintjax.attention_kernels import Kernel
from mintjax.cache import State, check_overflow
from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.train.losses import Loss, LossInputs, masked_sum
from mintjax.train.segment_scan import Scan, flat, walk_back
from mintjax.train.segments import Segments


class StaleCacheError(ValueError):
    """A cache that another version of the policy filled; its gradient would be of no policy."""


def check_state(policy: Policy, batch: Batch, state: State) -> None:
    """Refuses a cache that does not hold a batch's token streams as this policy would have computed them.

    Raises:
        StaleCacheError: where the policy has been updated since.
        ContextOverflowError: where tokens did not fit the cache.
        ValueError: where the cache has other rows, or rows with fewer tokens than the streams have.

    Example:
        >>> check_state(policy, batch, state)
    """
    check_overflow(policy.config, state)
    if int(state.version) != int(policy.version):
        raise StaleCacheError(
            f"state: filled by version {int(state.version)} of the policy, which is at {int(policy.version)} now; take "
            f"the gradient before the update, or with the plan 'segments'"
        )
    held, wanted = np.asarray(state.position), np.asarray(batch.length)
    if held.shape != wanted.shape:
        raise ValueError(f"state: expected {wanted.size} rows as the batch has, got {held.size}")
    rows = np.flatnonzero(held < wanted)
    if rows.size:
        raise ValueError(
            f"state: rows {rows.tolist()} hold {held[rows].tolist()} tokens, and the batch's streams have "
            f"{wanted[rows].tolist()}; pass the state of these very episodes"
        )


@partial(jax.jit, static_argnames=("loss", "remat", "kernel"))
def reverse_gradients(
    policy: Policy,
    levels: tuple[Segments, ...],
    state: State,
    inputs: LossInputs,
    temperature: Float[ArrayLike, ""],
    *,
    loss: Loss,
    remat: bool,
    kernel: Kernel = "blockwise",
) -> tuple[Adapter, Float[Array, ""], Float[Array, " P *K"]]:
    """The gradient of a loss that is a sum over tokens.

    Each segment is run once against the cache, its terms of the loss are computed, and both are pulled back at once.

    Args:
        policy: the policy that filled the cache.
        levels: the streams that are in it, level by level as they are there.
        state: the cache.
        inputs: the loss's constants, in the order of the labels.
        temperature: what logits are divided by.
        loss: maps each token's log probability to its term, whatever the others are.
        remat: see :func:`mintjax.train.segment_scan.segment_logprobs`.
        kernel: what computes attention.

    Returns:
        The gradient of the adapter, the loss, and the log probabilities.

    Example:
        >>> grads, value, logprobs = reverse_gradients(policy, levels, state, inputs, 1.0, loss=Ppo(), remat=False)
    """
    assert policy.adapter is not None  # gradients() refuses a policy without one

    inputs = inputs._replace(row=None)  # a segment holds pieces of rows
    parts, end = [], 0
    for segments in levels:
        start, end = end, end + segments.positions.size
        shape = segments.labels.shape
        parts.append(
            jax.tree.map(lambda x, a=start, b=end, shape=shape: x[a:b].reshape(shape), inputs)
        )

    def cotangent(level, t, logprobs):
        here = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, t, 0, False), parts[level])
        return jax.grad(partial(masked_sum, loss), argnums=0)(logprobs, here)

    scan = Scan(policy.adapter, policy, levels, temperature, state)
    grads, scores = walk_back(scan, cotangent, remat, kernel)
    logprobs = flat(scores)
    return grads, masked_sum(loss, logprobs, inputs), logprobs
