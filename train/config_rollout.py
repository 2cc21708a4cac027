"""The sections of a run about sampling: how episodes are sampled, and what becomes of those that a limit cut."""

import math
from dataclasses import dataclass
from typing import Literal

from mintjax.train.config_checks import require


def prefixes_of(rows: int, group_size: int) -> int:
    """Prompts whose caches are held while rows refill: those of the groups that the rows are of, and two more.

    Args:
        rows: of the cache.
        group_size: episodes that begin with one prompt.

    Example:
        >>> prefixes_of(rows=32, group_size=8)
        6
    """
    return 2 + (rows // group_size if group_size > 1 else 0)


def longest_conversation(context: int, max_episode_tokens: int) -> int:
    """Most tokens of a conversation, both sides together.

    Args:
        context: of the model.
        max_episode_tokens: the run's own limit; 0 is none.

    Example:
        >>> longest_conversation(8192, 0), longest_conversation(8192, 1000)
        (8192, 1000)
    """
    return min(context, max_episode_tokens or context)


@dataclass(frozen=True)
class RolloutConfig:
    """How episodes are sampled."""

    groups: int = 8
    """Prompts a step; each is the start of one group of episodes."""
    group_size: int = 4
    """Episodes a group: all start from the same prompt."""
    max_tokens: int = 64
    """Most tokens the policy may sample in one turn."""
    max_turns: int = 16
    """Most turns an episode may have; one that reaches it stops with the reason "max_turns"."""
    max_episode_tokens: int = 0
    """Most tokens of a conversation, both sides together; one that reaches it stops with the reason "max_episode_tokens". 0
    is as many as the model's context has."""
    step_timeout: float | None = 600.0
    """Seconds that one call of the environment may take before the episode stops with the reason "step_timeout"; null is no
    limit. What a limit of time ends is not the same in another run."""
    episode_timeout: float | None = None
    """Seconds that an episode may take before it stops with the reason "episode_timeout"; null is no limit."""
    parse_errors: Literal["pass", "observe", "end"] = "pass"
    """What comes of a reply that holds a tool call that cannot be read: "pass" gives it to the environment, "observe" tells
    the policy the error instead, "end" stops the episode with the reason "parse_error"."""
    parse_error_reward: float | None = None
    """Reward of a turn that "observe" or "end" keeps from the environment; null is no reward."""
    temperature: float = 1.0
    """Sampling temperature; also the one that log probabilities and the loss are taken at."""
    top_k: int = -1
    """Sample among the k most likely tokens only; -1 is off."""
    top_p: float = 1.0
    """Sample among the likeliest tokens that together hold this probability; 1 is off."""
    groups_in_flight: int = 0
    """Groups that are sampled side by side, so that caches are held of them alone; 0 is all of a step. With the plan
    "reverse_only" their gradient is taken before the next ones start. The result does not depend on it."""
    rows: int = 0
    """Rows of the cache that episodes are sampled in: one that ends gives its row to the next, so that long episodes hold
    up no others; docs/rollouts.md says when that pays. 0 is a row for every episode in flight. The result does not depend
    on it."""
    slots: int = 0
    """Caches of finished episodes that are kept beside the rows until their group is complete, with rows and the plan
    "reverse_only"; where they are full, rows wait. 0 is as many as there are rows."""
    resample_rounds: int = 0
    """Groups whose episodes cannot be told apart are replaced by new ones, of the tasks that come next, in at most this
    many further rounds a step; 0 is off (dynamic sampling)."""
    capacity: int = 0
    """Tokens that each conversation's cache holds from the start; it grows where that is too little, with a compile for
    every size it passes through. With "where: jit" it holds the longest episode that there can be, whatever is said here."""
    where: Literal["host", "jit"] = "host"
    """Where episodes run: environments of any kind on the host, turn by turn; or, of environments that are functions over
    arrays, whole episodes inside one program. The episodes are the same."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        self._check_rows()
        require(self.capacity >= 0, "rollout.capacity", "at least 0", self.capacity)
        require(self.groups >= 1, "rollout.groups", "at least 1", self.groups)
        require(
            0 <= self.groups_in_flight <= self.groups,
            "rollout.groups_in_flight",
            f"from 0 (all) to {self.groups} (rollout.groups)",
            self.groups_in_flight,
        )
        require(
            self.group_size >= 2,
            "rollout.group_size",
            "at least 2 (advantages compare the episodes of a group)",
            self.group_size,
        )
        rounds = self.resample_rounds
        require(rounds >= 0, "rollout.resample_rounds", "at least 0", rounds)
        require(self.max_tokens >= 1, "rollout.max_tokens", "at least 1", self.max_tokens)
        require(self.max_turns >= 1, "rollout.max_turns", "at least 1", self.max_turns)
        most = self.max_episode_tokens
        require(most >= 0, "rollout.max_episode_tokens", "at least 0", most)
        for name in ("step_timeout", "episode_timeout"):
            seconds = getattr(self, name)
            positive = seconds is None or 0 < seconds < math.inf
            require(positive, f"rollout.{name}", "a positive number or null", seconds)
        penalty = self.parse_error_reward
        require(
            penalty is None or (math.isfinite(penalty) and self.parse_errors != "pass"),
            "rollout.parse_error_reward",
            'a finite number, with rollout.parse_errors "observe" or "end"; or null',
            penalty,
        )
        require(
            0 < self.temperature < math.inf,
            "rollout.temperature",
            "a positive number (evaluations are greedy by themselves)",
            self.temperature,
        )
        require(
            self.top_k == -1 or self.top_k >= 1, "rollout.top_k", "-1 or at least 1", self.top_k
        )
        require(0 < self.top_p <= 1, "rollout.top_p", "more than 0 and at most 1", self.top_p)

    def _check_rows(self) -> None:
        """Check that rows, slots and groups in flight can be had together."""
        episodes = self.groups * self.group_size
        require(
            0 <= self.rows <= episodes,
            "rollout.rows",
            f"from 0 (all) to {episodes} (rollout.groups times rollout.group_size)",
            self.rows,
        )
        require(
            not (self.rows and self.groups_in_flight),
            "rollout.groups_in_flight",
            "0 with rollout.rows, which bound what is in flight by themselves",
            self.groups_in_flight,
        )
        require(
            not self.rows or self.where == "host",
            "rollout.rows",
            '0 with rollout.where "jit", which runs all episodes in flight at once',
            self.rows,
        )
        require(self.slots >= 0, "rollout.slots", "at least 0", self.slots)
        require(
            bool(self.rows) or not self.slots,
            "rollout.slots",
            "0 without rollout.rows: there, every episode keeps its row",
            self.slots,
        )
        places = self.rows + (self.slots or self.rows)
        require(
            not self.rows or places >= self.group_size,
            "rollout.rows",
            f"rows and slots for a whole group of {self.group_size} (rollout.group_size), together",
            places,
        )

    @property
    def in_flight(self) -> int:
        """Groups that are sampled side by side."""
        return self.groups_in_flight or self.groups

    @property
    def groups_together(self) -> int:
        """Groups whose caches come at once: those in flight, or one at a time where rows refill."""
        return 1 if self.rows else self.in_flight

    @property
    def cache_rows(self) -> int:
        """Rows of the cache at most, those of slots and of what groups begin with among them."""
        if self.rows:
            return self.rows + (self.slots or self.rows) + prefixes_of(self.rows, self.group_size)
        return self.in_flight * (self.group_size + 1)


@dataclass(frozen=True)
class TruncationConfig:
    """What becomes of episodes that a limit cut, and of those that come near one. To be cut is not to fail."""

    episodes: Literal["train", "mask"] = "train"
    """"train" takes a truncated episode with the reward that it has; "mask" leaves it out of training, and out of what the
    others of its group are compared with."""
    reasons: tuple[str, ...] = (
        "length",
        "overflow",
        "max_turns",
        "max_episode_tokens",
        "episode_timeout",
    )
    """Stop reasons that are limits; an episode whose last reply was cut is truncated whatever its stop reason."""
    budget: int = 0
    """Sampled tokens of an episode from which on its reward is lessened by 1; 0 is no penalty."""
    cache: int = 0
    """Tokens before the budget over which the penalty grows from 0 to 1, in proportion; 0 is at once."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.budget >= 0, "truncation.budget", "at least 0", self.budget)
        require(
            0 <= self.cache <= self.budget,
            "truncation.cache",
            f"from 0 to {self.budget} (truncation.budget)",
            self.cache,
        )
