"""Data as the client takes them, laid out as the batches that gradients take, and log probabilities on their way back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from mintjax.client.errors import RequestFailedError
from mintjax.client.sampling_checks import check_vocabulary
from mintjax.models.config import ModelConfig
from mintjax.train.batches import Batch, padded_length
from mintjax.train.config_checks import ConfigError
from mintjax.train.losses import Cispo, CrossEntropy, Dro, ImportanceSampling, Loss, Ppo
from mintjax.types import Datum, TensorData

_POLICY_INPUTS = ("target_tokens", "logprobs", "advantages")


@dataclass(frozen=True)
class _Form:
    """What a loss is called with: its class, the inputs it must have and may have, its fields by Tinker's names for them."""

    make: Callable[..., Loss]
    inputs: tuple[str, ...]
    optional: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


_CLIPS = {"clip_low_threshold": "ratio_min", "clip_high_threshold": "ratio_max"}
_FORMS = {
    "cross_entropy": _Form(CrossEntropy, ("target_tokens", "weights")),
    "importance_sampling": _Form(ImportanceSampling, _POLICY_INPUTS),
    "ppo": _Form(Ppo, _POLICY_INPUTS, settings=_CLIPS),
    "cispo": _Form(Cispo, _POLICY_INPUTS, settings=_CLIPS),
    "dro": _Form(Dro, _POLICY_INPUTS, ("weights",), {"beta": "beta"}),
}


class LossCall(NamedTuple):
    """A loss by name and configuration, as a value.

    Attributes:
        name: Tinker's.
        loss: the function; None where the caller has one of their own.
        temperature: what logits are divided by.
    """

    name: str
    loss: Loss | None
    temperature: float


class Laid(NamedTuple):
    """A micro-batch, and which datum is in each of its rows."""

    batch: Batch
    places: list[int]


def loss_call(name: str, config: Mapping[str, float] | None) -> LossCall:
    """Reads a loss's name and configuration.

    Args:
        name: ``"cross_entropy"``, ``"importance_sampling"``, ``"ppo"``, ``"cispo"`` or ``"dro"``.
        config: ``"temperature"`` (1), and the loss's own settings.

    Raises:
        RequestFailedError: for a name or a setting that is unknown, or a value that cannot be.

    Example:
        >>> loss_call("ppo", {"clip_high_threshold": 1.3}).loss
        Ppo(ratio_min=0.8, ratio_max=1.3, negative_ratio_max=None)
    """
    if name not in _FORMS:
        raise RequestFailedError(
            f"loss_fn: {name!r} is unknown; there are {', '.join(_FORMS)}, and forward_backward_custom for a function "
            f"of your own"
        )
    form, given = _FORMS[name], dict(config or {})
    known = ("temperature", *form.settings)
    for key, value in given.items():
        if key not in known:
            raise RequestFailedError(
                f"loss_fn_config[{key!r}]: unknown for {name}; it takes {', '.join(known)}"
            )
        if not isinstance(value, int | float) or not np.isfinite(value):
            raise RequestFailedError(
                f"loss_fn_config[{key!r}]: expected a finite number, got {value!r}"
            )
    temperature = given.pop("temperature", 1.0)
    if temperature <= 0:
        raise RequestFailedError(
            f"loss_fn_config['temperature']: expected above 0, got {temperature}; a greedy sample has no log "
            f"probability that a loss could use"
        )
    settings = {form.settings[key]: float(value) for key, value in given.items()}
    try:
        loss = form.make(**settings)
    except ConfigError as error:
        names = {f"loss.{own}": f"loss_fn_config[{key!r}]" for key, own in form.settings.items()}
        where, problem = str(error).split(":", 1)
        raise RequestFailedError(f"{names[where]}:{problem}") from error
    return LossCall(name, loss, float(temperature))


def uses_sampled_logprobs(name: str) -> bool:
    """Whether a loss compares with the sampler's log probabilities, and so depends on the temperature."""
    return name in _FORMS and "logprobs" in _FORMS[name].inputs


