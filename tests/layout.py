"""The source tree laid out as it installs: `renderers/` and `train/` inside `mintjax/`.

Type checkers and import-linter read folders, not installed packages. `python -m tests.layout FOLDER` makes one for them.
"""

import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lay_out(destination: Path) -> Path:
    """Copy every package of pyproject's `package-dir` to where it installs under `destination`, which is made anew."""
    shutil.rmtree(destination, ignore_errors=True)
    with (ROOT / "pyproject.toml").open("rb") as file:
        folders = tomllib.load(file)["tool"]["setuptools"]["package-dir"]
    for package, folder in folders.items():
        target = destination.joinpath(*package.split("."))
        shutil.copytree(
            ROOT / folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    return destination


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
