"""The sections of a run that compare the policy with another one: a reference it must stay near, a teacher it follows."""

import math
from dataclasses import dataclass
from typing import Literal

from mintjax.train.config_checks import require


@dataclass(frozen=True)
class KlConfig:
    """A penalty for leaving the reference, which is the base model without its adapter."""

    coefficient: float = 0.0
    """Weight of the penalty; 0 is off, and no reference is computed."""
    place: Literal["reward", "loss"] = "reward"
    """Where the penalty stands: taken from each token's advantage, or added to the loss and differentiated."""
    estimator: Literal["k1", "k2", "k3"] = "k1"
    """With d = log p - log reference: k1 = d, in the reward alone; k2 = d^2 / 2 and k3 = exp(-d) - 1 + d, in the loss alone.
    k2's gradient is that of KL(policy, reference), k3's that of KL(reference, policy)."""
    centre: Literal["batch", "group"] = "batch"
    """What a penalty in the reward is centred by, so that a policy that is everywhere as far off is not pushed: its mean
    over the batch's trained tokens, or over those of the group. The plan "reverse_only" needs "group"."""

    def __post_init__(self) -> None:
        """Check the range, and that the estimator's gradient is that of a KL where it stands."""
        known = 0 <= self.coefficient < math.inf
        require(known, "kl.coefficient", "a number of at least 0", self.coefficient)
        allowed = ("k1",) if self.place == "reward" else ("k2", "k3")
        # k1 in the loss has an expected gradient of 0; k2 and k3 in the reward follow the gradient of no KL (arXiv:2512.21852).
        require(
            not self.on or self.estimator in allowed,
            "kl.estimator",
            f"{' or '.join(allowed)} where kl.place is {self.place!r} (others have the gradient of no KL there)",
            self.estimator,
        )

    @property
    def on(self) -> bool:
        """Whether there is a penalty."""
        return self.coefficient > 0

    @property
    def needs_whole_batch(self) -> bool:
        """Whether a token's penalty depends on all others of the batch, so that no gradient can be taken before."""
        return self.on and self.place == "reward" and self.centre == "batch"


@dataclass(frozen=True)
class TeacherConfig:
    """On-policy distillation: a teacher says how likely it finds each token that the policy sampled."""

    model: str | None = None
    """The teacher, named as model.name is; it must have the policy's tokenizer. Null is none."""
    coefficient: float = 1.0
    """Weight of log teacher - log policy in each token's advantage."""
    rewards: bool = False
    """Add the advantage that the rewards give; without, the teacher alone says what is good."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Precision of the teacher's weights; null keeps the checkpoint's."""

    def __post_init__(self) -> None:
        """Check the range."""
        known = 0 < self.coefficient < math.inf
        require(known, "teacher.coefficient", "a positive number", self.coefficient)

    @property
    def on(self) -> bool:
        """Whether there is a teacher."""
        return self.model is not None
