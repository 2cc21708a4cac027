"""A linear and its adapter, over few rows and many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.adapters import FEW_ROWS, linear

TOLERANCE = 1e-4  # of sums of 24 products in float32


def arguments(rows):
    rng = np.random.default_rng(0)
    x, weight, a, b = (
        jnp.asarray(rng.standard_normal(shape, np.float32))
        for shape in ((rows, 24), (40, 24), (3, 24), (40, 3))
    )
    return x, weight, {"a": a, "b": b}


@pytest.mark.parametrize("rows", [1, 2, FEW_ROWS, FEW_ROWS + 1])
def test_any_number_of_rows_gives_the_same_product(rows):
    x, weight, pair = arguments(rows)
    plain = np.asarray(x) @ np.asarray(weight).T
    want = plain + 0.5 * (np.asarray(x) @ np.asarray(pair["a"]).T) @ np.asarray(pair["b"]).T
    np.testing.assert_allclose(linear(x, weight, pair, 0.5), want, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(linear(x, weight, None, 0.5), plain, rtol=0, atol=TOLERANCE)


def test_few_rows_are_on_the_right_of_the_product():
    def products(rows):
        x, weight, _ = arguments(rows)
        compiled = (
            jax.jit(lambda x, weight: linear(x, weight, None, 1.0)).lower(x, weight).compile()
        )
        return [line for line in compiled.as_text().splitlines() if " dot(" in line]

    (few,), (many,) = products(8), products(FEW_ROWS + 1)
    assert "f32[40,8]" in few, "the compiler has undone it"
    assert f"f32[{FEW_ROWS + 1},40]" in many
