"""How likely another policy finds the tokens that a batch trains: one forward pass, without a gradient."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.train.gradients import evaluate
from mintjax.train.losses import CrossEntropy
from mintjax.train.plan import Plan


def reference_logprobs(
    policy: Policy, batch: Batch, plan: Plan = Plan()
) -> Float[np.ndarray, "B N *K"]:
    """Log probabilities of the trained tokens under a policy, at the temperature of the batch.

    Args:
        policy: the reference, such as ``policy.base_only()``, or a teacher.
        batch: rows of token streams.
        plan: how to compute it. ``"reverse_only"`` stands for ``"segments"``: the cache that sampling left is not this
            policy's.

    Returns:
        Numbers like ``batch.logprobs``; 0 where ``batch.mask`` is 0.

    Raises:
        ValueError: as :func:`mintjax.train.gradients.evaluate`.

    Example:
        >>> batch = batch._replace(reference=reference_logprobs(policy.base_only(), batch))
    """
    if plan.kind == "reverse_only":
        plan = replace(plan, kind="segments")
    # The loss is not looked at: any will do.
    found = evaluate(policy, batch, CrossEntropy(), plan).logprobs
    return np.where(batch.mask > 0, found, 0)
