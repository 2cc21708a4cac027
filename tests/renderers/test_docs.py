"""The table of families says what renderers do."""

import pytest

from mintjax.renderers import renderer_names
from mintjax.renderers.format import calls_tools
from tests.families import FAMILIES
from tests.layout import ROOT
from tests.renderers.conftest import speaker
from tests.renderers.replies import HI, call, result, said

LINES = (ROOT / "docs" / "renderers.md").read_text().splitlines()
ROWS = {
    row[1].strip(" `"): [cell.strip() for cell in row[4:-1]]
    for row in (line.split("|") for line in LINES if line.startswith("| `"))
}


def test_every_renderer_has_a_row():
    assert sorted(ROWS) == sorted(renderer_names())


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_row_says(name):
    renderer, family = speaker(name), FAMILIES[name]
    thinking, tools, *extends = ROWS[name]
    assert (thinking in ("on", "always")) == renderer.form.reasons
    assert tools == (
        "schemas" if renderer.form.declares_tools else "calls" if family.calls else "none"
    )
    assert calls_tools(renderer.form) == (tools != "none")
    thought = {"reasoning_content": "R"} if family.reasoning else {}
    loop = [HI, said("", tool_calls=[call(renderer, {"x": 1})], **thought), result("ok")]
    talks = [
        [HI, said("yo"), HI, said("yo"), HI],
        [HI, said("A", **thought), HI] if family.reasoning else None,
        [*loop, said("fin", **thought), HI] if family.calls else None,
    ]
    found = [
        "-" if talk is None else "yes" if renderer.can_extend(talk) else "no" for talk in talks
    ]
    assert extends == found
