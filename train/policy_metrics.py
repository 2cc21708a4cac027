"""Figures of how far a policy is from the one that sampled: per-token ratios, what clipping acted on, and mismatch."""

from collections.abc import Sequence

import numpy as np

from mintjax.train.batches import Batch
from mintjax.train.losses import Loss, Ppo


def policy_metrics(
    batches: Sequence[Batch], logprobs: Sequence[np.ndarray], loss: Loss
) -> dict[str, float]:
    """Compares the trainer's log probabilities with the sampler's, over all trained tokens of a step.

    Before the first update since sampling the two are the same policy, so ``mismatch/*`` is rounding and nothing else:
    more than that means that tokens were not trained as they were sampled.

    Args:
        batches: the step's micro-batches.
        logprobs: the trainer's log probabilities of each, ``[B, N]``.
        loss: for its bounds, where it clips.

    Returns:
        ``ratio/mean`` and ``max``; ``mismatch/logp_abs_mean``, ``logp_abs_max`` and ``prob_abs_mean``;
        ``entropy_estimate``, the mean of minus the sampled log probability, in nats; and with a clipped loss
        ``clip_ratio/low_mean``, ``high_mean`` and ``region_mean``, fractions of tokens whose gradient a bound stopped.

    Example:
        >>> policy_metrics(batches, [metrics.logprobs for metrics in computed], Ppo())["ratio/mean"]
        1.0
    """
    masks = [batch.mask > 0 for batch in batches]

    def gather(arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate([x[mask] for x, mask in zip(arrays, masks, strict=True)]).astype(
            np.float64
        )

    now = gather(logprobs)
    sampler = gather([batch.logprobs for batch in batches])
    advantages = gather([batch.advantages for batch in batches])
    ratio = np.exp(now - sampler)
    difference = np.abs(now - sampler)
    metrics = {
        "ratio/mean": ratio.mean(),
        "ratio/max": ratio.max(),
        "mismatch/logp_abs_mean": difference.mean(),
        "mismatch/logp_abs_max": difference.max(),
        "mismatch/prob_abs_mean": np.abs(np.exp(now) - np.exp(sampler)).mean(),
        "entropy_estimate": -sampler.mean(),
    }
    if isinstance(loss, Ppo):
        low = (ratio < loss.clip_low_threshold) & (advantages < 0)
        high = (ratio > loss.clip_high_threshold) & (advantages > 0)
        metrics |= {
            "clip_ratio/low_mean": low.mean(),
            "clip_ratio/high_mean": high.mean(),
            "clip_ratio/region_mean": (low | high).mean(),
        }
    return {name: float(value) for name, value in metrics.items()}
