"""Products by group: the loop and the ragged one equal a float64 loop over rows, and the loop does no more than that."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.models.grouped_product import _tiles, grouped_rows, grouped_sums

KINDS = ["loop", "ragged"]
EXACT = 1e-12  # of float64 sums of a few hundred terms
# Rows of each of six groups: even, some empty, all in one, less than a tile, one row.
SIZES = [
    [16] * 6,
    [0, 40, 0, 0, 3, 21],
    [0, 0, 0, 70, 0, 0],
    [1, 0, 2, 0, 1, 0],
    [0, 0, 0, 0, 0, 1],
]


def numbers(sizes):
    rng = np.random.default_rng(0)
    rows = sum(sizes)
    return (
        rng.standard_normal((rows, 5)),
        rng.standard_normal((rows, 7)),
        rng.standard_normal((len(sizes), 7, 5)),
        np.repeat(np.arange(len(sizes)), sizes),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_equals_a_loop_over_rows(kind, sizes):
    x, y, matrices, group = numbers(sizes)
    with jax.enable_x64(True):
        a, b, w, counts = map(jnp.asarray, (x, y, matrices, sizes))
        forth = grouped_rows([(a, w)], counts, 2, kind)
        back = grouped_rows([(b, w)], counts, 1, kind)
        both = grouped_rows([(b, w), (a, w[:, :5])], counts, 1, kind)
        sums = grouped_sums(b, a, counts, kind)
    want = np.zeros_like(matrices)
    for row, g in enumerate(group):
        np.testing.assert_allclose(forth[row], matrices[g] @ x[row], rtol=0, atol=EXACT)
        np.testing.assert_allclose(back[row], matrices[g].T @ y[row], rtol=0, atol=EXACT)
        added = np.asarray(back[row]) + matrices[g, :5].T @ x[row]
        np.testing.assert_allclose(both[row], added, rtol=0, atol=EXACT)
        want[g] += np.outer(y[row], x[row])
    np.testing.assert_allclose(sums, want, rtol=0, atol=EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_factors_are_summed_in_float32(kind):
    x, y, matrices, _ = (jnp.asarray(z, jnp.bfloat16) for z in numbers(SIZES[0]))
    sizes = jnp.asarray(SIZES[0])
    wide = [z.astype(jnp.float32) for z in (x, y, matrices)]

    def rows(x, w):
        return grouped_rows([(x, w)], sizes, 2, kind)

    for got, want in (
        (rows(x, matrices), rows(wide[0], wide[2])),
        (grouped_sums(y, x, sizes, kind), grouped_sums(wide[1], wide[0], sizes, kind)),
    ):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def test_the_loop_is_what_a_cpu_runs_and_one_program_serves_all_sizes():
    program = jax.jit(lambda x, w, sizes: grouped_rows([(x, w)], sizes, 2))
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((96, 5)), rng.standard_normal((6, 7, 5))
    x, w = jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32)
    for sizes in ([16] * 6, [96, 0, 0, 0, 0, 0], [1, 30, 0, 60, 5, 0]):
        got = program(x, w, jnp.asarray(sizes))
        want = grouped_rows([(x, w)], jnp.asarray(sizes), 2, "ragged")
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    assert program._cache_size() == 1
    compiled = program.lower(x, w, jnp.asarray(sizes)).compile().as_text()
    # 96 rows of six groups make tiles of 16; every row with every group's matrix would be larger.
    shapes = re.findall(r"f32\[([\d,]+)\]\S* dot\(", compiled)
    assert shapes and all(np.prod([int(n) for n in s.split(",")]) == 16 * 7 for s in shapes)


def test_tiles_cover_every_row_once_and_no_tile_is_empty():
    rng = np.random.default_rng(0)
    for rows, groups in ((1, 4), (7, 3), (300, 5), (64, 64), (2000, 4)):
        sizes = rng.multinomial(rows, rng.dirichlet(np.ones(groups)))
        count, tile = _tiles(jnp.asarray(sizes), rows)
        seen, height = np.zeros(rows, int), 0
        owner = np.repeat(np.arange(groups), sizes)
        for t in range(int(count)):
            group, start, mine = (np.asarray(value) for value in tile(jnp.asarray(t)))
            mine, height = start + np.flatnonzero(mine), len(mine)
            assert len(mine) and (owner[mine] == group).all()
            seen[mine] += 1
        assert (seen == 1).all()
        assert int(count) == sum(-(-size // height) for size in sizes)
