"""Attention within a window, and with sinks, against a dense formula in float64; and blocks before every window are not read."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax import attention
from mintjax.attention import BLOCK, Span, attend
from mintjax.row_attention import attend_row
from mintjax.segment_attention import attend_segment_vjp

TOLERANCE = 1e-5  # of ‖x - x₆₄‖ / ‖x₆₄‖, in float32
ROWS, KV_HEADS, GROUP, HEAD, SIZE = 4, 2, 2, 8, 24
CAPACITY = 6 * BLOCK  # read in a loop
# Two prefixes, each of two rows, and what each row has after it: an empty one, and one that ends within a block.
PREFIX, OWN = [200, 331], [0, 70, 384, 129]
WINDOWS = [1, 10, BLOCK, 100, 333]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def make(size=SIZE, prefix_capacity=CAPACITY):
    """Queries, keys and values of a segment; a shared and an own span; the output's gradient."""
    own = (
        draw(ROWS, KV_HEADS, GROUP, size, HEAD),
        *(draw(ROWS, KV_HEADS, size, HEAD, seed=i) for i in (1, 2)),
    )
    kinds = (PREFIX, prefix_capacity, (3, 4)), (OWN, CAPACITY, (5, 6))
    spans = [
        Span(
            *(draw(len(lengths), KV_HEADS, capacity, HEAD, seed=i) for i in seeds),
            jnp.array(lengths),
        )
        for lengths, capacity, seeds in kinds
    ]
    return tuple(map(jnp.asarray, own)), spans, draw(ROWS, KV_HEADS, GROUP, size, HEAD, seed=7)


@pytest.fixture(scope="module")
def case():
    return make()


