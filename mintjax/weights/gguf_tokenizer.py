"""The tokenizer that a GGUF file carries, rebuilt as a ``tokenizers.Tokenizer``."""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

# What splits a text before the merges, by the name that llama.cpp gives it.
_SPLITTERS = {
    "smollm": lambda prefix: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=True),
        ]
    )
}

_CONTROL, _USER_DEFINED = 3, 4  # entries of tokenizer.ggml.token_type


def gguf_tokenizer(fields: Mapping[str, Any], name: str) -> Tokenizer:
    """Builds the byte-level BPE that the metadata describes, equal in ids to the original tokenizer.

    It adds no token of its own, whatever the file says of BOS and EOS: renderers place those.

    Args:
        fields: the metadata, as ``gguf_file.metadata`` gives it.
        name: what to call the file in errors.

    Returns:
        The tokenizer; control tokens are special added tokens.

    Raises:
        ValueError: for another kind of tokenizer or another way to split texts, by its name.

    Example:
        >>> gguf_tokenizer(metadata(reader), "model").encode("Hi").ids  # doctest: +SKIP
        [25557]
    """
    kind, splitter = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or splitter not in _SPLITTERS:
        raise ValueError(
            f"{name}: tokenizer.ggml.model and .pre: expected 'gpt2' with one of "
            f"{tuple(_SPLITTERS)}, got {kind!r} with {splitter!r}; load the tokenizer from a "
            "tokenizer.json"
        )
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    add_prefix_space = bool(fields.get("tokenizer.ggml.add_space_prefix", False))
    tokenizer.pre_tokenizer = _SPLITTERS[splitter](add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    return tokenizer
