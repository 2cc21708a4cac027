"""Documents that share a row: each query sees its own document alone, forwards and backwards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.row_attention import attend_row

TOLERANCE = 1e-12  # of ‖x - x₆₄‖ / ‖x₆₄‖, in float64
# Rows of one block, and of five, which are read in a loop. A document begins within a block and on a border.
CASES = {40: ([0, 7, 31], [0, 1]), 320: ([0, 64, 150, 300], [0, 127])}


def dense(q, k, v, starts, window):
    """Attention with a mask of all pairs."""
    size = q.shape[3]
    place, other = np.arange(size)[:, None], np.arange(size)
    seen = (other <= place) & (other > place - window) & (other >= starts[:, :, None])
    scores = jnp.einsum("bkgsh,bkmh->bkgsm", q, k) * q.shape[-1] ** -0.5
    p = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -jnp.inf))
    return jnp.einsum("bkgsm,bkmh->bkgsh", p, v)


@pytest.mark.parametrize("window", [None, 50], ids=["all", "window"])
@pytest.mark.parametrize("size", CASES)
def test_a_query_sees_its_own_document(size, window):
    rng = np.random.default_rng(size)
    begins = CASES[size]
    starts = np.stack(
        [np.array(b)[np.searchsorted(b, np.arange(size), "right") - 1] for b in begins]
    )
    with jax.enable_x64(True):
        rows = len(begins)
        q, d_out = jnp.asarray(rng.standard_normal((2, rows, 2, 2, size, 8)))
        k, v = jnp.asarray(rng.standard_normal((2, rows, 2, size, 8)))

        def run(q, k, v):
            block = size if size <= 256 else 64
            return attend_row(q, k, v, block, window=window, starts=jnp.asarray(starts, jnp.int32))

        out, pull = jax.vjp(run, q, k, v)
        want, pull_want = jax.vjp(lambda q, k, v: dense(q, k, v, starts, window or size), q, k, v)
        for got, expected in zip((out, *pull(d_out)), (want, *pull_want(d_out)), strict=True):
            assert np.linalg.norm(got - expected) < TOLERANCE * np.linalg.norm(expected)


def test_other_kernels_are_refused():
    x = jnp.zeros((1, 1, 8, 8))
    with pytest.raises(ValueError, match="starts: 'cudnn' serves no packed documents"):
        attend_row(x[:, :, None], x, x, 8, "cudnn", starts=jnp.zeros((1, 8), jnp.int32))
