"""A random policy that speaks in single characters and emits stop tokens often."""

import jax.numpy as jnp
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mintjax.adapters import LoraConfig
from mintjax.models.config import ModelConfig
from mintjax.policy import Policy
from tests.tiny import tiny_policy

CHARACTERS = (
    "abcdefghijklmnopqrstuvwxyzAU:ĠĊ"  # as byte-level vocabularies write a space and a newline
)


def speaking_tokenizer() -> Tokenizer:
    """A vocabulary so small that a random policy emits stop tokens often."""
    vocabulary = {character: number for number, character in enumerate(CHARACTERS)}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    names = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return made


def speaking_policy() -> Policy:
    """A policy of that vocabulary, version 7."""
    config = ModelConfig(
        name="tiny",
        vocab_size=speaking_tokenizer().get_vocab_size(),
        hidden_size=16,
        intermediate_size=24,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        context=512,
        tied_head=False,
    )
    made = tiny_policy(config=config, lora=LoraConfig(rank=2, alpha=4.0))
    return made.replace(version=jnp.int32(7))
