"""What a training run is: frozen dataclasses, one a section of the YAML file.

The text below a field is its documentation: ``mintjax train --help`` prints it. Files and command
lines become these values in ``mintjax.train.config_files``; draccus is known to the ``config*``
modules alone. A value that makes no sense is refused when the dataclass is made, so a
``TrainConfig`` that exists is a legal one.

    >>> RolloutConfig(groups=2, group_size=1)
    Traceback (most recent call last):
    mintjax.train.config_checks.ConfigError: rollout.group_size: expected at least 2 ..., got 1
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mintjax.renderers import Renderer
from mintjax.train.byte_sizes import parse_bytes
from mintjax.train.config_checks import ConfigError, require
from mintjax.train.config_kinds import Kind, Kinds, kind_name, registering
from mintjax.train.config_references import KlConfig, TeacherConfig
from mintjax.train.corrections import Correction, NoCorrection
from mintjax.train.estimators import Estimator, GroupTurnMean
from mintjax.train.kl_loss import loss_with_kl
from mintjax.train.losses import Loss, Ppo
from mintjax.train.normalisers import NORMALISERS

if TYPE_CHECKING:
    from mintjax.train.pure_environment import PureEnvironment


class EnvironmentConfig(Kinds, ABC):
    """The task, told by its ``type`` key. Every environment module registers its own dataclass."""

    @abstractmethod
    def make(self) -> Any:
        """Return a new environment for one episode, a game, or an instance of a TRL environment class."""

    @abstractmethod
    def tasks(self, position: int, count: int, seed: int) -> Sequence[Any]:
        """Return the tasks that stand at ``position`` to ``position + count - 1`` of the run's endless stream of tasks.

        One a group. The stream depends on the seed alone: however it is cut into calls, its tasks are the same.
        """

    def pure(self, renderer: Renderer) -> "PureEnvironment | None":
        """Return the same environment as functions over arrays, for ``rollout.where`` "jit"; None where there is none."""
        return None


def register_environment(name: str) -> Callable[[Kind], Kind]:
    """Return a class decorator that makes a dataclass the environment called ``name``.

    Args:
        name: what ``environment.type`` says in a YAML file.

    Raises:
        TypeError: if the class is not derived from `EnvironmentConfig`.
        ValueError: if the name is taken by another class.

    Example:
        >>> @register_environment("count_down")
        ... @dataclass(frozen=True)
        ... class CountDownConfig(EnvironmentConfig): ...
    """
    return registering(EnvironmentConfig, name)


@dataclass(frozen=True)
class PolicyConfig:
    """The base model and the adapter that is trained on it."""

    name: str = "smollm2-135m-instruct"
    """A registered name, a Hugging Face directory or hub id, or a GGUF file."""
    rank: int = 16
    """Rank of every LoRA adapter."""
    alpha: float = 32.0
    """LoRA scale; an adapter's output is multiplied by alpha / rank."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Precision of the base weights; null keeps the checkpoint's (float32 for quantised GGUF)."""
    train_attn: bool = True
    """Adapt the attention projections."""
    train_mlp: bool = True
    """Adapt the MLP projections."""
    train_unembed: bool = False
    """Adapt the output head."""

    def __post_init__(self) -> None:
        """Check that something is trained."""
        require(self.rank >= 1, "model.rank", "at least 1", self.rank)
        require(self.alpha > 0, "model.alpha", "a positive number", self.alpha)
        trained = (self.train_attn, self.train_mlp, self.train_unembed)
        require(
            any(trained), "model.train_attn", "true here, in train_mlp or in train_unembed", False
        )


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


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW on the adapter, with clipping by the global norm and a learning rate schedule."""

    learning_rate: float = 3e-4
    """Peak learning rate."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """How the rate goes after the warm-up: it stays, or falls to 0 at the last step."""
    warmup_steps: int = 0
    """Steps over which the rate rises linearly from 0."""
    b1: float = 0.9
    """Decay of the mean of the gradient."""
    b2: float = 0.95
    """Decay of the mean of its square."""
    eps: float = 1e-8
    """Added to the root of the mean square."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    clip_norm: float | None = 1.0
    """Gradients above this global norm are scaled down to it; null is off."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        rate = self.learning_rate
        require(0 <= rate < math.inf, "optimizer.learning_rate", "a number of at least 0", rate)
        require(self.warmup_steps >= 0, "optimizer.warmup_steps", "at least 0", self.warmup_steps)
        require(0 <= self.b1 < 1, "optimizer.b1", "from 0 to less than 1", self.b1)
        require(0 <= self.b2 < 1, "optimizer.b2", "from 0 to less than 1", self.b2)
        require(self.eps > 0, "optimizer.eps", "a positive number", self.eps)
        require(self.weight_decay >= 0, "optimizer.weight_decay", "at least 0", self.weight_decay)
        norm = self.clip_norm
        require(norm is None or norm > 0, "optimizer.clip_norm", "a positive number or null", norm)


@dataclass(frozen=True)
class GradientConfig:
    """How the gradient of the episodes is computed. Every plan gives the same gradient."""

    plan: Literal["auto", "packed", "segments", "reverse_only"] = "auto"
    """One packed row an episode; a scan over segments that carries the cache; or its backward walk alone over the
    cache that the rollout left. "auto" takes the fastest that fits in memory, once for the whole run; docs/memory.md
    says how."""
    memory: int | str | None = None
    """What the plan "auto" lets a gradient take: bytes, or a text such as "2GiB"; null is all that is free when the run
    starts."""
    rows: int = 8
    """Episodes in one micro-batch; gradients of micro-batches are summed. The plan "reverse_only" takes the most that are
    not more than these and are whole groups, or an even part of one."""
    tokens: int | None = None
    """Most tokens in one micro-batch, padding included: where "rows" episodes have more, half as many go together, and so
    on; null is no limit. It bounds memory, and leaves less padding where lengths are uneven."""
    segment: int = 128
    """Tokens in a segment of the plans "segments" and "reverse_only"."""
    remat: bool = False
    """Keep each layer's input alone for the backward pass and recompute the rest; the plan "auto" decides it itself."""
    attention: Literal["auto", "blockwise", "cudnn", "splash"] = "auto"
    """What computes attention: "blockwise" runs anywhere, "cudnn" on NVIDIA GPUs in bfloat16 or float16, "splash" on a
    TPU. "auto" is the platform's own for the plan "packed" where it can serve, otherwise "blockwise"."""

    def __post_init__(self) -> None:
        """Check the sizes, and that nothing is asked for that the plan does not heed."""
        require(self.rows >= 1, "gradients.rows", "at least 1", self.rows)
        tokens = self.tokens
        require(tokens is None or tokens >= 1, "gradients.tokens", "at least 1 or null", tokens)
        require(self.segment >= 1, "gradients.segment", "at least 1", self.segment)
        auto = self.plan == "auto"
        require(
            not (auto and self.remat),
            "gradients.remat",
            'false with gradients.plan "auto", which decides it itself',
            self.remat,
        )
        if self.memory is not None:
            require(auto, "gradients.memory", 'null unless gradients.plan is "auto"', self.memory)
            try:
                parse_bytes(self.memory)
            except ValueError as error:
                raise ConfigError(f"gradients.memory: {error}") from None


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written and which are kept."""

    every: int = 1
    """Steps between two checkpoints; the last step always has one."""
    keep_last: int = 2
    """How many of the newest are kept."""
    keep_best: bool = True
    """Keep the one of the highest reward as well."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.every >= 1, "checkpoint.every", "at least 1", self.every)
        require(self.keep_last >= 1, "checkpoint.keep_last", "at least 1", self.keep_last)