def lay_out(data: Sequence[Datum], call: LossCall, config: ModelConfig, rows: int) -> list[Laid]:
    """Checks data and lays them out as micro-batches, whose losses are to be summed.

    Row b holds a datum's N input tokens at 0 to N - 1, and its entry i at place i + 1: the label there is target i.
    Every entry is scored; what has no weight in the loss is outside of the mask.

    Args:
        data: any lengths; those of like length share a micro-batch.
        call: the loss.
        config: the model.
        rows: most rows of a micro-batch; it has a power of two of them.

    Returns:
        Micro-batches in no particular order.

    Raises:
        RequestFailedError: naming the datum and the field.
    """
    if not data:
        raise RequestFailedError("data: expected at least one Datum, got none")
    checked = [_arrays(f"data[{i}]", datum, call, config) for i, datum in enumerate(data)]
    order = sorted(range(len(data)), key=lambda i: (_choices(checked[i]), -len(checked[i].inputs)))
    laid, start = [], 0
    while start < len(order):
        same = _choices(checked[order[start]])
        places = [i for i in order[start : start + rows] if _choices(checked[i]) == same]
        laid.append(Laid(_batch([checked[i] for i in places], call.temperature), places))
        start += len(places)
    return laid


def outputs(laid: Sequence[Laid], logprobs: Sequence[Any], data: Sequence[Datum]) -> list[Any]:
    """Each datum's own part of its batch's log probabilities, in the order of the data.

    Args:
        laid: what :func:`lay_out` returned.
        logprobs: ``[B, N]`` or ``[B, N, K]`` for each micro-batch; numpy's, or jax's inside of a derivative.
        data: the data.

    Returns:
        An array for each datum, shaped as its targets.
    """
    own: list[Any] = [None] * len(data)
    for (_, places), scores in zip(laid, logprobs, strict=True):
        for row, place in enumerate(places):
            own[place] = scores[row, 1 : data[place].model_input.length + 1]
    return own


class _Arrays(NamedTuple):
    """One datum's checked arrays, ``[n]`` or ``[n, K]`` each but the first."""

    inputs: np.ndarray
    targets: np.ndarray
    mask: np.ndarray
    weights: np.ndarray
    advantages: np.ndarray
    logprobs: np.ndarray


def _choices(arrays: _Arrays) -> tuple[int, ...]:
    """The shape of one entry's targets: () or (K,)."""
    return arrays.targets.shape[1:]


def _arrays(name: str, datum: Datum, call: LossCall, config: ModelConfig) -> _Arrays:
    """Check one datum against the loss and the model."""
    if not isinstance(datum, Datum):
        raise RequestFailedError(f"{name}: expected a Datum, got {type(datum).__name__}")
    inputs = np.asarray(datum.model_input.to_ints(), np.int64)
    if not 1 <= inputs.size <= config.context:
        raise RequestFailedError(
            f"{name}.model_input: expected 1 to {config.context} tokens, the context of {config.name}, got "
            f"{inputs.size}; cut the datum, or leave it out"
        )
    check_vocabulary(f"{name}.model_input", inputs, config)
    found = _loss_inputs(name, datum, call)
    targets = found["target_tokens"]
    two = call.name in ("cross_entropy", "custom")
    if targets.shape[:1] != inputs.shape or targets.ndim > 1 + two:
        form = f"[{inputs.size}]" + (f" or [{inputs.size}, K]" if two else "")
        raise RequestFailedError(
            f"{name}.loss_fn_inputs['target_tokens']: expected the shape {form}, an entry an input token, got "
            f"{list(targets.shape)}; input and targets are a stream without its last and without its first token"
        )
    check_vocabulary(f"{name}.loss_fn_inputs['target_tokens']", targets, config)
    zeros = np.zeros(targets.shape, np.float32)
    for key, value in found.items():
        if value.shape != targets.shape:
            raise RequestFailedError(
                f"{name}.loss_fn_inputs[{key!r}]: expected the targets' shape {list(targets.shape)}, got "
                f"{list(value.shape)}; give every target its own entry"
            )
        if not np.isfinite(value).all():
            raise RequestFailedError(
                f"{name}.loss_fn_inputs[{key!r}]: expected finite numbers, got {value[~np.isfinite(value)][0]}; put 0 "
                f"where there is none"
            )
    weights, advantages, logprobs = (
        found.get(key, zeros) for key in ("weights", "advantages", "logprobs")
    )
    mask = _mask(name, call, weights if "weights" in found else None, advantages, logprobs)
    return _Arrays(inputs, targets, mask.astype(np.float32), weights, advantages, logprobs)


