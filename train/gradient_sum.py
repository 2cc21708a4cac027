"""The gradient of one step, summed over micro-batches as they come, and what the step's metrics need of them."""

from dataclasses import dataclass, field
from functools import partial

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float

from mintjax.adapters import Adapter
from mintjax.cache import State
from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.train.gradients import add_gradients, gradients
from mintjax.train.kl_loss import WithKl
from mintjax.train.losses import Loss
from mintjax.train.plan import Plan
from mintjax.train.plan_arguments import TokensRun
from mintjax.train.policy_metrics import policy_metrics


@dataclass
class GradientSum:
    """The sum of a loss and of its gradient over the micro-batches so far.

    Attributes:
        policy: what the gradient is of.
        loss: terms to sum.
        plan: how gradients are computed.
        grads: a tree like the policy's adapter; None before the first micro-batch.
        value: of the loss.
        batches: the micro-batches so far.
        logprobs: the policy's log probabilities of each, ``[B, N]``.
        tokens: how many were run, with padding and without.

    Example:
        >>> total = GradientSum(policy, Ppo(), Plan())
        >>> for batch in micro_batches(episodes, advantages, rows=8):
        ...     total.add(batch)
    """

    policy: Policy
    loss: Loss
    plan: Plan
    grads: Adapter | None = None
    value: float = 0.0
    batches: list[Batch] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)
    tokens: TokensRun = field(default_factory=lambda: TokensRun(0, 0))

    def add(self, batch: Batch, state: State | None = None) -> None:
        """Adds the gradient of a micro-batch.

        Args:
            batch: one micro-batch.
            state: its rows' cache, for the plan ``"reverse_only"``. It is not kept.

        Example:
            >>> total.add(batch)
        """
        grads, found = gradients(self.policy, batch, self.loss, self.plan, state)
        self.grads = grads if self.grads is None else add_gradients(self.grads, grads)
        self.value += float(found.loss)
        self.batches.append(batch)
        self.logprobs.append(found.logprobs)
        real, padded = found.tokens
        self.tokens = TokensRun(self.tokens.real + real, self.tokens.padded + padded)

    def nothing(self) -> "GradientSum":
        """A sum of no micro-batches, of the same policy, loss and plan.

        Example:
            >>> part = total.nothing()
        """
        return type(self)(self.policy, self.loss, self.plan)

    def join(self, other: "GradientSum") -> None:
        """Adds another sum, of micro-batches after these; it must not be used again.

        Example:
            >>> total.join(part)
        """
        if other.grads is not None:
            self.grads = (
                other.grads if self.grads is None else add_gradients(self.grads, other.grads)
            )
        self.value += other.value
        self.batches += other.batches
        self.logprobs += other.logprobs
        real, padded = other.tokens
        self.tokens = TokensRun(self.tokens.real + real, self.tokens.padded + padded)

    def divide(self, by: float) -> None:
        """Divides loss and gradient.

        Example:
            >>> total.divide(2.0)
        """
        if self.grads is not None:
            self.grads = _divided(self.grads, by)
        self.value /= by

    def metrics(self) -> dict[str, float]:
        """Figures of the sum.

        Returns:
            ``gradients/forwards_saved``: forward passes over a micro-batch that were not run, since its cache was there
            already; ``gradients/forward_tokens_saved``: the tokens in them, without padding. 0 but for the plan
            ``"reverse_only"``. Where there is a micro-batch, those of
            :func:`mintjax.train.policy_metrics.policy_metrics`, ``loss``, and ``gradients/fill``, the share of real
            tokens among all that were run, as well.

        Example:
            >>> total.metrics()["gradients/forwards_saved"]
            0.0
        """
        saved = self.batches if self.plan.kind == "reverse_only" else []
        metrics = {
            "gradients/forwards_saved": float(len(saved)),
            "gradients/forward_tokens_saved": float(sum(int(x.length.sum()) for x in saved)),
        }
        if self.batches:
            loss = self.loss.loss if isinstance(self.loss, WithKl) else self.loss
            metrics |= policy_metrics(self.batches, self.logprobs, loss)
            metrics |= {"loss": self.value, "gradients/fill": self.tokens.real / self.tokens.padded}
        return metrics


@partial(jax.jit, donate_argnames="grads")
def _divided(grads: Adapter, by: Float[ArrayLike, ""]) -> Adapter:
    return jax.tree.map(lambda x: (x / by).astype(x.dtype), grads)
