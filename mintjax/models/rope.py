"""Rotary position embedding: the frequencies of each kind of scaling, their tables, their rotation.

The layout is Hugging Face's: entry i of a head's first half rotates with entry i of its second half.
Checkpoints that interleave the two are put into this layout when they are loaded.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mintjax.models.config import ModelConfig, RopeConfig


def rope_frequencies(config: RopeConfig, head_dim: int) -> tuple[np.ndarray, float]:
    """The angle that each pair of a head turns by per token, and the factor on cos and sin.

    Computed in float64 on the host, so that no frequency carries the rounding of a float32 power.

    Args:
        config: kind of scaling and its numbers.
        head_dim: H, entries of one head; even.

    Returns:
        Inverse frequencies in radians a token, float64 ``[H // 2]``, and the attention factor that
        multiplies cos and sin (1 but for yarn).

    Raises:
        ValueError: for an unknown kind, an odd head, or scaling without its original context.

    References:
        RoFormer, arXiv:2104.09864 (default); position interpolation, arXiv:2306.15595 (linear); Llama 3.1's rule, as in
        transformers' ``llama3``; YaRN, arXiv:2309.00071, sections 3.2 to 3.4 (yarn).

    Example:
        >>> rope_frequencies(RopeConfig(theta=10000.0), head_dim=4)
        (array([1.  , 0.01]), 1.0)
    """
    if head_dim % 2:
        raise ValueError(f"head_dim: rotary embedding pairs entries, expected even, got {head_dim}")
    plain = config.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if config.kind == "default":
        return plain, 1.0
    if config.kind == "linear":
        if config.factor < 1:
            raise ValueError(f"rope: linear needs factor >= 1, got factor={config.factor}")
        return plain / config.factor, 1.0
    if config.kind not in ("llama3", "yarn"):
        raise ValueError(
            f"rope.kind: expected 'default', 'linear', 'llama3' or 'yarn', got {config.kind!r}; "
            "this kind of scaling is not implemented"
        )
    if config.original_context <= 0 or config.factor < 1:
        raise ValueError(
            f"rope: {config.kind} needs original_context > 0 and factor >= 1, got "
            f"original_context={config.original_context}, factor={config.factor}; give the context "
            "that the model was trained on and how many times it is stretched"
        )
    if config.kind == "llama3":
        return _llama3(config, plain), 1.0
    attention_factor = config.attention_factor
    if attention_factor is None:
        attention_factor = yarn_attention_factor(config.factor)
    return _yarn(config, plain), attention_factor


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """YaRN's multiplier of cos and sin, ``0.1 * mscale * ln(factor) + 1``.

    Args:
        factor: how many times the original context is stretched.
        mscale: DeepSeek's weight on the logarithm; 1 in the paper.

    Returns:
        The multiplier; 1 where nothing is stretched.

    References:
        YaRN, arXiv:2309.00071, eq. 22.

    Example:
        >>> yarn_attention_factor(1.0)
        1.0
    """
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


Tables = tuple[Float[Array, "B S half"], Float[Array, "B S half"]]


def layer_tables(config: ModelConfig, positions: Int[Array, "B S"]) -> tuple[Tables, ...]:
    """The tables of every layer; layers that rotate alike have the very same ones.

    Args:
        config: the decoder.
        positions: index of each token in its row's stream, from 0.

    Returns:
        For each layer what :func:`rope_tables` returns.

    Raises:
        ValueError: as ``rope_frequencies``.

    Example:
        >>> cos, sin = layer_tables(config, jnp.arange(8)[None])[0]  # doctest: +SKIP
    """
    ropes = [config.rope_of(layer) for layer in range(config.num_layers)]
    tables = {rope: rope_tables(rope, config.head_dim, positions) for rope in dict.fromkeys(ropes)}
    return tuple(tables[rope] for rope in ropes)


def rope_tables(config: RopeConfig, head_dim: int, positions: Int[Array, "B S"]) -> Tables:
    """Cos and sin of every pair's angle at every position, attention factor included.

    Args:
        config: kind of scaling and its numbers.
        head_dim: H, entries of one head.
        positions: index of each token in its row's stream, from 0.

    Returns:
        Cos and sin, float32 ``[B, S, H // 2]``; float64 where jax runs with x64.

    Raises:
        ValueError: as ``rope_frequencies``.

    Example:
        >>> cos, sin = rope_tables(config, 128, jnp.arange(8)[None])  # doctest: +SKIP
    """
    frequencies, factor = rope_frequencies(config, head_dim)
    angles = positions[..., None].astype(jnp.result_type(float)) * jnp.asarray(frequencies)
    cos, sin = jax.lax.platform_dependent(angles, cpu=_cos_then_sin, default=_cos_and_sin)
    return cos * factor, sin * factor


def _cos_and_sin(angles: Float[Array, "B S half"]) -> Tables:
    return jnp.cos(angles), jnp.sin(angles)


def _cos_then_sin(angles: Float[Array, "B S half"]) -> Tables:
    """The same, in a loop over the two.

    XLA fuses nothing with the body of a loop. On CPU it would fuse the tables with all that reads them, so that every head
    of every layer made cosines of its own; a barrier does not keep jax 0.10 from that.
    """
    cos, sin = jax.lax.map(
        lambda which: jax.lax.switch(which, (jnp.cos, jnp.sin), angles), jnp.arange(2)
    )
    return cos, sin


def apply_rope(
    x: Float[Array, "B S heads H"], cos: Float[Array, "B S half"], sin: Float[Array, "B S half"]
) -> Float[Array, "B S heads H"]:
    """Turns queries or keys to their positions.

    Args:
        x: queries or keys, ``[B, S, heads, H]``.
        cos: table of ``rope_tables`` at the same positions, ``[B, S, H // 2]``.
        sin: the other table, ``[B, S, H // 2]``.

    Returns:
        The rotated x in its own dtype. The rotation itself runs in float32 at least: bfloat16 would
        round the angles' cosines to three digits.

    Example:
        >>> queries = apply_rope(queries, *rope_tables(config, 128, positions))  # doctest: +SKIP
    """
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    cos, sin = cos[..., None, :].astype(dtype), sin[..., None, :].astype(dtype)
    first, second = jnp.split(x.astype(dtype), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def _llama3(config: RopeConfig, plain: np.ndarray) -> np.ndarray:
    """Long wavelengths are stretched, short ones kept, those of the band between are blended."""
    rotations = config.original_context * plain / (2 * np.pi)
    band = config.high_freq_factor - config.low_freq_factor
    kept = np.clip((rotations - config.low_freq_factor) / band, 0.0, 1.0)
    return plain * (kept + (1 - kept) / config.factor)


def _yarn(config: RopeConfig, plain: np.ndarray) -> np.ndarray:
    """Dimensions up to the band are kept, those past it stretched; a linear ramp between."""
    head_dim = 2 * len(plain)

    def dimension(rotations: float) -> float:
        """The dimension that turns so many times over the original context (inverse of plain)."""
        ratio = config.original_context / (rotations * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(config.theta))

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp, and no division by zero
    stretched = np.clip((np.arange(len(plain)) - low) / (high - low), 0.0, 1.0)
    return plain * (1 - stretched) + plain / config.factor * stretched
