"""Segments: right-padded rows of one size."""

import numpy as np
import pytest

from mintjax.renderers import bucket, get_renderer, to_segment
from tests.assets import vocabulary


def test_buckets():
    assert [bucket(n) for n in (0, 1, 16, 17, 32, 33, 1000)] == [16, 16, 16, 32, 32, 64, 1024]
    with pytest.raises(ValueError, match="from 0, got -1"):
        bucket(-1)


def test_rows_side_by_side():
    prompt = get_renderer("smollm2", vocabulary("smollm2")).render(
        [{"role": "user", "content": "a"}]
    )
    segment = to_segment([[1, 2, 3], prompt, [], np.array([4])], size=64)
    assert segment.tokens.shape == (4, 64) and segment.tokens.dtype == np.int32
    assert segment.length.tolist() == [3, len(prompt), 0, 1] and segment.length.dtype == np.int32
    for row, expected in enumerate(([1, 2, 3], list(prompt), [], [4])):
        assert segment.tokens[row].tolist() == expected + [0] * (64 - len(expected))
    assert to_segment([[1] * 17]).tokens.shape == (1, 32)


def test_rows_that_do_not_fit():
    with pytest.raises(ValueError, match=r"rows\[1\]: 5 ids do not fit a segment of 4"):
        to_segment([[1], [1] * 5], size=4)
    with pytest.raises(ValueError, match="at least one conversation"):
        to_segment([])
