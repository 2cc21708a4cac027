"""Every renderer with a real vocabulary."""

import pytest

from mintjax.renderers import Renderer, get_renderer
from tests.assets import vocabulary
from tests.families import FAMILIES


def speaker(name: str, **options) -> Renderer:
    """The renderer of a family, bound to its real vocabulary, on the day that its tests are written for."""
    family = FAMILIES[name]
    return get_renderer(name, vocabulary(family.vocabulary), date=family.date, **options)


@pytest.fixture(params=FAMILIES)
def renderer(request: pytest.FixtureRequest) -> Renderer:
    return speaker(request.param)
