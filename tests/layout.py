"""The source tree laid out as it installs: `renderers/` and `train/` inside `mintjax/`.

Type checkers and import-linter read folders, not installed packages. `python -m tests.layout FOLDER` makes one for them.
"""

import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def packages() -> dict[str, Path]:
    """The folder of each package that does not lie where its name says: pyproject's `package-dir`."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        folders = tomllib.load(file)["tool"]["setuptools"]["package-dir"]
    return {package: ROOT / folder for package, folder in folders.items()}


def modules() -> dict[str, Path]:
    """The file of each module that installs, by the name it is imported by."""
    return {
        ".".join([package, *path.relative_to(folder).with_suffix("").parts]): path
        for package, folder in packages().items()
        for path in folder.rglob("*.py")
    }


def lay_out(destination: Path) -> Path:
    """Copy every package to where it installs under `destination`, which is made anew."""
    shutil.rmtree(destination, ignore_errors=True)
    for package, folder in packages().items():
        target = destination.joinpath(*package.split("."))
        shutil.copytree(
            folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    return destination


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
