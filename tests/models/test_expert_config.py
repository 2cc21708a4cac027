"""Which layers have experts."""

from dataclasses import replace

import pytest

from mintjax.models.config import like_layer
from tests.tiny import CONFIG, EXPERTS

CONFIG3 = replace(CONFIG, num_layers=3, experts=replace(EXPERTS, dense_layers=(0, 2)))


def test_layers_that_are_left_dense():
    assert [CONFIG3.experts_of(layer) is None for layer in range(3)] == [True, False, True]
    assert CONFIG.experts_of(0) is None


def test_layers_of_a_kind_are_like_each_other():
    first, second, third = (like_layer(CONFIG3, layer, 2) for layer in range(3))
    assert first == third == replace(CONFIG, num_layers=2)
    assert second == replace(CONFIG, num_layers=2, experts=EXPERTS)


@pytest.mark.parametrize("dense", [(0, 3), (2, 0), (1, 1), (-1,)])
def test_dense_layers_that_are_not_there_are_refused(dense):
    with pytest.raises(ValueError, match=r"experts\.dense_layers: expected layers among 3"):
        replace(CONFIG3, experts=replace(EXPERTS, dense_layers=dense))
