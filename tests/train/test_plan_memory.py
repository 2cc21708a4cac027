"""Estimates of what plans take in memory, against what the compiler plans, and against sums done by hand."""

from dataclasses import replace

import pytest

from mintjax.adapters import LoraConfig
from mintjax.train.plan import Plan
from mintjax.train.plan_memory import (
    Shapes,
    adapter_bytes,
    base_bytes,
    joined_segments,
    plan_memory,
    token_bytes,
)
from tests.plan_temp import compiled_bytes
from tests.tiny import CONFIG, EXPERTS

SHAPES = Shapes(replace(CONFIG, num_layers=2, intermediate_size=96), LoraConfig(rank=3), "float32")
# Of a width at which a layer's numbers are more than what belongs to its experts' tiles.
WIDE_EXPERTS = replace(
    CONFIG,
    num_layers=4,
    hidden_size=256,
    intermediate_size=768,
    num_kv_heads=2,
    head_dim=64,
    experts=replace(EXPERTS, intermediate_size=192),
)
LENGTHS = (320, 640)  # beyond what attention takes in one block
# Of the compiler's figure. What it fuses or keeps beside what a layer's backward pass needs cannot be seen in shapes.
A_TOKEN = {"packed": 0.15, "segments": 0.02}
BY_ARITHMETIC = 0.02
WHOLE = 0.25


@pytest.mark.parametrize(
    ("shapes", "plan"),
    [
        (SHAPES, Plan("packed")),
        (SHAPES, Plan("packed", remat=True)),
        (SHAPES, Plan("segments", 64)),
        # Of the three plans the one whose estimate is farthest off for experts.
        pytest.param(
            SHAPES._replace(config=WIDE_EXPERTS),
            Plan("packed", remat=True),
            marks=pytest.mark.wide,
        ),
    ],
    ids=["packed", "packed_remat", "segments", "experts_packed_remat"],
)
def test_an_estimate_is_what_the_compiler_plans(shapes, plan):
    estimate = plan_memory(shapes, plan, rows=2)
    short, long = (compiled_bytes(shapes, plan, 2, tokens) for tokens in LENGTHS)
    slope = (long - short) / (LENGTHS[1] - LENGTHS[0])
    assert 2 * estimate.per_token == pytest.approx(slope, rel=A_TOKEN[plan.kind])
    total = estimate.fixed + 2 * LENGTHS[1] * estimate.per_token
    assert total == pytest.approx(long, rel=WHOLE)


def test_room_for_the_caches_gradient_is_not_taken_while_labels_are_scored():
    # So long that it would be the most that is held at a time.
    plan, lengths = Plan("segments", 64, remat=True), (4096, 8192)
    short, long = (compiled_bytes(SHAPES, plan, 1, tokens) for tokens in lengths)
    slope = (long - short) / (lengths[1] - lengths[0])
    assert plan_memory(SHAPES, plan, rows=1).per_token == pytest.approx(slope, rel=BY_ARITHMETIC)


def test_segments_are_joined_where_there_is_room_for_products_of_256_rows():
    many = 2**20
    assert [joined_segments(SHAPES, n, many) for n in (16, 64, 100, 200, 512)] == [16, 4, 2, 1, 1]
    # All that a layer makes of 128 tokens, and attention's scores five times in its four heads.
    need = 128 * (token_bytes(SHAPES).layer + 5 * 4 * CONFIG.num_heads * 128)
    steps = -(-need // (64 * token_bytes(SHAPES).cache_gradient))
    assert joined_segments(SHAPES, 64, steps) == 2
    assert joined_segments(SHAPES, 64, steps - 1) == 1


def test_what_arithmetic_tells_is_counted_to_the_byte():
    config = SHAPES.config
    numbers = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        found = token_bytes(SHAPES._replace(dtype=dtype))
        assert found.cache == size * numbers
        assert found.cache_gradient == 4 * numbers
        assert found.layer_input == 4 * config.hidden_size
    d, f, q, k = config.hidden_size, 96, 32, 16
    linears = 2 * d * q + 2 * d * k + 3 * d * f
    norms = 2 * d + 2 * config.head_dim
    weights = 2 * (linears + norms) + d + 2 * config.vocab_size * d
    assert base_bytes(SHAPES) == 4 * weights
    ins_and_outs = 2 * (d + q) + 2 * (d + k) + 3 * (d + f)
    assert adapter_bytes(SHAPES) == 4 * 2 * 3 * ins_and_outs


def test_a_layer_keeps_at_least_its_linears_inputs_and_more_layers_keep_more():
    found = token_bytes(SHAPES)
    config = SHAPES.config
    inputs = 2 * config.hidden_size + config.num_heads * config.head_dim + 96
    assert found.layer > 4 * inputs
    deeper = SHAPES._replace(config=replace(config, num_layers=4))
    assert token_bytes(deeper).layer == found.layer
    assert token_bytes(deeper).cache == 2 * found.cache


def test_layers_of_two_kinds_are_counted_apart():
    plain = token_bytes(SHAPES)
    mixed = token_bytes(SHAPES._replace(config=replace(SHAPES.config, windows=(16, None))))
    # A window changes what is read, not what is kept.
    assert mixed == plain
    deeper = SHAPES._replace(config=replace(SHAPES.config, num_layers=6))
    assert token_bytes(deeper).layers == 3 * plain.layers


def test_a_model_of_experts_is_counted_layer_by_layer():
    config = replace(CONFIG, num_layers=3, experts=replace(EXPERTS, dense_layers=(1,)))
    mixed = token_bytes(SHAPES._replace(config=config))
    dense, experts = (
        token_bytes(SHAPES._replace(config=replace(config, experts=kind)))
        for kind in (None, EXPERTS)
    )
    assert mixed.layer == experts.layer > dense.layer
    assert 3 * mixed.layers == 2 * experts.layers + dense.layers
    # Three experts of a token keep their inputs and what stands between their linears.
    assert experts.layer - dense.layer > 3 * 4 * (CONFIG.hidden_size + 32) - 4 * 40
    d, rank, e = CONFIG.hidden_size, 3, 8
    linears = 3 * e * d * 32 + e * d - 3 * d * 40
    shapes = SHAPES._replace(config=replace(config, experts=None))
    assert base_bytes(SHAPES._replace(config=config)) == base_bytes(shapes) + 2 * 4 * linears
    factors = e * rank * 3 * (d + 32) - rank * 3 * (d + 40)
    assert adapter_bytes(SHAPES._replace(config=config)) == adapter_bytes(shapes) + 2 * 4 * factors


def test_rows_share_what_does_not_grow_and_a_segments_part_grows_with_them():
    one, two = (plan_memory(SHAPES, Plan("segments", 64), rows) for rows in (1, 2))
    assert one.per_token == two.per_token
    assert one.fixed < two.fixed < 2 * one.fixed
    packed = [plan_memory(SHAPES, Plan("packed"), rows) for rows in (1, 2)]
    assert packed[0] == packed[1]
