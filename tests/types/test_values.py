"""The clients' values: what they take, what they refuse, and that nothing changes one."""

import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest

from mintjax.types import (
    Datum,
    EncodedTextChunk,
    ModelInput,
    ParsedCheckpointTinkerPath,
    SamplingParams,
    TensorData,
)


def test_a_prompt_grows_into_new_ones():
    prompt = ModelInput.from_ints(np.array([1, 2]))
    grown = prompt.append_int(3).append(EncodedTextChunk([4]))
    assert (prompt.to_ints(), grown.to_ints()) == ([1, 2], [1, 2, 3, 4])
    assert (grown.length, ModelInput.empty().to_ints()) == (4, [])
    assert ModelInput.from_ints([1, 2]) == prompt
    assert all(type(token) is int for token in prompt.to_ints())


@pytest.mark.parametrize("tokens", [["a"], [1.0], [True], "ab"])
def test_a_prompt_takes_ids_alone(tokens):
    with pytest.raises(TypeError, match=r"tokens\[0\]: expected a token id.*tokenizer"):
        ModelInput.from_ints(tokens)


def test_a_chunk_of_another_kind_is_refused():
    with pytest.raises(TypeError, match=r"chunks\[0\]: expected an EncodedTextChunk, got list"):
        ModelInput([[1, 2]])
    with pytest.raises(ValueError, match="type: expected 'encoded_text', got 'image'"):
        EncodedTextChunk([1], "image")


def test_tensors_keep_their_dtype_and_shape():
    for array in (np.arange(6).reshape(2, 3), np.ones((2, 0), np.float64), np.float32([1, 2])):
        tensor = TensorData.from_numpy(array)
        assert tensor.dtype == ("int64" if array.dtype.kind == "i" else "float32")
        np.testing.assert_array_equal(tensor.to_numpy(), array)
        assert (tensor.shape, tensor.tolist()) == (array.shape, array.tolist())
        assert pickle.loads(pickle.dumps(tensor)) == tensor
    assert TensorData([1, 2], "int64") != TensorData([1.0, 2.0], "float32")
    with pytest.raises(ValueError, match="read-only"):
        TensorData([1, 2], "int64").data[0] = 5


def test_sparse_rows_are_a_matrix():
    tensor = TensorData([5, 6, 7], "int64", [3, 4], [0, 2, 2, 3], [0, 3, 1])
    assert tensor.tolist() == [[5, 0, 0, 6], [0, 0, 0, 0], [0, 7, 0, 0]]
    assert len(tensor) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.5], "int64"), "expected integers for dtype 'int64', got float64"),
        (([1], "int32"), "dtype: expected 'int64' or 'float32', got 'int32'"),
        (([1, 2], "int64", [3]), r"shape: \[3\] holds 3 numbers, and data has 2"),
        (([1], "int64", [1, 1], [0, 1]), "expected both or none"),
        (([1], "int64", [1, 1], [0, 1], [1]), r"rows of a matrix of shape \[1, 1\]"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        TensorData(*arguments)


def test_lists_get_the_dtype_of_their_name():
    prompt = ModelInput.from_ints([1, 2])
    datum = Datum(prompt, {"target_tokens": [2, 3], "weights": [0, 1], "mask": np.int32([1, 0])})
    dtypes = {name: tensor.dtype for name, tensor in datum.loss_fn_inputs.items()}
    assert dtypes == {"target_tokens": "int64", "weights": "float32", "mask": "int64"}
    with pytest.raises(KeyError, match="under this name has no known dtype"):
        Datum(prompt, {"mask": [1, 0]})
    with pytest.raises(TypeError, match="model_input: expected a ModelInput, got list"):
        Datum([1, 2], {})


def test_values_are_frozen_and_know_their_fields():
    params = SamplingParams(max_tokens=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.max_tokens = 4
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1)


def test_paths():
    path = ParsedCheckpointTinkerPath.from_tinker_path("tinker://a:train:0/sampler_weights/x-1.b")
    assert (path.training_run_id, path.checkpoint_type) == ("a:train:0", "sampler")
    assert path.checkpoint_id == "sampler_weights/x-1.b"
    assert ParsedCheckpointTinkerPath.of("a:train:0", "sampler", "x-1.b") == path


@pytest.mark.parametrize(
    "path",
    [
        "a/weights/b",
        "tinker://a/weights",
        "tinker://a/weights/b/c",
        "tinker://a/other/b",
        "tinker:///weights/b",
        "tinker://../weights/b",
        "tinker://a/weights/..",
        "tinker://a/weights/b.partial",
    ],
)
def test_what_is_no_path_is_refused(path):
    with pytest.raises(ValueError, match=r"path: expected tinker://<run>/weights/<name>"):
        ParsedCheckpointTinkerPath.from_tinker_path(path)


def test_importing_the_types_loads_no_jax():
    code = "import sys, mintjax as mint; from mintjax import types; print('jax' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"
