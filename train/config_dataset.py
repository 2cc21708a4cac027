"""What a run over a data set is: supervised fine-tuning, and preferences (DPO)."""

import math
from dataclasses import dataclass, field
from typing import Literal

from mintjax.train.config import EvaluationConfig, OptimizerConfig, PolicyConfig
from mintjax.train.config_checks import check_run, require


@dataclass(frozen=True)
class RowsConfig:
    """How examples are laid out as rows, and how the gradient over them is computed."""

    plan: Literal["packed", "segments"] = "packed"
    """Whole rows, or a scan over segments that carries the cache, for rows that are too long for the memory there is."""
    rows: int = 4
    """Rows in one micro-batch; gradients of micro-batches are summed."""
    row_tokens: int = 1024
    """Most tokens in a row. A longer example is refused."""
    packing: bool = True
    """Put several documents into one row, where they do not see each other; the plan "packed" alone can. Without it each
    document has a row, padded to the longest of its micro-batch, and rows are sorted by length."""
    segment: int = 128
    """Tokens in a segment of the plan "segments"."""
    remat: bool = False
    """Keep each layer's input alone for the backward pass and recompute the rest."""
    attention: Literal["auto", "blockwise", "cudnn", "splash"] = "auto"
    """What computes attention: "auto" is "blockwise" for packed documents, else as in mintjax train."""

    def __post_init__(self) -> None:
        """Check the sizes, and that packed documents stay apart."""
        require(self.rows >= 1, "gradients.rows", "at least 1", self.rows)
        require(self.row_tokens >= 2, "gradients.row_tokens", "at least 2", self.row_tokens)
        require(self.segment >= 1, "gradients.segment", "at least 1", self.segment)
        if self.packing:
            require(
                self.plan == "packed",
                "gradients.plan",
                '"packed" with gradients.packing, or gradients.packing false',
                self.plan,
            )
            require(
                self.attention in ("auto", "blockwise"),
                "gradients.attention",
                "auto or blockwise with gradients.packing, or gradients.packing false",
                self.attention,
            )


@dataclass(frozen=True)
class HeldOutConfig(EvaluationConfig):
    """When the loss of other data is computed."""

    data: str | None = None
    """JSONL file of examples that are not trained on; null is none."""


@dataclass(frozen=True)
class SavesConfig:
    """When checkpoints are written and which are kept."""

    every: int = 10
    """Steps between two checkpoints; the last step always has one."""
    keep_last: int = 2
    """How many of the newest are kept."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.every >= 1, "checkpoint.every", "at least 1", self.every)
        require(self.keep_last >= 1, "checkpoint.keep_last", "at least 1", self.keep_last)


@dataclass(frozen=True)
class DatasetConfig:
    """What runs over any data set have in common."""

    name: str
    """Name of the run; its directory is <root>/<name>."""
    data: str
    """JSONL file, one example a line; or the name of a shipped one."""
    root: str = "runs"
    """Directory that holds the run directories."""
    seed: int = 0
    """Seed of the adapter and of the order of the examples."""
    steps: int = 100
    """Optimizer steps in all."""
    batch: int = 32
    """Examples a step. All come once, shuffled, before any comes again."""
    renderer: str = "smollm2"
    """Chat format, by the name that get_renderer takes."""
    model: PolicyConfig = field(default_factory=PolicyConfig)
    """The base model and its adapter."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The optimizer."""
    gradients: RowsConfig = field(default_factory=RowsConfig)
    """Rows and gradients."""
    checkpoint: SavesConfig = field(default_factory=SavesConfig)
    """Checkpoints."""
    evaluation: HeldOutConfig = field(default_factory=HeldOutConfig)
    """Evaluations on data that is held out."""

    def __post_init__(self) -> None:
        """Check the fields that no section checks."""
        check_run(self.name, self.steps, self.seed)
        require(self.batch >= 1, "batch", "at least 1", self.batch)


@dataclass(frozen=True)
class SftConfig(DatasetConfig):
    """Supervised fine-tuning on conversations."""

    train_on: Literal[
        "last_assistant_message",
        "last_assistant_turn",
        "all_assistant_messages",
        "all_messages",
        "all_tokens",
        "all_user_and_system_messages",
        "customized",
    ] = "all_assistant_messages"
    """Which messages of a conversation train. "customized" takes those whose key "trainable" is true."""
    normaliser: Literal["batch_tokens", "example_tokens"] = "batch_tokens"
    """The loss is the mean over all trained tokens of a batch, or the mean over its examples of each one's own mean."""


@dataclass(frozen=True)
class DpoConfig(DatasetConfig):
    """Direct preference optimisation on chosen and rejected replies."""

    beta: float = 0.1
    """How dear it is to leave the base model: the smaller, the farther the policy goes."""

    def __post_init__(self) -> None:
        """Check the range, and that a pair fits into a micro-batch."""
        super().__post_init__()
        require(0 < self.beta < math.inf, "beta", "a positive number", self.beta)
        options = self.gradients
        require(
            options.packing or options.rows % 2 == 0,
            "gradients.rows",
            "an even number without gradients.packing, since a pair takes two rows",
            options.rows,
        )
