"""The import arrows hold, and the contracts in pyproject see every kind of import that would break them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.layout import ROOT, lay_out

VIOLATIONS = {
    "edges → train → core → renderers → types": {
        "mintjax/policy.py": "import mintjax.train.losses",
        "mintjax/types/datum.py": "import mintjax.renderers",
        "mintjax/train/losses.py": "from mintjax import cli",
        "mintjax/train/optimizer.py": "from mintjax import client",
        "mintjax/train/plots.py": "from mintjax import bench",
        "mintjax/bench/__init__.py": "from mintjax import cli",
        "mintjax/cli/main.py": "from mintjax import client",
        "mintjax/renderers/__init__.py": "import mintjax.models.config",
        "mintjax/unplaced.py": "",
    },
    "renderers and types know no model": {
        "mintjax/renderers/__init__.py": "def late():\n    import jax\n",
        "mintjax/types/datum.py": "from transformers import AutoTokenizer",
    },
    "draccus stays behind the configuration": {"mintjax/train/losses.py": "import draccus"},
    "orbax stays behind the checkpoints": {
        "mintjax/cache.py": "from orbax.checkpoint import v1",
    },
    "gguf stays behind the weights": {"mintjax/loading.py": "from gguf import GGUFReader"},
    "packages go by their installed names": {"mintjax/cli/__init__.py": "from train import losses"},
}


def lint(layout: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of pyproject against the packages under `layout`."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    return subprocess.run(
        [*command, ROOT / "pyproject.toml"], cwd=layout, capture_output=True, text=True
    )


def test_arrows_hold(tmp_path: Path):
    result = lint(lay_out(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("contract", "module", "line"),
    [(name, *case) for name, cases in VIOLATIONS.items() for case in cases.items()],
)
def test_contract_refuses(contract: str, module: str, line: str, tmp_path: Path):
    layout = lay_out(tmp_path)
    with (layout / module).open("a") as file:
        file.write(f"\n{line}\n")
    result = lint(layout)
    assert result.returncode == 1
    broken = [text.split(" BROKEN")[0] for text in result.stdout.splitlines() if " BROKEN" in text]
    assert broken == [contract], result.stdout
