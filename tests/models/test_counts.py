"""Numbers that a token meets, against sums done by hand."""

from dataclasses import replace

from mintjax.models.counts import layer_numbers
from tests.tiny import CONFIG, EXPERTS

WIDTH, HEADS, KEYS = 24, 4 * 8, 2 * 8
ATTENTION = 2 * WIDTH * HEADS + 2 * WIDTH * KEYS


def test_a_dense_layer():
    assert layer_numbers(CONFIG, 1) == ATTENTION + 3 * WIDTH * 40


def test_a_layer_of_experts():
    config = replace(CONFIG, experts=replace(EXPERTS, shared_size=12, dense_layers=(0,)))
    assert layer_numbers(config, 0) == ATTENTION + 3 * WIDTH * 40
    routed, shared, router = 3 * 3 * WIDTH * 32, 3 * WIDTH * 12, 8 * WIDTH
    assert layer_numbers(config, 1) == ATTENTION + routed + shared + router
