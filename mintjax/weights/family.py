"""What one file of ``mintjax/weights/families`` says of a model family."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mintjax.models.config import ModelConfig
from mintjax.weights.stored import Stored

Fields = Mapping[str, Any]


def nothing_else(fields: Fields) -> Iterable[str]:
    """No problems beside those that a table of values can tell."""
    del fields
    return ()


def all_used(config: ModelConfig, tensor: str) -> bool:
    """Every tensor is a weight."""
    del config, tensor
    return False


@dataclass(frozen=True)
class Family:
    """How the checkpoints of a family are read.

    A field of ``config.json`` is required, read, absent, harmless (``mintjax.weights.config_fields``), or refused.

    Attributes:
        name: what people call it.
        model_types: values of the field ``model_type`` that it reads.
        architectures: values of the field ``architectures`` that it reads.
        required: fields that must be there.
        read: further fields that ``config`` or ``problems`` look at.
        absent: the values of a field under which the feature that it controls is absent; None is always one.
        config: the description of a model whose fields are all understood, and what the policy is called by.
        weights: the checkpoint's name for a layer's weight, after the layer's number; ``*`` in it is an expert's.
        packed: where checkpoints have a weight among several in one tensor: instead of its own, or always.
        top: the same of what stands outside the layers.
        layer: what comes before a layer's number.
        unused: whether a tensor is of a part that is not run, by its name.
        problems: what else of the fields is not implemented, in words.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    required: frozenset[str]
    read: frozenset[str]
    absent: Mapping[str, tuple[Any, ...]]
    config: Callable[[Fields, str], ModelConfig]
    weights: Mapping[str, str]
    top: Mapping[str, str]
    layer: str = "model.layers."
    unused: Callable[[ModelConfig, str], bool] = all_used
    packed: Mapping[str, Stored] = field(default_factory=dict)
    problems: Callable[[Fields], Iterable[str]] = nothing_else

    def tensor_name(self, key: str) -> str:
        """The checkpoint's name for a base weight.

        Example:
            >>> family_of({"model_type": "llama"}, "model").tensor_name("layers.3.q")
            'model.layers.3.self_attn.q_proj.weight'
        """
        if key in self.top:
            return self.top[key]
        _, layer, weight = key.split(".", 2)
        return f"{self.layer}{layer}.{self.weights[weight]}"

    def stored(self, key: str) -> tuple[Stored, ...]:
        """Where a checkpoint may have a base weight, the usual place first.

        Example:
            >>> family_of({"model_type": "llama"}, "model").stored("norm")
            (Stored(name='model.norm.weight', part=None),)
        """
        if key in self.top:
            return (Stored(self.top[key]),)
        _, layer, weight = key.split(".", 2)
        places = [Stored(self.weights[weight])] if weight in self.weights else []
        if weight in self.packed:
            places.append(self.packed[weight])
        return tuple(place._replace(name=f"{self.layer}{layer}.{place.name}") for place in places)
