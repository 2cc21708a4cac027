"""Every renderer with a real vocabulary."""

import pytest

from mintjax.renderers import Renderer, get_renderer
from tests.assets import vocabulary

SPEAKS = {
    "qwen3_instruct": "qwen3",
    "chatml": "qwen3",
    "smollm2": "smollm2",
    "role_colon": "smollm2",
}


@pytest.fixture(params=SPEAKS)
def renderer(request: pytest.FixtureRequest) -> Renderer:
    return get_renderer(request.param, vocabulary(SPEAKS[request.param]))
