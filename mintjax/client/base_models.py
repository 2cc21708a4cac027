"""Base models by name: loaded once in a process, and shared by all clients that use them."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp

from mintjax.adapters import LoraConfig, init_adapter
from mintjax.loading import load_policy, load_tokenizer
from mintjax.policy import Policy
from mintjax.renderers.tokenizer import Tokenizer, adapt


@dataclass(frozen=True, eq=False)
class BaseModel:
    """Base weights and their tokenizer.

    Attributes:
        policy: the model; an adapter in it is not looked at.
        tokenizer: a fast tokenizer of ``transformers``, or a ``tokenizers.Tokenizer``; clients hand it out as it is.

    Example:
        >>> ServiceClient(models={"mine": BaseModel(policy, tokenizer)})
    """

    policy: Policy
    tokenizer: Any

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """The tokenizer as renderers see it: text with control tokens, and the tokens that end a text."""
        return adapt(self.tokenizer)

    def with_adapter(self, lora: LoraConfig, seed: int) -> Policy:
        """The model with a fresh adapter, one that changes nothing yet."""
        adapter = init_adapter(self.policy.config, lora, jax.random.key(seed))
        return self.policy.replace(lora=lora, adapter=adapter, version=jnp.int32(0))

    def base_only(self) -> Policy:
        """The model without any adapter."""
        return self.policy.base_only().replace(version=jnp.int32(0))


# Held weakly: a model's memory is freed with the last client that uses it.
_loaded: WeakValueDictionary[str, BaseModel] = WeakValueDictionary()
_lock = threading.Lock()


def base_model(name: str, given: Mapping[str, BaseModel]) -> BaseModel:
    """Finds or loads a model.

    Args:
        name: a name in ``given``, or what ``mintjax.load_policy`` takes.
        given: models that a service client was given.

    Returns:
        The model, the same object for every client that uses it now.

    Raises:
        FileNotFoundError: where it is not here and cannot be fetched.
        ValueError: for everything about it that is not implemented.

    Example:
        >>> base_model("smollm2-135m-instruct", {}).policy.config.num_layers
        30
    """
    if name in given:
        return given[name]
    with _lock:
        model = _loaded.get(name)
        if model is None:
            policy = load_policy(name).base_only()
            model = _loaded[name] = BaseModel(policy, _transformers(load_tokenizer(name)))
        return model


def _transformers(tokenizer: Any) -> Any:
    """The tokenizer as ``transformers`` has it: ``decode`` writes control tokens, ``encode`` returns a list."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
