"""Models and tokenizers by path or name."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mintjax.adapters import LoraConfig, init_adapter
from mintjax.models.config import ModelConfig
from mintjax.policy import Policy
from mintjax.weights.config_json import model_config
from mintjax.weights.gguf_file import config_of, load_gguf, metadata, open_gguf
from mintjax.weights.registry import CONFIG_FILES, MODEL_FILES, TOKENIZER_FILES, locate
from mintjax.weights.safetensors_directory import load_directory, read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def load_policy(
    path_or_name: str | Path,
    *,
    rank: int = 16,
    alpha: float = 32,
    seed: int = 0,
    train_attn: bool = True,
    train_mlp: bool = True,
    train_unembed: bool = False,
    dtype: Any = None,
    mesh: Mesh | None = None,
) -> Policy:
    """Loads base weights and stands a fresh adapter beside them, one that changes nothing yet.

    Args:
        path_or_name: a registered name (``"smollm2-135m-instruct"``), a Hugging Face directory, a
            GGUF file, or a hub id (``"Qwen/Qwen3-0.6B"``).
        rank: rank of the adapter.
        alpha: its weight; the product of its factors is multiplied by ``alpha / rank``.
        seed: of its random initial factors.
        train_attn: whether the attention's linears have an adapter.
        train_mlp: whether the MLP's linears have one.
        train_unembed: whether the unembedding has one.
        dtype: dtype of the base weights; None is the checkpoint's, and float32 for GGUF. The adapter
            is float32 always.
        mesh: devices to spread the base weights over; axes among ``data``, ``fsdp``, ``tensor``
            and ``expert``, of type Auto. The adapter is on all of them whole.

    Returns:
        The policy, at version 0.

    Raises:
        FileNotFoundError: where the model is not here and cannot be fetched.
        ValueError: for everything about it that is not implemented or does not fit, named.

    Example:
        >>> policy = load_policy("smollm2-135m-instruct", rank=8)  # doctest: +SKIP
        >>> policy.config.num_layers  # doctest: +SKIP
        30
    """
    lora = LoraConfig(rank, alpha, train_attn, train_mlp, train_unembed)
    path = locate(path_or_name, MODEL_FILES)
    load = load_directory if path.is_dir() else load_gguf
    config, base = load(path, str(path_or_name), dtype=dtype, mesh=mesh)
    trained = (init_adapter(config, lora, jax.random.key(seed)), jnp.int32(0))
    if mesh is not None:
        trained = jax.device_put(trained, NamedSharding(mesh, PartitionSpec()))
    adapter, version = trained
    return Policy(config=config, lora=lora, base=base, adapter=adapter, version=version)


def load_model_config(path_or_name: str | Path, *, dtype: Any = None) -> tuple[ModelConfig, Any]:
    """Reads what a model is, and leaves its weights where they are.

    Of a hub repository ``config.json`` alone is fetched; a registered model is fetched whole, since it is one file.

    Args:
        path_or_name: as for :func:`load_policy`.
        dtype: as for :func:`load_policy`.

    Returns:
        The decoder's description, and the dtype that its weights would be loaded in.

    Raises:
        FileNotFoundError: where the model is not here and cannot be fetched.
        ValueError: for what is not implemented or does not fit, named; and where neither ``config.json`` nor ``dtype``
            gives a dtype.

    Example:
        >>> config, dtype = load_model_config("smollm2-135m-instruct")  # doctest: +SKIP
        >>> config.num_layers, dtype.name  # doctest: +SKIP
        (30, 'float32')
    """
    path = locate(path_or_name, CONFIG_FILES)
    if not path.is_dir():
        config = config_of(open_gguf(path), str(path_or_name))
        return config, jnp.dtype(jnp.float32 if dtype is None else dtype)
    fields = read_json(path / "config.json")
    config = model_config(fields, str(path_or_name))
    found = dtype or fields.get("dtype") or fields.get("torch_dtype")
    if found is None:
        raise ValueError(
            f"{path / 'config.json'}: it gives no dtype, and the weights are not read here; pass dtype= (model.dtype)"
        )
    return config, jnp.dtype(found)


def load_tokenizer(path_or_name: str | Path) -> "Tokenizer":
    """Loads the tokenizer of a model.

    Args:
        path_or_name: as for :func:`load_policy`; a directory needs only ``tokenizer.json``.

    Returns:
        A ``tokenizers.Tokenizer``, which renderers take as it is.

    Raises:
        FileNotFoundError: where it is not here and cannot be fetched.
        ValueError: where ``tokenizer_config.json`` gives a token another id than ``tokenizer.json``,
            or a GGUF file has a tokenizer that is not implemented.

    Example:
        >>> load_tokenizer("smollm2-135m-instruct").token_to_id("<|im_end|>")  # doctest: +SKIP
        2
    """
    path = locate(path_or_name, TOKENIZER_FILES)
    if path.is_dir():
        return _directory_tokenizer(path)
    from mintjax.weights.gguf_tokenizer import gguf_tokenizer

    return gguf_tokenizer(metadata(open_gguf(path)), str(path_or_name))


def _directory_tokenizer(directory: Path) -> "Tokenizer":
    """Reads ``tokenizer.json`` and holds it against ``tokenizer_config.json`` where there is one."""
    from tokenizers import Tokenizer

    file = directory / "tokenizer.json"
    if not file.exists():
        raise FileNotFoundError(
            f"{file}: no such file; save the tokenizer with transformers' "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...), which writes it"
        )
    tokenizer = Tokenizer.from_file(str(file))
    config = directory / "tokenizer_config.json"
    added = read_json(config).get("added_tokens_decoder", {}) if config.exists() else {}
    for index, token in added.items():
        found = tokenizer.id_to_token(int(index))
        if found != token["content"]:
            raise ValueError(
                f"{config}: added_tokens_decoder gives id {index} to {token['content']!r}, "
                f"tokenizer.json to {found!r}; they belong to different tokenizers"
            )
    return tokenizer
