"""A penalty for leaving a reference policy, in the reward or in the loss.

With d = log p - log reference at a sampled token, k1 = d, k2 = d^2 / 2 and k3 = exp(-d) - 1 + d. As numbers k1 and k3
estimate KL(policy, reference) without bias. As terms of a loss on the policy's own samples they do not: k1's expected
gradient is 0, k2's is that of KL(policy, reference), and k3's that of KL(reference, policy). k1 in the reward, where it is
a number, has the gradient of KL(policy, reference) again. (Schulman, "Approximating KL divergence"; Tang and Munos,
arXiv:2506.09477; arXiv:2512.21852, which finds k1 in the reward to train best.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mintjax.train.batches import Batch
from mintjax.train.config_references import KlConfig
from mintjax.train.losses import Loss, LossInputs


@dataclass(frozen=True)
class WithKl:
    """A loss with a KL estimate added to each token's term: ``loss + coefficient * share * k(log p - log reference)``.

    The share is that which the token's advantage has been multiplied by to normalise it.

    Attributes:
        loss: the policy's own.
        coefficient: weight of the penalty.
        estimator: ``"k2"`` or ``"k3"``.
    """

    loss: Loss
    coefficient: float
    estimator: Literal["k2", "k3"]

    def __call__(
        self, logprobs: Float[Array, "*shape"], inputs: LossInputs
    ) -> Float[Array, "*shape"]:
        """See :class:`mintjax.train.losses.Loss`."""
        if inputs.reference is None or inputs.shares is None:
            raise ValueError(
                "inputs: a KL term needs the batch's reference and shares; see mintjax.train.other_policies"
            )
        difference = logprobs - inputs.reference
        if self.estimator == "k2":
            estimate = difference**2 / 2
        else:
            estimate = jnp.expm1(-difference) + difference
        return self.loss(logprobs, inputs) + self.coefficient * inputs.shares * estimate


def loss_with_kl(loss: Loss, kl: KlConfig) -> Loss:
    """A run's loss, with the KL term where that stands in the loss.

    Example:
        >>> loss_with_kl(Ppo(), KlConfig(0.01, place="loss", estimator="k2"))
        WithKl(loss=Ppo(...), coefficient=0.01, estimator='k2')
    """
    if not kl.on or kl.place == "reward":
        return loss
    assert kl.estimator != "k1"  # the configuration refuses it in the loss
    return WithKl(loss, kl.coefficient, kl.estimator)


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
