"""A Hugging Face directory, ``config.json`` and safetensors, becomes a configuration and base weights."""

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh
from safetensors import SafetensorError, safe_open

from mintjax.models.config import ModelConfig
from mintjax.weights.config_json import model_config
from mintjax.weights.families import family_of
from mintjax.weights.scaled import read_float8, unscaled
from mintjax.weights.tensors import assemble_base

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

# Old conversions store the rotary frequencies, which the configuration determines.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def load_directory(
    directory: Path, name: str, *, dtype: Any = None, mesh: Mesh | None = None
) -> tuple[ModelConfig, dict[str, Any]]:
    """Loads a directory as ``save_pretrained`` writes it, in one file or in shards with an index.

    Args:
        directory: holds ``config.json`` and ``model.safetensors`` or its index.
        name: what the policy is called by.
        dtype: dtype of the weights; None keeps the checkpoint's.
        mesh: devices to spread them over.

    Returns:
        The configuration and the tree of ``Policy.base``.

    Raises:
        FileNotFoundError: for a missing file, named.
        ValueError: for a configuration or a tensor that does not fit, named.

    Example:
        >>> config, base = load_directory(Path("model"), "model")  # doctest: +SKIP
    """
    fields = read_json(directory / "config.json")
    config = model_config(fields, name)
    family = family_of(fields, name)
    with ExitStack() as stack:
        homes: dict[str, Any] = {}
        for file, expected in _shards(directory).items():
            path = directory / file
            if not path.exists():
                raise FileNotFoundError(f"{path}: {_INDEX} names this shard; download it again")
            try:
                opened = stack.enter_context(safe_open(path, framework="numpy"))
            except SafetensorError as error:
                raise ValueError(f"{path}: not a whole safetensors file: {error}") from error
            absent = expected - set(opened.keys())
            if absent:
                raise ValueError(f"{path}: {_INDEX} says that it holds {sorted(absent)[:8]}")
            homes |= dict.fromkeys(opened.keys(), (path, opened))

        def read_stored(tensor: str) -> np.ndarray:
            path, opened = homes[tensor]
            if opened.get_slice(tensor).get_dtype() == "F8_E4M3":
                return read_float8(path, tensor)
            return opened.get_tensor(tensor)

        names, read = unscaled(fields.get("quantization_config"), homes, read_stored)
        present = {
            tensor
            for tensor in names
            if not _DERIVED.fullmatch(tensor) and not family.unused(config, tensor)
        }
        head, table = family.tensor_name("unembed"), family.tensor_name("embed")
        if config.tied_head and head in present:
            if not np.array_equal(read(head), read(table)):
                raise ValueError(
                    f"{directory}: tie_word_embeddings is true, but {head} is not {table}; correct "
                    "config.json"
                )
            present.remove(head)
        base = assemble_base(
            config, family.stored, present, read, source=str(directory), dtype=dtype, mesh=mesh
        )
    return config, base


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file that has to be there.

    Raises:
        FileNotFoundError: with what its directory does hold.
        ValueError: where it is not JSON.

    Example:
        >>> read_json(Path("model/config.json"))["model_type"]  # doctest: +SKIP
        'llama'
    """
    if not path.exists():
        names = (
            sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
        )
        raise FileNotFoundError(
            f"{path}: no such file; {path.parent} holds {', '.join(names[:12]) or 'nothing'}"
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error


def _shards(directory: Path) -> dict[str, set[str]]:
    """The weight files of a directory, and the tensors that an index promises of each."""
    if (directory / _SINGLE).exists():
        return {_SINGLE: set()}
    if not (directory / _INDEX).exists():
        raise FileNotFoundError(
            f"{directory}: expected {_SINGLE} or {_INDEX}; save the model with "
            "save_pretrained(..., safe_serialization=True)"
        )
    shards: dict[str, set[str]] = {}
    for tensor, file in read_json(directory / _INDEX)["weight_map"].items():
        shards.setdefault(file, set()).add(tensor)
    return shards