def reference(own, spans, d_out, window, sinks=None):
    """Output and gradients of q, k, v and every span's keys and values, one row at a time, with a dense mask."""
    q, k, v = (np.asarray(x, np.float64) for x in own)
    out, grads = np.zeros(q.shape), [np.zeros(x.shape) for x in (q, k, v)]
    d_spans = [[np.zeros(x.shape) for x in (span.keys, span.values)] for span in spans]
    for row in range(len(q)):
        parents = [row * len(span.length) // len(q) for span in spans]
        counts = [int(span.length[parent]) for span, parent in zip(spans, parents, strict=True)]
        keys, values = (
            np.concatenate(
                [*(np.asarray(s[i][p, :, :n], np.float64) for s, p, n in zip(spans, parents, counts, strict=True)), x[row]],
                1,
            )
            for i, x in ((0, k), (1, v))
        )  # fmt: skip
        place = sum(counts) + np.arange(q.shape[3])[:, None] - np.arange(keys.shape[1])
        scores = np.einsum("kgsh,kmh->kgsm", q[row], keys) * HEAD**-0.5
        p = np.where((place >= 0) & (place < window), np.exp(scores), 0)
        sink = 0 if sinks is None else np.exp(sinks).reshape(KV_HEADS, GROUP, 1, 1)
        p /= p.sum(-1, keepdims=True) + sink
        out[row] = np.einsum("kgsm,kmh->kgsh", p, values)
        d_p = np.einsum("kgsh,kmh->kgsm", d_out[row], values)
        d_scores = p * (d_p - (p * d_p).sum(-1, keepdims=True)) * HEAD**-0.5
        grads[0][row] = np.einsum("kgsm,kmh->kgsh", d_scores, keys)
        found = (
            np.einsum("kgsm,kgsh->kmh", d_scores, q[row]),
            np.einsum("kgsm,kgsh->kmh", p, d_out[row]),
        )
        for i, d in enumerate(found):
            *parts, grads[1 + i][row] = np.split(d, np.cumsum(counts), 1)
            for d_span, parent, count, part in zip(d_spans, parents, counts, parts, strict=True):
                d_span[i][parent, :, :count] += part
    return out, *grads, *(x for pair in d_spans for x in pair)


def difference(got, want) -> float:
    return float(np.linalg.norm(np.asarray(got) - want) / max(1, np.linalg.norm(want)))


@partial(jax.jit, static_argnames="window")
def run(own, spans, d_out, window, sinks=None):
    out, pull = attend_segment_vjp(*own, spans, "blockwise", window=window, sinks=sinks)
    zeros = [(jnp.zeros_like(span.keys), jnp.zeros_like(span.values)) for span in spans]
    d_q, d_k, d_v, d_spans = pull(d_out, zeros)
    return out, d_q, d_k, d_v, *(x for pair in d_spans for x in pair)


@pytest.mark.parametrize("window", WINDOWS)
def test_segments_and_their_gradients_equal_the_dense_formula(case, window):
    found = run(*case, window)
    for got, want in zip(found, reference(*case, window), strict=True):
        assert difference(got, want) < TOLERANCE


@pytest.mark.parametrize(
    ("queries", "capacity", "slots"),
    [(128, 2048, 256), (128, 2048 + 128, 128), (127, 2048, 64), (2, 2048, 64), (1, 2048, 128)],
)
def test_slots_that_are_read_at_a_time(queries, capacity, slots):
    keys, rows = jnp.zeros((8, 2, capacity, 64)), jnp.zeros(8, jnp.int32)
    q = jnp.zeros((8, 2, 2, queries, 64))
    assert attention._slots_at_once(q, Span(keys, keys, rows)) == slots


@pytest.mark.parametrize("window", [100, 10**6])
def test_many_queries_equal_the_dense_formula_over_spans_of_several_blocks(window):
    case = make(size=2 * BLOCK, prefix_capacity=8 * BLOCK)  # in blocks of 256 and of 128
    for got, want in zip(run(*case, window), reference(*case, window), strict=True):
        assert difference(got, want) < TOLERANCE


@pytest.mark.parametrize("size", [1, 256, 257, 320, 384, 448, 512, 640, 1024, 1100])
def test_a_block_cuts_what_is_padded_for_it_evenly(size):
    padded = size + -size % attention.block_of(size)
    assert padded - size < BLOCK
    block = attention.block_of(padded)
    assert padded % block == 0
    assert block <= 4 * BLOCK
    assert padded % (2 * block) or padded == block or 2 * block > 4 * BLOCK  # the largest


def one_query(case):
    (q, *own), spans, d_out = case
    return (q[..., :1, :], *(x[:, :, :1] for x in own)), spans, d_out[..., :1, :]


@pytest.mark.parametrize("window", [1, 100, 10**6])
@pytest.mark.parametrize("at_once", ["whole spans", "blocks"])
def test_one_query_equals_the_dense_formula_however_much_it_reads_at_once(
    case, window, at_once, monkeypatch
):
    if at_once == "blocks":
        monkeypatch.setattr(attention, "_BYTES_AT_ONCE", case[1][0].keys.nbytes - 1)
    case = one_query(case)
    # A function of its own: jit would take the program of the other way of reading from its cache.
    found = jax.jit(lambda case: run.__wrapped__(*case, window))(case)
    for got, want in zip(found, reference(*case, window), strict=True):
        assert difference(got, want) < TOLERANCE


def loops(queries: int, rows: int) -> bool:
    """Whether attention to a span of 512 slots and two heads of 64 numbers, float32, goes through its blocks."""
    shape = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    own = shape((rows, 2, 2, queries, 64)), *[shape((rows, 2, queries, 64))] * 2
    span = Span(*[shape((rows, 2, 512, 64))] * 2, jax.ShapeDtypeStruct((rows,), jnp.int32))
    return "while" in str(jax.make_jaxpr(lambda own, span: attend(*own, [span]))(own, span))


def test_a_mebibyte_of_keys_is_read_at_once_by_one_query_and_in_blocks_by_more_or_where_they_are_more():
    assert not loops(queries=1, rows=4)
    assert loops(queries=1, rows=5)
    assert loops(queries=2, rows=4)


# Some that take nearly all of the softmax, and some that take nearly nothing.
SINKS = np.array([-4.0, 0.3, 2.0, 7.0], np.float32)


@pytest.mark.parametrize("window", [None, 100])
def test_sinks_take_their_share_of_a_segment(case, window):
    found = run(*case, window, jnp.asarray(SINKS))
    wanted = reference(*case, window or 10**6, SINKS)
    for got, want in zip(found, wanted, strict=True):
        assert difference(got, want) < TOLERANCE


def test_sinks_take_their_share_of_rows_in_blocks_and_have_a_gradient():
    size, step = 4 * BLOCK, 1e-3
    q, d_out = draw(1, KV_HEADS, GROUP, size, HEAD), draw(1, KV_HEADS, GROUP, size, HEAD, seed=7)
    own = q, *(draw(1, KV_HEADS, size, HEAD, seed=i) for i in (1, 2))
    row = jax.jit(lambda q, k, v, sinks: attend_row(q, k, v, block=BLOCK, sinks=sinks))
    out, pull = jax.vjp(row, *own, SINKS)
    *grads, d_sinks = pull(d_out)
    for got, want in zip((out, *grads), reference(own, [], d_out, size, SINKS), strict=True):
        assert difference(got, want) < TOLERANCE
    for head, got in enumerate(d_sinks):
        moved = (SINKS.astype(np.float64) + sign * step * np.eye(4)[head] for sign in (1, -1))
        more, less = ((reference(own, [], d_out, size, x)[0] * d_out).sum() for x in moved)
        np.testing.assert_allclose(got, (more - less) / (2 * step), rtol=1e-3, atol=1e-3)


def test_spans_of_one_block_equal_the_dense_formula(case):
    own, spans, d_out = case
    spans = [
        Span(span.keys[:, :, :BLOCK], span.values[:, :, :BLOCK], span.length % BLOCK)
        for span in spans
    ]
    for got, want in zip(run(own, spans, d_out, 20), reference(own, spans, d_out, 20), strict=True):
        assert difference(got, want) < TOLERANCE


@pytest.mark.parametrize(("length", "window"), [(0, None), (BLOCK, 1)])
def test_a_span_that_no_row_sees_is_not_read(case, length, window):
    own, _, d_out = case
    unseen = jnp.full((ROWS, KV_HEADS, BLOCK, HEAD), jnp.nan)
    spans = [Span(unseen, unseen, jnp.full(ROWS, length, jnp.int32))]
    *alone, d_keys, d_values = run(own, spans, d_out, window)
    for got, want in zip(alone, run(own, [], d_out, window), strict=True):
        np.testing.assert_array_equal(got, want)
    assert not jnp.any(d_keys)
    assert not jnp.any(d_values)


@pytest.mark.parametrize(
    ("size", "block", "window"),
    [(256, BLOCK, 10), (256, BLOCK, 100), (512, 256, 100), (512, 256, 10**6), (384, 128, 10**6)],
)
def test_rows_in_blocks_equal_the_dense_formula(size, block, window):
    q, d_out = draw(1, KV_HEADS, GROUP, size, HEAD), draw(1, KV_HEADS, GROUP, size, HEAD, seed=7)
    own = q, *(draw(1, KV_HEADS, size, HEAD, seed=i) for i in (1, 2))
    out, pull = jax.vjp(jax.jit(partial(attend_row, block=block, window=window)), *own)
    for got, want in zip((out, *pull(d_out)), reference(own, [], d_out, window), strict=True):
        assert difference(got, want) < TOLERANCE


def spoiled(span, row, slots):
    """A span with nan in some slots of a row."""
    return span._replace(
        keys=span.keys.at[row, :, slots].set(jnp.nan),
        values=span.values.at[row, :, slots].set(jnp.nan),
    )


def test_blocks_wholly_before_every_window_are_not_read(case):
    own, spans, d_out = case
    # Rows whose windows begin at slots 201 and 255 of their own spans, and see nothing of the prefix.
    lengths = jnp.array([300, 300, 384, 354])
    spans = [jax.tree.map(jnp.asarray, spans[0]), Span(*map(jnp.asarray, spans[1][:2]), lengths)]
    want = run(own, spans, d_out, 100)
    for row in range(ROWS):
        spans[1] = spoiled(spans[1], row, slice(0, 3 * BLOCK))
    spans[0] = spoiled(spoiled(spans[0], 0, slice(None)), 1, slice(None))
    found = run(own, spans, d_out, 100)
    for got, reference_ in zip(found, want, strict=True):
        np.testing.assert_array_equal(got, reference_)
    # The block in which a window begins is read.
    spans[1] = spoiled(spans[1], 0, slice(3 * BLOCK, 3 * BLOCK + 1))
    assert np.isnan(run(own, spans, d_out, 100)[0][0]).all()


def test_a_window_that_sees_all_is_none(case):
    own, spans, d_out = case
    for got, want in zip(run(own, spans, d_out, 2000), run(own, spans, d_out, None), strict=True):
        assert difference(got, np.asarray(want)) < TOLERANCE


def test_a_window_without_the_query_itself_is_refused(case):
    with pytest.raises(ValueError, match=r"window: expected at least 1, .* got 0"):
        attend(*map(jnp.asarray, case[0]), window=0)


@pytest.mark.parametrize("kernel", ["cudnn", "splash"])
def test_platform_kernels_refuse_windows_and_sinks(case, kernel):
    own, spans, _ = case
    with pytest.raises(ValueError, match=f"window: '{kernel}' serves no sliding window, got 9"):
        attend_segment_vjp(*own, spans, kernel, window=9)
    with pytest.raises(ValueError, match=f"window: '{kernel}' serves no sliding window, got 9"):
        attend_row(*own, block=SIZE, kernel=kernel, window=9)
    with pytest.raises(ValueError, match=f"sinks: '{kernel}' serves no attention sinks"):
        attend_row(*own, block=SIZE, kernel=kernel, sinks=jnp.zeros(KV_HEADS * GROUP))
