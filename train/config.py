"""What a training run is: frozen dataclasses, one a section of the YAML file.

The text below a field is its documentation: ``mintjax train --help`` prints it. Files and command
lines become these values in ``mintjax.train.config_files``; draccus is known to the ``config*``
modules alone. A value that makes no sense is refused when the dataclass is made, so a
``TrainConfig`` that exists is a legal one.

    >>> CheckpointConfig(every=0)
    Traceback (most recent call last):
    mintjax.train.config_checks.ConfigError: checkpoint.every: expected at least 1, got 0
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mintjax.renderers import Renderer
from mintjax.train.byte_sizes import parse_bytes
from mintjax.train.config_checks import ConfigError, check_run, require
from mintjax.train.config_kinds import Kind, Kinds, kind_name, registering
from mintjax.train.config_references import KlConfig, TeacherConfig
from mintjax.train.config_rollout import RolloutConfig, TruncationConfig
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
    segment: int | None = None
    """Tokens in a segment of the plans "segments" and "reverse_only": the longer, the faster, and the more memory. With null
    the plan "auto" takes the most of 256, 128, 64 and 32 that fit; a plan that is named takes 128."""
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
        segment = self.segment
        require(segment is None or segment >= 1, "gradients.segment", "at least 1 or null", segment)
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
        check_run(self.name, self.steps, self.seed)
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
