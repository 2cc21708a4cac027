"""Models of random weights, a vocabulary of characters, and episodes of random tokens, of the sizes that are measured."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mintjax.adapters import LoraConfig, init_adapter
from mintjax.models.config import ModelConfig
from mintjax.models.dense import weight_shapes
from mintjax.policy import Policy
from mintjax.train.batches import Batch

SMALL = ModelConfig(
    name="4 layers of width 256",
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=768,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    context=8192,
    tied_head=False,
)
SMOLLM2 = ModelConfig(
    name="SmolLM2-135M's shape",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    context=8192,
)
WIDE_HEAD = ModelConfig(
    name="8 layers of width 512, vocabulary 151,936",
    vocab_size=151_936,
    hidden_size=512,
    intermediate_size=1536,
    num_layers=8,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    context=32_768,
)

FIRST, OBSERVED, SAMPLED = (
    64,
    32,
    16,
)  # tokens: a conversation's first, then what a turn brings and what it says


def random_policy(config: ModelConfig, *, rank: int = 8) -> Policy:
    """A model of random weights in float32, with an adapter on all linears of its layers.

    Example:
        >>> policy = random_policy(SMALL)
    """
    lora = LoraConfig(rank=rank, alpha=2.0 * rank)
    rng = np.random.default_rng(0)

    # Drawn by numpy: compiling a draw for each of a large model's weights takes longer than most benchmarks.
    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if leaf.ndim == 1:  # a norm
            return jnp.ones(leaf.shape)
        return jnp.asarray(rng.standard_normal(leaf.shape, np.float32) * leaf.shape[-1] ** -0.5)

    adapter = jax.eval_shape(partial(init_adapter, config, lora), jax.random.key(0))
    base, adapter = jax.tree.map(draw, (weight_shapes(config), adapter))
    return Policy(config, lora, base, adapter, jnp.int32(0))


def random_tokens(config: ModelConfig, *shape: int) -> np.ndarray:
    """Token ids, the same ones at every call."""
    return np.random.default_rng(0).integers(0, config.vocab_size, shape).astype(np.int32)


def tokens_of(turns: int) -> int:
    """How many tokens a conversation of so many turns has.

    Example:
        >>> tokens_of(2)
        128
    """
    return FIRST + SAMPLED + (turns - 1) * (OBSERVED + SAMPLED)


def random_batch(config: ModelConfig, rows: int, tokens: int) -> Batch:
    """Full rows of random tokens, of which the last third of every turn is trained."""
    shape = (rows, tokens)
    place = np.arange(tokens) - FIRST
    sampled = (place >= 0) & (place % (SAMPLED + OBSERVED) < SAMPLED)
    mask = np.broadcast_to(sampled, shape).astype(np.float32)
    advantages = mask * np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return Batch(
        tokens=random_tokens(config, *shape),
        length=np.full(rows, tokens, np.int32),
        mask=mask,
        advantages=advantages,
        logprobs=-mask * np.float32(np.log(config.vocab_size)),
        weights=advantages,
        temperature=np.ones((), np.float32),
    )


def character_tokenizer() -> Tokenizer:
    """A vocabulary of single ASCII characters and ChatML's control tokens.

    Example:
        >>> character_tokenizer().encode("hi").ids
        [71, 72]
    """
    # A space and a newline as byte-level BPE writes them.
    alphabet = [*(chr(code) for code in range(33, 127)), "Ġ", "Ċ"]
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in names]
    )
    return tokenizer
