"""What a dense decoder is made of: the one description that layers, loaders and adapters read."""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: its base frequency and how it is scaled past the length it was trained on.

    Attributes:
        kind: ``"default"``, ``"llama3"`` or ``"yarn"``.
        theta: base of the geometric frequencies.
        factor: how many times the original context is stretched (llama3, yarn).
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
    rope: RopeConfig = field(default_factory=RopeConfig)


def like_layer(config: ModelConfig, layer: int, count: int) -> ModelConfig:
    """A model of ``count`` layers that are all like one of another model's: equal for layers of one kind.

    Example:
        >>> len({like_layer(config, layer, 1) for layer in range(config.num_layers)})  # doctest: +SKIP
        1
    """
    if not 0 <= layer < config.num_layers:
        raise IndexError(f"layer: expected one of {config.num_layers}, got {layer}")
    return replace(config, num_layers=count)
