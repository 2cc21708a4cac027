"""Figures of how far a policy is from the one that sampled: per-token ratios, what clipping acted on, and mismatch."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from mintjax.train.batches import Batch
from mintjax.train.corrections import Corrected
from mintjax.train.losses import Gspo, Loss, Ppo


def policy_metrics(
    batches: Sequence[Batch], logprobs: Sequence[np.ndarray], loss: Loss
) -> dict[str, float]:
    """Compares the trainer's log probabilities with the sampler's, over all trained tokens of a step.

    Before the first update since sampling the two are the same policy, so ``mismatch/*`` is rounding and nothing else:
    more than that means that tokens were not trained as they were sampled.

    Args:
        batches: the step's micro-batches.
        logprobs: the trainer's log probabilities of each, ``[B, N]``.
        loss: for its bounds, where it clips, and its correction, where it has one.

    Returns:
        ``ratio/mean`` and ``max``, of the policy and the one that the loss compares it with: the sampler, or, with a
        correction, itself before the update, and then they are 1. ``mismatch/logp_abs_mean``, ``logp_abs_max`` and
        ``prob_abs_mean``; ``entropy_estimate``, the mean of minus the sampled log probability, in nats. With `Ppo` and
        `Gspo`, ``clip_ratio/low_mean``, ``high_mean`` and ``region_mean``, fractions of tokens whose gradient a bound
        stopped (the bound of the dual clip is in the last alone). With a correction, ``correction/ratio_mean`` and
        ``ratio_max``, of the policy and the sampler, a token or a row as it takes them; ``weight_mean``, what became of
        them; and ``bound_mean``, the fraction of tokens on which its bound acted.

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
    rows = _rows(masks)
    difference = np.abs(now - sampler)
    corrected, log_ratio, metrics = loss, now - sampler, {}
    if isinstance(corrected, Corrected):
        loss, metrics = corrected.loss, _correction_metrics(corrected, log_ratio, rows)
        log_ratio = np.zeros_like(log_ratio)
    ratio = np.exp(log_ratio)
    metrics |= {
        "ratio/mean": ratio.mean(),
        "ratio/max": ratio.max(),
        "mismatch/logp_abs_mean": difference.mean(),
        "mismatch/logp_abs_max": difference.max(),
        "mismatch/prob_abs_mean": np.abs(np.exp(now) - np.exp(sampler)).mean(),
        "entropy_estimate": -sampler.mean(),
    }
    if isinstance(loss, Ppo | Gspo):
        metrics |= _clip_metrics(loss, log_ratio, advantages, rows)
    return {name: float(value) for name, value in metrics.items()}


def _rows(masks: Sequence[np.ndarray]) -> Int[np.ndarray, " T"]:
    """A number for the row of each trained token, another one in every micro-batch."""
    rows, first = [np.zeros(0, int)], 0
    for mask in masks:
        numbers = np.arange(len(mask)).reshape(-1, *[1] * (mask.ndim - 1)) + first
        rows.append(np.broadcast_to(numbers, mask.shape)[mask])
        first += len(mask)
    return np.concatenate(rows)


def _correction_metrics(
    corrected: Corrected, log_ratio: Float[np.ndarray, " T"], rows: Int[np.ndarray, " T"]
) -> dict[str, float]:
    """What a correction made of the ratios."""
    if corrected.correction.level == "sequence":
        log_ratio = np.bincount(rows, log_ratio)[rows]
    # As the loss computes them: in its precision the weight of an untouched ratio is the ratio itself.
    ratio = np.exp(log_ratio).astype(np.float32)
    weight = np.asarray(corrected.correction.bounded(ratio))
    return {
        "correction/ratio_mean": float(ratio.mean()),
        "correction/ratio_max": float(ratio.max()),
        "correction/weight_mean": float(weight.mean()),
        "correction/bound_mean": float((weight != ratio).mean()),
    }


def _clip_metrics(
    loss: Ppo | Gspo,
    log_ratio: Float[np.ndarray, " T"],
    advantages: Float[np.ndarray, " T"],
    rows: Int[np.ndarray, " T"],
) -> dict[str, float]:
    """Fractions of tokens whose gradient a bound stopped."""
    if isinstance(loss, Gspo):
        log_ratio = (np.bincount(rows, log_ratio) / np.maximum(1, np.bincount(rows)))[rows]
    ratio, cap = np.exp(log_ratio), np.inf
    if isinstance(loss, Ppo) and loss.negative_ratio_max is not None:
        cap = loss.negative_ratio_max
    low = (ratio < loss.ratio_min) & (advantages < 0)
    high = (ratio > loss.ratio_max) & (advantages > 0)
    region = low | high | ((ratio > cap) & (advantages < 0))
    return {
        "clip_ratio/low_mean": float(low.mean()),
        "clip_ratio/high_mean": float(high.mean()),
        "clip_ratio/region_mean": float(region.mean()),
    }
