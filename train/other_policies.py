"""The policies that a step compares its own with: the base model as a KL reference, and a teacher."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.train.config_references import KlConfig, TeacherConfig
from mintjax.train.distillation import graded
from mintjax.train.kl import difference, kl_metrics, penalised
from mintjax.train.plan import Plan
from mintjax.train.reference import reference_logprobs
from mintjax.types import Episode


@dataclass
class OtherPolicies:
    """What a reference and a teacher say of the batches of one step.

    Attributes:
        policy: the one in training.
        teacher: the one that it is to follow; None where there is none.
        plan: how gradients are computed.
        kl: the penalty for leaving the base model.
        teaching: how much the teacher counts.

    Example:
        >>> others = OtherPolicies(policy, None, Plan(), config.kl, config.teacher)
        >>> for batch in others.ask(micro_batches(episodes, advantages, rows=8, shares=shares), episodes):
        ...     total.add(batch)
        >>> others.metrics()
        {'kl_ref/k1': 0.021, 'kl_ref/k3': 0.020}
    """

    policy: Policy
    teacher: Policy | None
    plan: Plan
    kl: KlConfig
    teaching: TeacherConfig
    _from_base: list[np.ndarray] = field(default_factory=list)
    _from_teacher: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check that there is a teacher where one is to be asked."""
        if self.teaching.on and self.teacher is None:
            raise ValueError(
                f"teacher: {self.teaching.model!r} is to be asked, and came None; load it with load_teacher"
            )

    def ask(self, batches: Sequence[Batch], episodes: Sequence[Episode]) -> list[Batch]:
        """The batches with what a reference or teacher adds to them; as they are where there is neither.

        Args:
            batches: micro-batches of the step, or of whole groups of it, with their shares.
            episodes: those that were laid out.

        Returns:
            Micro-batches in the same order.

        Example:
            >>> batches = others.ask(batches, episodes)
        """
        found = list(batches)
        if self.kl.on:
            base = self.policy.base_only()
            found = [x._replace(reference=reference_logprobs(base, x, self.plan)) for x in found]
            self._from_base += [difference(x)[x.mask > 0] for x in found]
            if self.kl.place == "reward":
                found = penalised(found, np.array([e.group for e in episodes]), self.kl)
                found = [x._replace(reference=None) for x in found]  # the loss does not read it
        if self.teacher is not None:
            for i, batch in enumerate(found):
                logprobs = reference_logprobs(self.teacher, batch, self.plan)
                self._from_teacher.append((batch.logprobs - logprobs)[batch.mask > 0])
                found[i] = graded(batch, logprobs, self.teaching)
        return found

    def nothing(self) -> "OtherPolicies":
        """The same policies, of which nothing has been asked yet.

        Example:
            >>> part = others.nothing()
        """
        return replace(self, _from_base=[], _from_teacher=[])

    def join(self, other: "OtherPolicies") -> None:
        """Adds what others said of batches after these.

        Example:
            >>> others.join(part)
        """
        self._from_base += other._from_base
        self._from_teacher += other._from_teacher

    def metrics(self) -> dict[str, float]:
        """Figures of all batches so far.

        Returns:
            Those of :func:`mintjax.train.kl.kl_metrics` where there is a reference; ``teacher/k1``, the mean of log policy
            less log teacher in nats, where there is a teacher. Nothing where no token was trained.

        Example:
            >>> others.metrics()
        """
        metrics = {}
        if self._from_base:
            metrics |= kl_metrics(np.concatenate(self._from_base))
        if self._from_teacher:
            metrics["teacher/k1"] = float(np.concatenate(self._from_teacher).mean())
        return metrics
