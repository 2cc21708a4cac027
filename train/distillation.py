"""On-policy distillation: a teacher grades every token that the policy sampled.

A token's advantage is ``coefficient * (log teacher - log policy)``, alone or beside the rewards'. Nothing is discounted, so
a token answers for itself; with the importance-sampling loss that is the gradient of KL(policy, teacher), token by token
(Agarwal et al., arXiv:2306.13649, with the reverse KL).
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mintjax.train.advantages import Advantages
from mintjax.train.batches import Batch
from mintjax.train.config_references import TeacherConfig


def taught(advantages: Advantages, teacher: TeacherConfig, left_out: Sequence[bool]) -> Advantages:
    """Advantages to lay a batch out with, where a teacher grades all that was sampled.

    Args:
        advantages: the rewards', not yet normalised.
        teacher: they come back as they are without one.
        left_out: of each episode, whether none of its tokens is to be trained.

    Returns:
        The rewards' advantages or zeros, with every turn trained of episodes that are not left out: a teacher has something
        to say where all rewards are equal too. ``signal`` stays the rewards'.

    Example:
        >>> raw = taught(group_advantages(episodes), config.teacher, [False] * len(episodes))
    """
    if not teacher.on:
        return advantages
    kept = float(teacher.rewards)
    return advantages._replace(
        values=tuple(kept * value for value in advantages.values),
        trained=tuple(
            np.full_like(turns, not out)
            for turns, out in zip(advantages.trained, left_out, strict=True)
        ),
    )


def graded(batch: Batch, logprobs: Float[np.ndarray, "B N *K"], teacher: TeacherConfig) -> Batch:
    """A batch with what a teacher says in its advantages.

    Args:
        batch: with its shares.
        logprobs: the teacher's, of the trained tokens.
        teacher: how much it counts.

    Returns:
        The batch with other advantages and weights.

    Example:
        >>> batch = graded(batch, reference_logprobs(teacher_policy, batch), config.teacher)
    """
    assert batch.shares is not None  # micro_batches was given them
    better = np.where(batch.mask > 0, (logprobs - batch.logprobs) * batch.shares, 0)
    grade = (teacher.coefficient * better).astype(batch.advantages.dtype)
    return batch._replace(advantages=batch.advantages + grade, weights=batch.weights + grade)
