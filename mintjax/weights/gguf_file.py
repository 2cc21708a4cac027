"""A GGUF file becomes a configuration and base weights: metadata, dequantisation, rotary layout."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from mintjax.models.config import ModelConfig, RopeConfig
from mintjax.models.rope import rope_frequencies
from mintjax.weights.stored import Stored
from mintjax.weights.tensors import assemble_base

if TYPE_CHECKING:
    from gguf import GGUFReader

ARCHITECTURES = ("llama", "qwen3")

_TOP = {"embed": "token_embd.weight", "norm": "output_norm.weight", "unembed": "output.weight"}
_LAYER = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_ROPE_DIVISORS = "rope_freqs.weight"

# Metadata of an architecture that is understood; any other may ask for what is not implemented.
_KNOWN = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
}

# Llama 3.1 and later: GGUF keeps their divisors of the frequencies, not the rule that they came from.
_LLAMA3 = {"original_context": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_RTOL = 1e-5


def open_gguf(path: Path) -> "GGUFReader":
    """Opens a GGUF file and reads its metadata; tensors stay on disk until they are asked for.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: where it is not whole.

    Example:
        >>> reader = open_gguf(Path("model.gguf"))  # doctest: +SKIP
    """
    from gguf import GGUFReader

    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        return GGUFReader(path)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}: not a whole GGUF file: {error}") from error


def metadata(reader: "GGUFReader") -> dict[str, Any]:
    """The key-value pairs of a GGUF file as plain Python values.

    Example:
        >>> metadata(open_gguf(Path("model.gguf")))["general.architecture"]  # doctest: +SKIP
        'llama'
    """
    return {key: field.contents() for key, field in reader.fields.items()}


def load_gguf(
    path: Path, name: str, *, dtype: Any = None, mesh: Mesh | None = None
) -> tuple[ModelConfig, dict[str, Any]]:
    """Loads a GGUF file of the llama or qwen3 architecture.

    Args:
        path: the file.
        name: what the policy is called by.
        dtype: dtype of the weights; None is float32, to which they are dequantised.
        mesh: devices to spread them over.

    Returns:
        The configuration and the tree of ``Policy.base``.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: for metadata or a tensor that does not fit, named.

    Example:
        >>> config, base = load_gguf(Path("model.gguf"), "model")  # doctest: +SKIP
    """
    reader = open_gguf(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    config = config_of(reader, name)
    interleaved = reader.fields["general.architecture"].contents() == "llama"

    def read_weight(tensor: str) -> np.ndarray:
        try:
            weight = _values(tensors[tensor])
        except NotImplementedError as error:
            raise ValueError(f"{path}: {tensor}: {error}; quantise the file otherwise") from error
        if interleaved and tensor.endswith((".attn_q.weight", ".attn_k.weight")):
            return halves_from_interleaved(weight, config.head_dim)
        return weight

    base = assemble_base(
        config,
        lambda key: (Stored(_tensor_name(key)),),
        tensors.keys() - {_ROPE_DIVISORS},
        read_weight,
        source=str(path),
        dtype=jnp.float32 if dtype is None else dtype,
        mesh=mesh,
    )
    return config, base


def config_of(reader: "GGUFReader", name: str) -> ModelConfig:
    """Reads the configuration of an open file: its metadata, and which tensors there are.

    Args:
        reader: the file.
        name: what the policy is called by.

    Returns:
        The decoder's description.

    Raises:
        ValueError: for what is not implemented or does not fit, named.

    Example:
        >>> config_of(open_gguf(Path("model.gguf")), "model").num_layers  # doctest: +SKIP
        30
    """
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = gguf_config(metadata(reader), name, tied_head="output.weight" not in tensors)
    if _ROPE_DIVISORS not in tensors:
        return config
    return _with_divisors(config, _values(tensors[_ROPE_DIVISORS]))


def gguf_config(fields: Mapping[str, Any], name: str, *, tied_head: bool) -> ModelConfig:
    """Reads the configuration from a file's metadata.

    Args:
        fields: the metadata, as :func:`metadata` gives it.
        name: what the policy is called by.
        tied_head: whether the file has no output tensor.

    Returns:
        The decoder's description.

    Raises:
        ValueError: for another architecture, a missing field, or one that asks for what is not
            implemented, with its value.

    Example:
        >>> gguf_config(metadata(reader), "model", tied_head=True)  # doctest: +SKIP
    """
    kind = fields.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise ValueError(
            f"{name}: general.architecture: expected one of {ARCHITECTURES}, got {kind!r}; this "
            "architecture is not implemented"
        )
    prefix = f"{kind}."
    own = {key[len(prefix) :]: value for key, value in fields.items() if key.startswith(prefix)}
    if own.get("rope.scaling.type") == "none":
        del own["rope.scaling.type"]
    unknown = {prefix + key: own[key] for key in own.keys() - _KNOWN}
    if unknown:
        raise ValueError(
            f"{name}: the decoder does not implement what these fields may ask for: {unknown}; load "
            "the model from safetensors"
        )

    def required(key: str) -> Any:
        if key not in own:
            raise ValueError(f"{name}: GGUF lacks the field {prefix}{key}; convert the model again")
        return own[key]

    heads, hidden = required("attention.head_count"), required("embedding_length")
    head_dim = own.get("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.get(key, head_dim) != head_dim:
            raise ValueError(
                f"{name}: {prefix}{key}: expected {head_dim}, the whole head, got {own[key]}"
            )
    return ModelConfig(
        name=name,
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=hidden,
        intermediate_size=required("feed_forward_length"),
        num_layers=required("block_count"),
        num_heads=heads,
        num_kv_heads=own.get("attention.head_count_kv", heads),
        head_dim=head_dim,
        context=required("context_length"),
        norm_eps=required("attention.layer_norm_rms_epsilon"),
        qk_norm=kind == "qwen3",
        tied_head=tied_head,
        rope=RopeConfig(theta=own.get("rope.freq_base", 10000.0)),
    )


def halves_from_interleaved(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Undoes llama.cpp's order of query and key rows.

    For the llama architecture it stores row i of a head's first half, then row i of its second half,
    in turn; everywhere here, as at Hugging Face, the second half follows the first.

    Args:
        weight: ``[heads * head_dim, in]``.
        head_dim: H, rows of one head.

    Returns:
        The same rows, reordered within each head.

    Example:
        >>> halves_from_interleaved(np.array([[0], [2], [1], [3]]), 4).ravel()
        array([0, 1, 2, 3])
    """
    pairs = weight.reshape(-1, head_dim // 2, 2, weight.shape[-1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _tensor_name(key: str) -> str:
    """GGUF's name for a base weight's dotted name."""
    if key in _TOP:
        return _TOP[key]
    _, layer, weight = key.split(".")
    return f"blk.{layer}.{_LAYER[weight]}.weight"


def _values(tensor: Any) -> np.ndarray:
    """A tensor of a GGUF file, dequantised."""
    from gguf import dequantize

    return dequantize(tensor.data, tensor.tensor_type)


def _with_divisors(config: ModelConfig, divisors: np.ndarray) -> ModelConfig:
    """Recognises the llama3 rule in the divisors of the frequencies, or refuses them."""
    plain, _ = rope_frequencies(config.rope, config.head_dim)
    rope = RopeConfig("llama3", config.rope.theta, float(divisors.max()), **_LLAMA3)
    scaled, _ = rope_frequencies(rope, config.head_dim)
    if not np.allclose(plain / scaled, divisors, rtol=_LLAMA3_RTOL, atol=0):
        raise ValueError(
            f"{config.name}: {_ROPE_DIVISORS}: expected the divisors of llama3 scaling with "
            f"{_LLAMA3}, got {divisors}; load the model from safetensors"
        )
    return replace(config, rope=rope)
