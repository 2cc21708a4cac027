"""The gradient of a loss over a batch of episodes: one function, and a plan that says how it is computed.

The plans agree; they differ in memory and time. ``"packed"`` runs each row whole, ``"segments"`` runs it in pieces over
a cache (``mintjax.train.segment_scan``).
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mintjax.adapters import Adapter
from mintjax.attention import block_of
from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.train.losses import Loss, LossInputs
from mintjax.train.packed import row_logprobs
from mintjax.train.segment_scan import Segments, segment_logprobs

_POSITIONS = 512  # scored positions are padded to this, doubled as often as it takes: few shapes, few compiles


@dataclass(frozen=True)
class Plan:
    """How a gradient is computed. Static.

    Attributes:
        kind: ``"packed"``: whole rows; ``"segments"``: pieces of ``segment`` tokens over a cache.
        segment: tokens in a piece.
        remat: keep less and compute more: each layer's input alone is kept for the backward pass.
    """

    kind: Literal["packed", "segments"] = "packed"
    segment: int = 64
    remat: bool = False


class GradientMetrics(NamedTuple):
    """What a gradient tells besides itself.

    Attributes:
        loss: the sum of the loss's terms.
        logprobs: float ``[B, N]``, this policy's log probabilities of the batch's trained tokens; nan elsewhere.
    """

    loss: Float[Array, ""]
    logprobs: np.ndarray


def gradients(
    policy: Policy, batch: Batch, loss: Loss, plan: Plan = Plan()
) -> tuple[Adapter, GradientMetrics]:
    """The gradient of a loss's sum with respect to the adapter.

    Sums add up: the gradients of several batches, added leaf by leaf, are the gradient of all of them.

    Args:
        policy: the model; it must have an adapter.
        batch: rows of token streams with what the loss needs, one number a token.
        loss: terms to sum over ``batch.mask``.
        plan: how to compute it; the result does not depend on it but for rounding.

    Returns:
        A tree like ``policy.adapter``, and metrics. Compiled once for each shape of batch and number of scored
        positions, which are padded to few sizes.

    Raises:
        ValueError: if a row's first token is trained (nothing predicts it), or the policy has no adapter.

    Example:
        >>> grads, metrics = gradients(policy, batch, Ppo(), Plan("segments"))
    """
    if policy.adapter is None:
        raise ValueError(
            "policy.adapter: None has no gradient; load_policy makes a policy with an adapter"
        )
    mask = np.asarray(batch.mask) > 0
    if mask[:, 0].any():
        raise ValueError(
            f"batch.mask: rows {np.flatnonzero(mask[:, 0]).tolist()} train their first token, which nothing predicts; "
            f"set the mask to 0 there"
        )
    rows = np.flatnonzero(mask)
    arguments = (
        _packed_arguments if plan.kind == "packed" else partial(_segment_arguments, plan.segment)
    )
    data, index = arguments(batch, rows)
    pick = partial(_pick, index)
    inputs = LossInputs(
        *(pick(x) for x in (batch.mask, batch.weights, batch.advantages, batch.logprobs))
    )
    grads, value, scored = _gradients(policy, data, inputs, batch.temperature, loss=loss, plan=plan)
    logprobs = np.full(mask.shape, np.nan, scored.dtype)
    real = index >= 0
    logprobs.reshape(-1)[index[real]] = np.asarray(scored)[real]
    return grads, GradientMetrics(value, logprobs)


def _pick(index: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Numbers at flat indices; 0 where the index is -1."""
    return np.where(index >= 0, np.asarray(x).reshape(-1)[index], 0).astype(x.dtype)


def _padded(count: int, most: int) -> int:
    """The number of positions that ``count`` are padded to; there are no more than ``most``."""
    return min(most, _POSITIONS << max(0, -(-count // _POSITIONS) - 1).bit_length())


class _Rows(NamedTuple):
    tokens: np.ndarray
    positions: np.ndarray


def _packed_arguments(batch: Batch, trained: np.ndarray) -> tuple[_Rows, np.ndarray]:
    """Rows padded to the attention block, and for every scored position its index in the batch (-1 on padding)."""
    size = batch.tokens.shape[1]
    padding = -size % block_of(size)
    index = np.full(_padded(trained.size, batch.tokens.size), -1)
    index[: trained.size] = trained
    positions = np.where(index >= 0, index + index // size * padding, 0).astype(np.int32)
    return _Rows(np.pad(batch.tokens, ((0, 0), (0, padding))), positions), index


def _segment_arguments(
    segment: int, batch: Batch, trained: np.ndarray
) -> tuple[Segments, np.ndarray]:
    """Rows cut into segments, and for every scored position its index in the batch (-1 on padding)."""
    batch_size, size = batch.tokens.shape
    steps = -(-size // segment)
    tokens = np.pad(batch.tokens, ((0, 0), (0, steps * segment - size)))
    tokens = tokens.reshape(batch_size, steps, segment).swapaxes(0, 1)
    start = np.arange(steps)[:, None] * segment
    length = np.clip(batch.length[None] - start, 0, segment).astype(np.int32)
    row, column = np.divmod(trained, size)
    owner = column // segment
    count = _padded(int(np.bincount(owner, minlength=1).max()), batch_size * segment)
    index = np.full((steps, count), -1)
    positions = np.zeros(index.shape, np.int32)
    for t in range(steps):
        here = np.flatnonzero(owner == t)
        index[t, : here.size] = trained[here]
        positions[t, : here.size] = row[here] * segment + column[here] % segment
    return Segments(tokens, length, positions), index


@partial(jax.jit, static_argnames=("loss", "plan"))
def _gradients(policy: Policy, data, inputs: LossInputs, temperature, *, loss: Loss, plan: Plan):
    def total(adapter):
        if plan.kind == "packed":
            logprobs = row_logprobs(
                adapter,
                policy,
                data.tokens,
                data.positions,
                temperature,
                block=block_of(data.tokens.shape[1]),
                remat=plan.remat,
            )
        else:
            logprobs = segment_logprobs(adapter, policy, data, temperature, plan.remat)
        # Padding gets a ratio of 1, so that no overflow there turns into 0 * inf in the backward pass.
        logprobs = jnp.where(inputs.mask > 0, logprobs, inputs.logprobs)
        terms = loss(logprobs, inputs)
        return jnp.sum(jnp.where(inputs.mask > 0, terms, 0)), logprobs

    (value, logprobs), grads = jax.value_and_grad(total, has_aux=True)(policy.adapter)
    return grads, value, logprobs
