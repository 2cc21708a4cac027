"""A penalty for leaving a reference policy, in the reward: each token's log probability ratio, as a number."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from mintjax.train.batches import Batch
from mintjax.train.config_references import KlConfig


def penalised(batches: Sequence[Batch], groups: Int[np.ndarray, " E"], kl: KlConfig) -> list[Batch]:
    """The batches with k1 taken from each token's advantage, less its mean over the trained tokens that centre it.

    Args:
        batches: micro-batches of one step, or of whole groups of one, with their shares and their reference.
        groups: of each episode that was laid out.
        kl: the penalty, whose place is the reward.

    Returns:
        The batches with other advantages and weights.

    Example:
        >>> batches = penalised(batches, np.array([episode.group for episode in episodes]), config.kl)
    """
    masks = [batch.mask > 0 for batch in batches]
    values = [difference(batch)[mask] for batch, mask in zip(batches, masks, strict=True)]
    owners = [_owner(batch, groups, kl)[mask] for batch, mask in zip(batches, masks, strict=True)]
    owner = np.concatenate([np.zeros(0, int), *owners])
    total = np.bincount(owner, np.concatenate([np.zeros(0), *values]))
    mean = total / np.maximum(1, np.bincount(owner))
    found = []
    for batch, value, own, mask in zip(batches, values, owners, masks, strict=True):
        assert batch.shares is not None  # micro_batches was given them
        penalty = np.zeros_like(batch.advantages)
        penalty[mask] = kl.coefficient * (value - mean[own]) * batch.shares[mask]
        changed = {"advantages": batch.advantages - penalty, "weights": batch.weights - penalty}
        found.append(batch._replace(**changed))
    return found


def difference(batch: Batch) -> Float[np.ndarray, "B N *K"]:
    """The sampler's log probabilities less the reference's, in float64.

    Example:
        >>> k1 = difference(batch)[batch.mask > 0].mean()
    """
    assert batch.reference is not None
    return batch.logprobs.astype(np.float64) - batch.reference


def kl_metrics(differences: Float[np.ndarray, " T"]) -> dict[str, float]:
    """How far the sampling policy was from the reference.

    Args:
        differences: of all trained tokens of a step.

    Returns:
        ``kl_ref/k1`` and ``kl_ref/k3``, means in nats.

    Example:
        >>> kl_metrics(difference(batch)[batch.mask > 0])
        {'kl_ref/k1': 0.021, 'kl_ref/k3': 0.020}
    """
    k3 = np.expm1(-differences) + differences
    return {"kl_ref/k1": float(differences.mean()), "kl_ref/k3": float(k3.mean())}


def _owner(batch: Batch, groups: np.ndarray, kl: KlConfig) -> Int[np.ndarray, "B N"]:
    """For each token the number of what its penalty is centred over."""
    assert batch.episodes is not None
    numbers = groups[batch.episodes] if kl.centre == "group" else np.zeros_like(batch.episodes)
    return np.broadcast_to(numbers[:, None], batch.mask.shape)
