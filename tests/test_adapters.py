"""A linear and its adapter, over few rows and many; and what an adapter is before training."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.adapters import LoraConfig, init_adapter, linear, linear_shapes
from mintjax.products import FEW_ROWS
from tests.tiny import CONFIG, EXPERTS

TOLERANCE = 1e-4  # of sums of 24 products in float32


def arguments(rows):
    rng = np.random.default_rng(0)
    x, weight, a, b = (
        jnp.asarray(rng.standard_normal(shape, np.float32))
        for shape in ((rows, 24), (40, 24), (3, 24), (40, 3))
    )
    return x, weight, {"a": a, "b": b}


# Of float32 sums; what goes in is rounded to bfloat16 once, and so is the adapter's narrow product.
TOLERANCES = {"float32": TOLERANCE, "bfloat16": 0.05}


@pytest.mark.parametrize("dtype", FEW_ROWS, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 32, 33])
def test_any_number_of_rows_gives_the_same_product(rows, dtype):
    x, weight, pair = jax.tree.map(lambda x: x.astype(dtype), arguments(rows))
    wide_x, wide, wide_pair = jax.tree.map(lambda x: np.asarray(x, np.float64), (x, weight, pair))
    plain = wide_x @ wide.T
    want = plain + 0.5 * (wide_x @ wide_pair["a"].T) @ wide_pair["b"].T
    # The frozen product is of exact factors, whatever their dtype.
    np.testing.assert_allclose(linear(x, weight, None, 0.5), plain, rtol=0, atol=TOLERANCE)
    atol = TOLERANCES[str(dtype)]
    np.testing.assert_allclose(linear(x, weight, pair, 0.5), want, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("dtype", "few"), [("float32", 2), ("float32", 32), ("bfloat16", 1), ("bfloat16", 16)]
)
def test_few_rows_are_on_the_right_of_the_product(dtype, few):
    def product(rows):
        x, weight, _ = jax.tree.map(lambda x: x.astype(dtype), arguments(rows))
        compiled = (
            jax.jit(lambda x, weight: linear(x, weight, None, 1.0)).lower(x, weight).compile()
        )
        (dot,) = (line for line in compiled.as_text().splitlines() if " dot(" in line)
        return dot

    # One row is computed as two.
    assert f"f32[40,{max(few, 2)}]" in product(few), "the compiler has undone it"
    many = FEW_ROWS[jnp.dtype(dtype)].stop
    assert f"f32[{many},40]" in product(many)


# Drawn from key 7 for the tiny model: the second and third number of each row of A.
DRAWN = {
    "o of layer 1": [[-0.02305782400071621, 0.016863754019141197], [-0.08313170820474625, -0.07446116954088211]],
    "down of layer 0": [[0.01823594979941845, 0.11105247586965561], [-0.10584256052970886, -0.06598062068223953]],
    "unembed": [[0.037505604326725006, 0.10303755849599838], [0.02186748944222927, -0.09242002665996552]],
}  # fmt: skip


def test_initial_numbers_stay():
    adapter = init_adapter(CONFIG, LoraConfig(rank=2, train_unembed=True), jax.random.key(7))
    found = adapter["layers"][1]["o"], adapter["layers"][0]["down"], adapter["unembed"]
    for pair, want in zip(found, DRAWN.values(), strict=True):
        np.testing.assert_allclose(pair["a"][:, 1:3], want, rtol=1e-6)
        assert not pair["b"].any()


def test_a_layers_initial_numbers_do_not_depend_on_how_many_layers_there_are():
    lora, key = LoraConfig(rank=2, train_unembed=True), jax.random.key(7)
    shallow, deep = (
        init_adapter(replace(CONFIG, num_layers=layers), lora, key) for layers in (2, 5)
    )
    deep["layers"] = deep["layers"][:2]
    jax.tree.map(np.testing.assert_array_equal, shallow, deep)


def test_an_experts_initial_numbers_do_not_depend_on_how_many_experts_or_layers_there_are():
    lora, key = LoraConfig(rank=2), jax.random.key(7)

    def drawn(layers, number):
        experts = replace(EXPERTS, routing=replace(EXPERTS.routing, experts=number))
        config = replace(CONFIG, num_layers=layers, experts=experts)
        return init_adapter(config, lora, key)["layers"][1]

    few, many = drawn(2, 4), drawn(5, 8)
    assert set(few) == {"q", "k", "v", "o", "experts_gate", "experts_up", "experts_down"}
    for name, pair in few.items():
        got = many[name]["a"][:4] if name.startswith("experts_") else many[name]["a"]
        np.testing.assert_array_equal(got, pair["a"])
    # Every expert has numbers of its own, as wide as its input allows.
    every = np.concatenate([many["experts_gate"]["a"], many["experts_up"]["a"]])
    assert len(np.unique(every)) == every.size
    assert 0.9 < np.abs(every).max() * CONFIG.hidden_size**0.5 <= 1
    assert many["experts_down"]["b"].shape == (8, CONFIG.hidden_size, 2)
    assert not many["experts_down"]["b"].any()


def test_linears_of_a_layer_that_is_not_there_are_refused():
    with pytest.raises(IndexError, match="layer: expected one of 2, got 2"):
        linear_shapes(CONFIG, 2)
