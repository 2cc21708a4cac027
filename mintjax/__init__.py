"""Chat renderers and multi-turn LoRA training in JAX.

Everything public is imported on first use, so that ``import mintjax`` alone loads neither jax nor transformers:

    >>> import mintjax
    >>> policy = mintjax.load_policy("smollm2-135m-instruct")
    >>> renderer = mintjax.renderers.get_renderer("smollm2")
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

# `renderers/` and `train/` are folders beside this one that install as `mintjax.renderers` and `mintjax.train`. With a
# wheel installed but Python started in the source tree, this folder shadows the wheel: look for the two beside it.
_root = Path(__file__).resolve().parent.parent
if (
    not (Path(__file__).parent / "renderers").exists()
    and (_root / "renderers" / "__init__.py").exists()
    and (_root / "pyproject.toml").exists()
):
    __path__.append(str(_root))

__version__ = "0.1.0"

__all__ = [
    "DecodeParams",
    "Message",
    "Policy",
    "RequestFailedError",
    "Segment",
    "ServiceClient",
    "State",
    "__version__",
    "client",
    "decode",
    "extend",
    "forward",
    "generate",
    "init_state",
    "load_policy",
    "load_tokenizer",
    "renderers",
    "train",
    "truncate",
    "types",
]
_SUBMODULES = ("client", "renderers", "train", "types")
_HOMES = {
    "Message": "types",
    "Segment": "types",
    "Policy": "policy",
    "State": "cache",
    "init_state": "cache",
    "truncate": "cache",
    "forward": "extension",
    "extend": "extension",
    "decode": "decoding",
    "DecodeParams": "decoding",
    "generate": "generation",
    "load_policy": "loading",
    "load_tokenizer": "loading",
    "ServiceClient": "client",
    "RequestFailedError": "client",
}

if TYPE_CHECKING:
    from mintjax import client, renderers, train, types
    from mintjax.cache import State, init_state, truncate
    from mintjax.client import RequestFailedError, ServiceClient
    from mintjax.decoding import DecodeParams, decode
    from mintjax.extension import extend, forward
    from mintjax.generation import generate
    from mintjax.loading import load_policy, load_tokenizer
    from mintjax.policy import Policy
    from mintjax.types import Message, Segment


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return importlib.import_module(f"mintjax.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"mintjax.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'mintjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
