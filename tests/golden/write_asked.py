"""Writes `asked.json`: what the tests ask of official templates that are in no public package.

`python -m tests.golden.write_asked`, from the repository root; needs the templates.
"""

import json

import pytest

from tests import official
from tests.layout import ROOT

if __name__ == "__main__":
    official.asked = {}
    # Random conversations are left out where the template is not there, and so is the comparison with other packages.
    files = [
        str(path)
        for path in sorted((ROOT / "tests" / "renderers").glob("test_*.py"))
        if "official_ids" in path.read_text()
        and path.stem not in ("test_official_templates", "test_peers", "test_thirty_cases")
    ]
    quietly = ["-q", "-p", "no:xdist", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    assert pytest.main([*quietly, *files]) == 0
    rows = ",\n".join(
        f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(answer)}"
        for key, answer in sorted(official.asked.items())
    )
    official.ASKED.write_text(f"{{\n{rows}\n}}\n")
