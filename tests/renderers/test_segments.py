"""Segments: right-padded rows of one size."""

import numpy as np
import pytest

from mintjax.renderers import bucket, get_renderer, segment_count, to_segment, to_segments
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


ASK = [{"role": "user", "content": "a"}]


def conversations():
    """Two chains: three turns of one, and a prompt that has no answer yet."""
    renderer = get_renderer("smollm2", vocabulary("smollm2"))
    short = renderer.render(ASK)
    talk = short
    for reply in ([5, 6, 7, 2], [], [8, 2]):
        talk = renderer.render(ASK, extend=talk.with_sampled(reply))
    return talk, short


def test_whole_conversations_in_segments_of_one_size():
    talk, short = conversations()
    segments = to_segments([talk, short], size=8)
    whole = talk.whole()
    count = segment_count(len(whole), 8)
    assert [array.shape for array in segments] == [(count, 2, 8)] * 3 + [(count, 2)]
    assert [str(array.dtype) for array in segments] == ["int32", "bool", "float32", "int32"]
    for row, expected in enumerate((whole, short)):
        assert segments.length[:, row].sum() == len(expected)
        streams = zip(segments[:3], (expected.ids, expected.sampled, expected.weights), strict=True)
        for array, stream in streams:
            real = [array[t, row, : segments.length[t, row]] for t in range(count)]
            assert np.concatenate(real).tolist() == stream.tolist()
            assert array[:, row].sum() == stream.sum()  # padding is 0
    # A stream fills each segment before it goes on to the next.
    assert (segments.length[: len(whole) // 8, 0] == 8).all()


def test_one_conversation_has_no_row_axis():
    talk, _ = conversations()
    alone, beside = to_segments(talk, size=8), to_segments([talk], size=8)
    for one, many in zip(alone, beside, strict=True):
        assert one.tolist() == many[:, 0].tolist()


def test_the_bucket_is_chosen_once():
    talk, short = conversations()
    count = segment_count(500, 8)
    assert to_segments(talk, 8, count).tokens.shape == to_segments(short, 8, count).tokens.shape
    assert [segment_count(n, 64) for n in (0, 1, 64, 65, 128, 129, 300)] == [1, 1, 1, 2, 2, 4, 8]


def test_what_cannot_be_cut():
    talk, _ = conversations()
    with pytest.raises(ValueError, match=r"ids do not fit 2 segments of 8; use count=\d+"):
        to_segments([talk], 8, 2)
    with pytest.raises(ValueError, match="at least one"):
        to_segments([])
    with pytest.raises(ValueError, match="longest=-1 and size=8"):
        segment_count(-1, 8)
