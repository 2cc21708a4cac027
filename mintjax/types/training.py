"""What the training client takes beside data, and what it returns."""

from dataclasses import dataclass, field
from typing import Any

from mintjax.types.tensor_data import TensorData


@dataclass(frozen=True)
class AdamParams:
    """One step of AdamW. All may change from step to step; nothing is compiled again.

    Attributes:
        learning_rate: of this step.
        beta1: decay of the gradient's mean.
        beta2: decay of the mean of its square.
        eps: added to the root of the mean square.
        weight_decay: times the learning rate, taken from the adapter.
        grad_clip_norm: a gradient of a larger global norm is scaled down to it; 0 is off.
    """

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True)
class LoraConfig:
    """The adapter of a new training client.

    Attributes:
        rank: of each pair of factors.
        seed: of the random initial factors; None is 0.
        train_unembed: whether the unembedding has an adapter.
        train_mlp: whether the MLP's linears have one.
        train_attn: whether the attention's linears have one.
    """

    rank: int
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


@dataclass(frozen=True)
class ForwardBackwardOutput:
    """What a loss gave.

    Attributes:
        loss_fn_output_type: the form of the outputs; there is one.
        loss_fn_outputs: for each datum ``{"logprobs": TensorData}``, shaped as its targets.
        metrics: ``loss:sum``, and what a custom loss reports.
    """

    loss_fn_output_type: str
    loss_fn_outputs: list[dict[str, TensorData]]
    metrics: dict[str, float]


@dataclass(frozen=True)
class OptimStepResponse:
    """What a step did: ``grad_norm`` before clipping, and the number of the ``step``."""

    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SaveWeightsResponse:
    """Where a training checkpoint is."""

    path: str


@dataclass(frozen=True)
class SaveWeightsForSamplerResponse:
    """Where a checkpoint for sampling is."""

    path: str


@dataclass(frozen=True)
class LoadWeightsResponse:
    """Which checkpoint was loaded, into which model."""

    path: str
    model_id: str


@dataclass(frozen=True)
class ModelData:
    """A model by architecture, name, and the name of its tokenizer."""

    arch: str
    model_name: str
    tokenizer_id: str


@dataclass(frozen=True)
class GetInfoResponse:
    """What a training client trains."""

    model_data: ModelData
    model_id: str
    is_lora: bool
    lora_rank: int
    model_name: str
    optimizer_config: dict[str, Any] = field(default_factory=lambda: {"type": "adamw"})
