"""Checkpoints in few bits: numbers of 8 or 4 bits with a scale for each block of them, read as bfloat16.

| ``quant_method`` | a weight ``w`` is | whose |
|---|---|---|
| ``fp8`` | ``w`` in float8 (e4m3), and ``w_scale_inv``, a factor for each block of rows and columns | DeepSeek-V3 (arXiv:2412.19437, section 3.3), Kimi-K2, Qwen3's FP8 releases |
| ``mxfp4`` | ``w_blocks``, two numbers a byte in groups of 32, and ``w_scales``, a power of two for each group | gpt-oss (OCP Microscaling Formats 1.0) |

A model is computed in bfloat16 then, activations too, and not in the few bits.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

Read = Callable[[str], np.ndarray]

_SCALE, _BLOCKS, _SCALES = "_scale_inv", "_blocks", "_scales"
# Fields of a quantization_config; those without values say what is not stored so, which the tensors' names tell too.
_FIELDS: dict[str, dict[str, tuple[Any, ...] | None]] = {
    "fp8": {
        "quant_method": ("fp8",),
        "fmt": ("e4m3",),
        "activation_scheme": ("dynamic",),
        "weight_block_size": None,
        "modules_to_not_convert": None,
    },
    "mxfp4": {"quant_method": ("mxfp4",), "modules_to_not_convert": None},
}
# E2M1: a sign, two bits of exponent, one of fraction. The low half of a byte comes first.
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_FP4 = np.concatenate([_E2M1, -_E2M1])


def scaled_problems(quantization: Any) -> Iterator[str]:
    """What of a ``quantization_config`` is not read here, in words.

    Example:
        >>> list(scaled_problems({"quant_method": "awq"}))
        ["quantization_config={'quant_method': 'awq'} (only quant_method 'fp8' or 'mxfp4')"]
    """
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    if method not in _FIELDS:
        known = " or ".join(map(repr, _FIELDS))
        yield f"quantization_config={quantization!r} (only quant_method {known})"
        return
    for key, value in quantization.items():
        allowed = _FIELDS[method].get(key, ())
        if value is not None and allowed is not None and value not in allowed:
            wanted = f"only {allowed[0]!r}" if allowed else "unknown"
            yield f"quantization_config.{key}={value!r} ({wanted})"
    size = quantization.get("weight_block_size")
    if method == "fp8" and not (
        isinstance(size, list)
        and len(size) == 2
        and all(isinstance(n, int) and n > 0 for n in size)
    ):
        yield f"quantization_config.weight_block_size={size!r} (only two numbers)"


def unscaled(
    quantization: Mapping[str, Any] | None, present: Collection[str], read: Read
) -> tuple[set[str], Read]:
    """A checkpoint as if its weights were stored whole.

    Args:
        quantization: ``quantization_config``, of which there are no :func:`scaled_problems`; None where there is none.
        present: names of its tensors.
        read: the tensor of a name.

    Returns:
        The names that there are then, and what reads them, in bfloat16 where there is a scale.

    Raises:
        ValueError: for a scale without its numbers, or numbers of 4 bits without their scales.

    Example:
        >>> names, read = unscaled(fields.get("quantization_config"), arrays, arrays.get)  # doctest: +SKIP
    """
    names = set(present)
    if quantization is None:
        return names, read
    whole: dict[str, Callable[[], np.ndarray]] = {}
    if quantization["quant_method"] == "fp8":
        rows, columns = quantization["weight_block_size"]
        for scale in sorted(name for name in present if name.endswith(_SCALE)):
            weight = scale.removesuffix(_SCALE)
            _require(weight, scale, present)
            whole[weight] = lambda w=weight, s=scale: from_blocks(read(w), read(s), (rows, columns))
            names.discard(scale)
    else:
        for blocks in sorted(name for name in present if name.endswith(_BLOCKS)):
            weight = blocks.removesuffix(_BLOCKS)
            scales = weight + _SCALES
            _require(scales, blocks, present)
            # Groups lie along what a product sums over, the last dimension; stored whole, that is the first.
            whole[weight] = lambda b=blocks, s=scales: from_groups(read(b), read(s)).swapaxes(
                -1, -2
            )
            names -= {blocks, scales}
    names |= whole.keys()
    return names, lambda name: whole[name]() if name in whole else read(name)


def _require(missing: str, there: str, present: Collection[str]) -> None:
    if missing not in present:
        raise ValueError(
            f"{missing}: the checkpoint has {there}, which means nothing without it; download it again"
        )


def from_blocks(weight: np.ndarray, scale: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """A matrix of which each block has a factor; the last blocks of its rows and columns may be smaller.

    Args:
        weight: ``[out, in]`` in float8.
        scale: float ``[out / rows, in / columns]``, rounded up.
        block: rows and columns of a block.

    Returns:
        ``[out, in]`` in bfloat16.

    Raises:
        ValueError: for a scale of another shape.

    Example:
        >>> from_blocks(np.ones((3, 4), np.float32), np.full((2, 1), 2, np.float32), (2, 4)).shape
        (3, 4)
    """
    expected = tuple(-(-size // step) for size, step in zip(weight.shape, block, strict=True))
    if scale.shape != expected:
        raise ValueError(
            f"scale: a weight of {weight.shape} in blocks of {block} needs {expected}, got {scale.shape}"
        )
    factors = np.asarray(scale, np.float32)
    for axis, step in enumerate(block):
        factors = factors.repeat(step, axis).take(range(weight.shape[axis]), axis)
    return (weight.astype(np.float32) * factors).astype(jnp.bfloat16)


def from_groups(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Numbers of 4 bits, of which each group of 32 has a power of two.

    Args:
        blocks: uint8 ``[..., groups, 16]``, two numbers a byte.
        scales: uint8 ``[..., groups]``, the exponent and 127.

    Returns:
        ``[..., groups * 32]`` in bfloat16.

    Raises:
        ValueError: for scales of another shape.

    Example:
        >>> from_groups(np.full((1, 16), 0x32, np.uint8), np.array([127], np.uint8))[:2].tolist()
        [1, 1.5]
    """
    if scales.shape != blocks.shape[:-1]:
        raise ValueError(
            f"scales: expected {blocks.shape[:-1]}, a number a group, got {scales.shape}"
        )
    pairs = np.stack([_FP4[blocks & 15], _FP4[blocks >> 4]], -1)
    numbers = np.ldexp(pairs, scales.astype(np.int32)[..., None, None] - 127)
    return numbers.reshape(*blocks.shape[:-2], -1).astype(jnp.bfloat16)


def read_float8(path: Path, tensor: str) -> np.ndarray:
    """A tensor of float8 (e4m3) from a safetensors file, whose own reader for numpy does not know the type.

    Example:
        >>> read_float8(Path("model.safetensors"), "model.layers.0.mlp.up_proj.weight")  # doctest: +SKIP
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))[tensor]
    first, last = header["data_offsets"]
    bytes_of = np.memmap(path, np.uint8, "r", 8 + size + first, (last - first,))
    return bytes_of.view(jnp.dtype(jnp.float8_e4m3fn)).reshape(header["shape"])