@dataclass(frozen=True)
class EvaluationConfig:
    """When the policy is evaluated: greedily, on as many tasks as a step has episodes."""

    at_start: bool = True
    """Evaluate before the first step."""
    at_end: bool = True
    """Evaluate after the last step."""
    every: int = 0
    """Steps between two evaluations in between; 0 is none."""

    def __post_init__(self) -> None:
        """Check the range."""
        require(self.every >= 0, "evaluation.every", "at least 0", self.every)


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    name: str
    """Name of the run; its directory is <root>/<name>."""
    environment: EnvironmentConfig
    """The task and its settings."""
    root: str = "runs"
    """Directory that holds the run directories."""
    seed: int = 0
    """Seed of the adapter, the tasks and every sample."""
    steps: int = 10
    """Optimizer steps in all."""
    renderer: str = "smollm2"
    """Chat format, by the name that get_renderer takes."""
    model: PolicyConfig = field(default_factory=PolicyConfig)
    """The base model and its adapter."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """How episodes are sampled."""
    truncation: TruncationConfig = field(default_factory=TruncationConfig)
    """Episodes that a limit cut."""
    advantage: Estimator = field(default_factory=GroupTurnMean)
    """How episodes are compared."""
    normaliser: str = "batch_tokens"
    """What advantages are divided by, so that the sum over tokens is the mean one wants."""
    loss: Loss = field(default_factory=Ppo)
    """The loss on sampled tokens."""
    kl: KlConfig = field(default_factory=KlConfig)
    """A penalty for leaving the base model."""
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    """A model to distil on the policy's own samples."""
    correction: Correction = field(default_factory=NoCorrection)
    """Weights for a sampler that is not quite the policy. With one, the loss compares with the policy before the update
    instead of the sampler, so that its ratio is 1 and the bounds of the correction alone act."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The optimizer."""
    gradients: GradientConfig = field(default_factory=GradientConfig)
    """How gradients are computed."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Checkpoints."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Evaluations."""

    def __post_init__(self) -> None:
        """Check the fields that no section checks."""
        plain = self.name not in ("", ".", "..") and not set(self.name) & set("/\\")
        require(plain, "name", "a directory name without slashes", self.name)
        require(self.steps >= 1, "steps", "at least 1", self.steps)
        require(0 <= self.seed < 2**32, "seed", "from 0 to 2**32 - 1", self.seed)
        normalisers = " or ".join(NORMALISERS)
        require(self.normaliser in NORMALISERS, "normaliser", normalisers, self.normaliser)
        walked = self.gradients.plan in ("auto", "reverse_only")
        expected = '0 unless gradients.plan is "reverse_only": no other keeps caches'
        require(walked or not self.rollout.slots, "rollout.slots", expected, self.rollout.slots)
        most, soft = self.rollout.max_turns * self.rollout.max_tokens, self.truncation
        require(
            soft.budget < most + soft.cache,
            "truncation.budget",
            f"less than {most} (rollout.max_turns * rollout.max_tokens, the most tokens of an episode) plus "
            "truncation.cache, since no episode would meet the penalty",
            soft.budget,
        )
        rounds = self.rollout.resample_rounds
        require(
            not (rounds and self.advantage.whole_batch),
            "rollout.resample_rounds",
            f"0 with advantage.type {kind_name(self.advantage)}, which compares the whole batch: whether a group can be "
            "told apart is known at its end alone",
            rounds,
        )
        refusal = self.accumulation_refusal
        if self.gradients.plan == "reverse_only" and refusal:
            raise ConfigError(f"gradients.plan: {refusal}")

    @property
    def full_loss(self) -> Loss:
        """The loss that gradients are taken of, with all that the configuration puts around it."""
        return loss_with_kl(self.correction.around(self.loss), self.kl)

    @property
    def accumulation_refusal(self) -> str | None:
        """Why no gradient can be taken while a batch is being sampled, as "reverse_only" does; None where one can."""
        cure = 'set gradients.plan to "segments" or "packed", which take it from the whole batch'
        loss = type(self.loss).__name__
        if self.advantage.whole_batch:
            name = kind_name(self.advantage)
            return (
                f'advantage.type {name} compares the whole batch, and "reverse_only" takes the gradient of some groups '
                f"before the others are sampled; {cure}"
            )
        if self.kl.needs_whole_batch:
            return (
                'kl.centre "batch" takes the mean over the whole batch, and "reverse_only" takes the gradient of some groups '
                f'before the others are sampled; set kl.centre to "group", or {cure}'
            )
        if not self.full_loss.scales_with_advantages:
            return (
                f"the loss {loss} is not proportional to the advantages (scales_with_advantages), and what normaliser "
                f'{self.normaliser!r} divides them by is known at the end of a batch alone, too late for "reverse_only"; '
                f"{cure}"
            )
        if self.full_loss.whole_rows:
            what = f"the loss {loss}" if self.loss.whole_rows else "correction.level 'sequence'"
            return f'{what} needs whole rows, and "reverse_only" takes pieces of them; {cure}'
        return None