def _loss_inputs(name: str, datum: Datum, call: LossCall) -> dict[str, np.ndarray]:
    """The arrays that the loss reads, with none missing and none too many."""
    given = datum.loss_fn_inputs
    form = _FORMS.get(call.name)
    required = ("target_tokens",) if form is None else form.inputs
    for key in required:
        if key not in given:
            raise RequestFailedError(
                f"{name}.loss_fn_inputs: {key!r} is missing; {call.name} needs {', '.join(required)}"
            )
    if form is None:
        return {"target_tokens": given["target_tokens"].to_numpy()}
    for key in given:
        if key not in (*form.inputs, *form.optional):
            raise RequestFailedError(
                f"{name}.loss_fn_inputs: {key!r} is unknown for {call.name}, which takes "
                f"{', '.join((*form.inputs, *form.optional))}; leave it out"
            )
    return {key: tensor.to_numpy() for key, tensor in given.items()}


def _mask(
    name: str,
    call: LossCall,
    weights: np.ndarray | None,
    advantages: np.ndarray,
    logprobs: np.ndarray,
) -> np.ndarray:
    """Which entries count in a loss; the others' terms are zero by its definition, or were never sampled."""
    if call.name == "cross_entropy":
        assert weights is not None
        return weights != 0
    if call.name == "custom":
        return np.ones(advantages.shape, bool)
    if call.name != "dro":
        return advantages != 0
    if weights is None:
        # Where nothing was sampled both are filled in as 0, and the square would pull on it.
        return (advantages != 0) | (logprobs != 0)
    if not np.isin(weights, (0, 1)).all():
        raise RequestFailedError(
            f"{name}.loss_fn_inputs['weights']: expected 1 on tokens that were sampled and 0 on others, got "
            f"{weights[~np.isin(weights, (0, 1))][0]}; scale the advantages instead"
        )
    return weights != 0


def _batch(rows: Sequence[_Arrays], temperature: float) -> Batch:
    """Data of one form, side by side and padded."""
    count = 1 << (len(rows) - 1).bit_length()
    size = padded_length(max(len(row.inputs) for row in rows) + 1)
    shape = (count, size, *_choices(rows[0]))
    batch = Batch(
        tokens=np.zeros((count, size), np.int32),
        length=np.zeros(count, np.int32),
        mask=np.zeros(shape, np.float32),
        advantages=np.zeros(shape, np.float32),
        logprobs=np.zeros(shape, np.float32),
        weights=np.zeros(shape, np.float32),
        temperature=np.asarray(temperature, np.float32),
        labels=np.zeros(shape, np.int32),
        scored=np.zeros((count, size), np.float32),
    )
    assert batch.labels is not None and batch.scored is not None
    for row, arrays in enumerate(rows):
        n = len(arrays.inputs)
        batch.tokens[row, :n] = arrays.inputs
        batch.length[row] = n + 1
        batch.scored[row, 1 : n + 1] = 1
        batch.labels[row, 1 : n + 1] = arrays.targets
        for name in ("mask", "weights", "advantages", "logprobs"):
            getattr(batch, name)[row, 1 : n + 1] = getattr(arrays, name)
    return batch


def as_tensors(logprobs: Sequence[Any]) -> list[dict[str, TensorData]]:
    """Log probabilities as a response has them."""
    return [{"logprobs": TensorData(np.asarray(x, np.float32), "float32")} for x in logprobs]
