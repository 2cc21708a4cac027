"""The public types of tinker, installed beside ours: each value of theirs becomes one of ours, and back."""

import dataclasses

import numpy as np
import pytest
import tinker
from tinker import types as theirs

from mintjax import types as ours


def test_the_version_is_the_one_that_was_looked_at():
    assert tinker.__version__ == "0.38.0"


def to_ours(value):
    match value:
        case theirs.EncodedTextChunk():
            return ours.EncodedTextChunk(value.tokens)
        case theirs.ModelInput():
            return ours.ModelInput([to_ours(chunk) for chunk in value.chunks])
        case theirs.TensorData():
            return ours.TensorData(
                value.data,
                value.dtype,
                value.shape,
                value.sparse_crow_indices,
                value.sparse_col_indices,
            )
        case theirs.Datum():
            inputs = {name: to_ours(tensor) for name, tensor in value.loss_fn_inputs.items()}
            return ours.Datum(to_ours(value.model_input), inputs)
        case theirs.SamplingParams():
            return ours.SamplingParams(**value.model_dump())
        case theirs.AdamParams():
            return ours.AdamParams(**{k: v for k, v in value.model_dump().items() if k != "type"})


def to_theirs(value):
    match value:
        case ours.EncodedTextChunk():
            return theirs.EncodedTextChunk(tokens=list(value.tokens))
        case ours.ModelInput():
            return theirs.ModelInput(chunks=[to_theirs(chunk) for chunk in value.chunks])
        case ours.TensorData():
            return theirs.TensorData(
                data=value.data.tolist(),
                dtype=value.dtype,
                shape=list(value.shape),
                sparse_crow_indices=value.sparse_crow_indices and list(value.sparse_crow_indices),
                sparse_col_indices=value.sparse_col_indices and list(value.sparse_col_indices),
            )
        case ours.Datum():
            inputs = {name: to_theirs(tensor) for name, tensor in value.loss_fn_inputs.items()}
            return theirs.Datum(model_input=to_theirs(value.model_input), loss_fn_inputs=inputs)
        case ours.SamplingParams() | ours.AdamParams():
            return getattr(theirs, type(value).__name__)(**dataclasses.asdict(value))


PROMPT = theirs.ModelInput.from_ints([1, 2]).append(theirs.EncodedTextChunk(tokens=[3]))
VALUES = {
    "prompt": PROMPT,
    "integers": theirs.TensorData(data=[1, 2, 3], dtype="int64", shape=[3]),
    "matrix": theirs.TensorData(data=[1.5, 2.0, 0.0, -1.0], dtype="float32", shape=[2, 2]),
    "sparse": theirs.TensorData(
        data=[5, 7],
        dtype="int64",
        shape=[2, 3],
        sparse_crow_indices=[0, 1, 2],
        sparse_col_indices=[2, 0],
    ),
    "datum": theirs.Datum(
        model_input=PROMPT,
        loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [0.0, 1.0, 0.5]},
    ),
    "sampling": theirs.SamplingParams(max_tokens=5, seed=3, stop=["a", "b"], top_k=4, top_p=0.5),
    "sampling by default": theirs.SamplingParams(),
    "adam": theirs.AdamParams(learning_rate=3e-4, weight_decay=0.1, grad_clip_norm=1.0),
    "adam by default": theirs.AdamParams(),
}


def content(value):
    """A value as plain numbers, of either side."""
    if isinstance(value, theirs.TensorData | ours.TensorData):
        return (value.dtype, np.asarray(value.tolist()).tolist())
    if isinstance(value, theirs.Datum | ours.Datum):
        inputs = {name: content(tensor) for name, tensor in value.loss_fn_inputs.items()}
        return value.model_input.to_ints(), inputs
    if isinstance(value, theirs.ModelInput | ours.ModelInput):
        return [list(chunk.tokens) for chunk in value.chunks], value.length
    if dataclasses.is_dataclass(value):
        return dataclasses.asdict(value)
    return {name: entry for name, entry in value.model_dump().items() if name != "type"}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_a_value_converts_both_ways(value):
    own = to_ours(value)
    assert type(own).__name__ == type(value).__name__
    assert content(own) == content(value)
    back = to_theirs(own)
    assert type(back) is type(value)
    assert content(back) == content(value)


def test_defaults_are_theirs():
    assert to_ours(theirs.SamplingParams()) == ours.SamplingParams()
    assert to_ours(theirs.AdamParams()) == ours.AdamParams()


def test_prompts_grow_alike():
    grown = to_ours(PROMPT).append_int(9).append(ours.EncodedTextChunk([4, 5]))
    assert content(grown) == content(
        PROMPT.append_int(9).append(theirs.EncodedTextChunk(tokens=[4, 5]))
    )
    assert content(ours.ModelInput.empty().append_int(7)) == content(
        theirs.ModelInput.empty().append_int(7)
    )
