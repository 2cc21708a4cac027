"""A wheel and both kinds of editable install import the right code, from the source tree and from elsewhere."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import mintjax

ROOT = Path(__file__).resolve().parent.parent
PACKAGED = ("mintjax", "renderers", "train", "configs")

# Runs with -S: no site-packages, so that the mintjax under test is the only one. `addsitedir` processes
# the .pth file of an editable install; the dependencies follow as a plain folder, their .pth files unread.
IMPORT_ALL = """
import json, site, sys
site.addsitedir(sys.argv[1])
sys.path.append(sys.argv[2])
import mintjax, mintjax.configs, mintjax.renderers, mintjax.train, mintjax.types
modules = (mintjax, mintjax.configs, mintjax.renderers, mintjax.train, mintjax.types)
print(json.dumps([module.__file__ for module in modules]))
"""

BUILD = """
import json, sys
from setuptools import build_meta
kind, folder, settings = json.loads(sys.argv[1])
getattr(build_meta, kind)(folder, settings)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads: building in the source tree itself would leave files there."""
    tree = tmp_path_factory.mktemp("source") / "tree"
    for folder in PACKAGED:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    return tree


def build(tree: Path, kind: str, folder: Path, settings: dict[str, str] | None = None) -> Path:
    """Call the build backend's hook, as pip does, and unpack the wheel into `folder`."""
    wheels = folder.with_suffix(".wheels")
    wheels.mkdir()
    command = [sys.executable, "-c", BUILD, json.dumps([kind, str(wheels), settings])]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def imported_from(site: Path, cwd: Path) -> list[Path]:
    """The files that five imports load when `site` is installed and Python starts in `cwd`."""
    dependencies = sysconfig.get_path("purelib")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "-S", "-c", IMPORT_ALL, str(site), dependencies],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return [Path(file).resolve() for file in json.loads(result.stdout)]


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tree, "build_wheel", tmp_path_factory.mktemp("wheel") / "site")


def test_wheel_holds_every_module_and_every_data_file(wheel: Path, tree: Path):
    folders = {
        "mintjax": "mintjax",
        "renderers": "mintjax/renderers",
        "train": "mintjax/train",
        "configs": "mintjax/configs",
    }
    expected = {
        Path(installed, path.relative_to(tree / folder))
        for folder, installed in folders.items()
        for path in (tree / folder).rglob("*")
        if path.suffix in {".py", ".yaml", ".jsonl", ".typed"}
    }
    found = {path.relative_to(wheel) for path in (wheel / "mintjax").rglob("*") if path.is_file()}
    assert found == expected
    assert {"py.typed", "renderers/py.typed", "train/py.typed", "configs/count_down.yaml"} <= {
        path.relative_to("mintjax").as_posix() for path in found
    }


def test_wheel_installs_no_bare_top_level_name(wheel: Path):
    assert sorted(path.name for path in wheel.iterdir()) == ["mintjax", "mintjax-0.1.0.dist-info"]


def test_wheel_is_imported_from_elsewhere(wheel: Path, tmp_path: Path):
    assert all(path.is_relative_to(wheel) for path in imported_from(wheel, tmp_path))


def test_source_tree_shadows_the_wheel_as_a_whole(wheel: Path, tree: Path):
    assert all(path.is_relative_to(tree) for path in imported_from(wheel, tree))


@pytest.mark.parametrize("mode", ["lenient", "strict"])
def test_editable_install_is_imported_from_anywhere(mode: str, tree: Path, tmp_path: Path):
    site = build(tree, "build_editable", tmp_path / "site", {"editable_mode": mode})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for cwd in (tree, elsewhere):
        assert all(path.is_relative_to(tree) for path in imported_from(site, cwd)), cwd


def test_every_public_name_is_found():
    homes = set(mintjax._HOMES) | set(mintjax._SUBMODULES) | {"__version__"}
    assert set(mintjax.__all__) == homes
    assert all(getattr(mintjax, name) is not None for name in mintjax.__all__)
