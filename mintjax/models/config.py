"""What a decoder is made of: the one description that layers, loaders and adapters read."""

from dataclasses import dataclass, field, replace
from typing import Literal

from mintjax.models.expert_config import ExpertsConfig
from mintjax.models.latent_config import LatentConfig


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: its base frequency and how it is scaled past the length it was trained on.

    Attributes:
        kind: ``"default"``, ``"linear"``, ``"llama3"`` or ``"yarn"``.
        theta: base of the geometric frequencies.
        factor: how many times the original context is stretched (linear, llama3, yarn).
        original_context: tokens of context before scaling (llama3, yarn).
        low_freq_factor, high_freq_factor: the llama3 band between scaled and unscaled frequencies.
        beta_fast, beta_slow: the yarn band, in rotations over the original context.
        attention_factor: yarn's multiplier of cos and sin; None derives it from ``factor`` (YaRN, eq. 22).
        truncate: whether yarn rounds its band to whole dimensions.
    """

    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """A dense decoder. Static: hashable, part of a policy's tree structure.

    Attributes:
        context: tokens that a conversation may have.
        qk_norm: whether queries and keys are normed head by head.
        tied_head: whether the head is the embedding.
        biases: the linears of each layer that have a bias.
        windows: for each layer the tokens that a query sees at most, itself included, or None; empty where none has one.
        window_rope: rotary embedding of the layers with a window; None is ``rope``.
        sinks: whether attention has a learned score for each query head beside those of the keys.
        query_scale: what queries are multiplied by, beside attention's own 1/sqrt(head_dim).
        activation: of the MLP's gate.
        norm_offset: what is added to every norm's weight.
        post_norms: whether attention and MLP have a norm behind them too.
        embed_scale: what embeddings are multiplied by, in the embedding's dtype.
        experts: what takes the place of the gated MLP, in the layers that it does not leave dense.
        latent: what takes the place of grouped-query attention; ``num_kv_heads`` is then 1, for all heads see the same
            latents, and ``head_dim`` what is rotated of a head.
    """

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    norm_eps: float = 1e-6
    qk_norm: bool = False
    tied_head: bool = True
    biases: tuple[str, ...] = ()
    windows: tuple[int | None, ...] = ()
    window_rope: RopeConfig | None = None
    sinks: bool = False
    query_scale: float = 1.0
    activation: Literal["silu", "gelu_tanh"] = "silu"
    norm_offset: float = 0.0
    post_norms: bool = False
    embed_scale: float = 1.0
    experts: ExpertsConfig | None = None
    latent: LatentConfig | None = None
    rope: RopeConfig = field(default_factory=RopeConfig)

    def __post_init__(self) -> None:
        """Refuse windows that are not one a layer, and dense layers that are not there."""
        if len(self.windows) not in (0, self.num_layers):
            raise ValueError(
                f"windows: expected one for each of {self.num_layers} layers or none at all, got {len(self.windows)}"
            )
        dense = () if self.experts is None else self.experts.dense_layers
        if list(dense) != sorted(set(dense)) or (
            dense and not 0 <= dense[0] <= dense[-1] < self.num_layers
        ):
            raise ValueError(
                f"experts.dense_layers: expected layers among {self.num_layers}, ascending, got {dense}"
            )

    @property
    def attention_features(self) -> tuple[str, ...]:
        """What the attention of some layer has beside a causal softmax, in words."""
        windows = any(window is not None for window in self.windows)
        latents = self.latent is not None
        return (
            ("sliding windows",) * windows
            + ("attention sinks",) * self.sinks
            + ("latent attention",) * latents
        )

    @property
    def cached(self) -> tuple[tuple[int, int], ...]:
        """What a layer's cache holds of a token: heads, and numbers a head, of each of its buffers."""
        if self.latent is not None:
            return ((1, self.latent.cached),)
        return ((self.num_kv_heads, self.head_dim),) * 2

    def window_of(self, layer: int) -> int | None:
        """Tokens that a query of a layer sees at most; None is all before it."""
        return self.windows[layer] if self.windows else None

    def rope_of(self, layer: int) -> RopeConfig:
        """A layer's rotary embedding."""
        return self.rope if self.window_of(layer) is None else self.window_rope or self.rope

    def experts_of(self, layer: int) -> ExpertsConfig | None:
        """The mixture of experts of a layer; None where it has a gated MLP."""
        dense = self.experts is None or layer in self.experts.dense_layers
        return None if dense else self.experts


def like_layer(config: ModelConfig, layer: int, count: int) -> ModelConfig:
    """A model of ``count`` layers that are all like one of another model's: equal for layers of one kind.

    Example:
        >>> len({like_layer(config, layer, 1) for layer in range(config.num_layers)})  # doctest: +SKIP
        1
    """
    if not 0 <= layer < config.num_layers:
        raise IndexError(f"layer: expected one of {config.num_layers}, got {layer}")
    windows = (config.window_of(layer),) * count if config.windows else ()
    experts = config.experts_of(layer)
    experts = None if experts is None else replace(experts, dense_layers=())
    return replace(config, num_layers=count, windows=windows, experts=experts)
