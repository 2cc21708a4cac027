"""A penalty for leaving a reference policy, in the reward or in the loss.

With d = log p - log reference at a sampled token, k1 = d, k2 = d^2 / 2 and k3 = exp(-d) - 1 + d. As numbers k1 and k3
estimate KL(policy, reference) without bias. As terms of a loss on the policy's own samples they do not: k1's expected
gradient is 0, k2's is that of KL(policy, reference), and k3's that of KL(reference, policy). k1 in the reward, where it is
a number, has the gradient of KL(policy, reference) again. (Schulman, "Approximating KL divergence"; Tang and Munos,
arXiv:2506.09477; arXiv:2512.21852, which finds k1 in the reward to train best.)
"""

from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float

from mintjax.train.config_references import KlConfig
from mintjax.train.losses import Loss, LossInputs


@dataclass(frozen=True)
class WithKl(Loss):
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

    @property
    def scales_with_advantages(self) -> bool:  # type: ignore[override]
        """As the loss says: the KL term scales with the shares."""
        return self.loss.scales_with_advantages

    @property
    def whole_rows(self) -> bool:  # type: ignore[override]
        """As the loss says: the KL term is a token's own."""
        return self.loss.whole_rows

    def __call__(self, logprobs: Float[Any, "*shape"], inputs: LossInputs) -> Float[Any, "*shape"]:
        """See :class:`mintjax.train.losses.Loss`."""
        import jax.numpy as jnp

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
