"""One training example: a prompt, and what its loss needs for each of its tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mintjax.types.model_input import ModelInput
from mintjax.types.tensor_data import TensorData

_DTYPES: dict[str, Literal["int64", "float32"]] = {
    "target_tokens": "int64",
    "weights": "float32",
    "advantages": "float32",
    "logprobs": "float32",
    "clip_low_threshold": "float32",
    "clip_high_threshold": "float32",
}


@dataclass(frozen=True)
class Datum:
    """A prompt of N tokens and the loss's inputs, an entry a token.

    Entry i is about what follows token i: ``target_tokens[i]`` is scored given the tokens up to and with i. So for a
    stream of ids the input is all but the last and the targets are all but the first, but targets may be any ids.

    Attributes:
        model_input: the prompt.
        loss_fn_inputs: arrays by name. Lists and numpy arrays become :class:`TensorData`, with a dtype by their name.

    Raises:
        KeyError: for a list under a name that is not known, whose dtype would be a guess.

    Example:
        >>> Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], "weights": [0.0, 1.0]})
    """

    model_input: ModelInput
    loss_fn_inputs: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Convert the loss's inputs."""
        if not isinstance(self.model_input, ModelInput):
            raise TypeError(
                f"model_input: expected a ModelInput, got {type(self.model_input).__name__}; "
                f"ModelInput.from_ints makes one"
            )
        tensors = {name: _tensor(name, value) for name, value in self.loss_fn_inputs.items()}
        object.__setattr__(self, "loss_fn_inputs", tensors)


def _tensor(name: str, value: Any) -> TensorData:
    """One loss input as a TensorData."""
    if isinstance(value, TensorData):
        return value
    if hasattr(value, "detach"):
        return TensorData.from_torch(value)
    if isinstance(value, np.ndarray) and name not in _DTYPES:
        return TensorData.from_numpy(value)
    if name not in _DTYPES:
        raise KeyError(
            f"loss_fn_inputs[{name!r}]: a list under this name has no known dtype; known are "
            f"{', '.join(_DTYPES)}. Pass a TensorData"
        )
    return TensorData(value, _DTYPES[name])
