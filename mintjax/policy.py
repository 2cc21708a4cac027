"""A policy: frozen base weights and a trained adapter, as one immutable pytree."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Int32

from mintjax.adapters import Adapter, LoraConfig, layer_adapter
from mintjax.attention import BLOCK, block_of
from mintjax.models.config import ModelConfig
from mintjax.models.dense import (
    Weights,
    attention_options,
    embed,
    final_norm,
    finish_layer,
    queries_keys_values,
    unembed,
)
from mintjax.models.rope import layer_tables
from mintjax.row_attention import attend_row


class Policy(struct.PyTreeNode):
    """Base weights and adapter of a model, with the configuration that says what they are.

    Attributes:
        config: the model. Static.
        lora: the adapter's rank, scale and coverage. Static.
        base: frozen weights (``mintjax.models.dense.weights_of`` describes the tree).
        adapter: trained weights (``mintjax.adapters.init_adapter``), or None for the base alone.
        version: counts the optimizer steps taken, int32; a state remembers the version that filled it.
    """

    config: ModelConfig = struct.field(pytree_node=False)
    lora: LoraConfig = struct.field(pytree_node=False)
    base: Weights
    adapter: Adapter | None
    version: Int32[Array, ""]

    def base_only(self) -> "Policy":
        """The policy before any training: the reference of a KL term."""
        return replace(self, adapter=None)

    def logits(self, tokens: Int[ArrayLike, "B N"]) -> Float[Array, "B N V"]:
        """Next-token logits at every position. For tests and small use: it holds N times V numbers a row.

        Args:
            tokens: rows of equal length.

        Returns:
            Logits in at least float32; those at n are for token n + 1.

        Raises:
            ValueError: if a row is longer than the model's context.

        Example:
            >>> policy.logits(jnp.array([[1, 2, 3]])).shape
            (1, 3, 49152)
        """
        tokens = jnp.asarray(tokens)
        size = tokens.shape[1]
        if size > self.config.context:
            raise ValueError(
                f"tokens: {self.config.name} has a context of {self.config.context} tokens, and a row has {size}; "
                f"pass shorter rows"
            )
        return _logits(self, jnp.pad(tokens, ((0, 0), (0, -size % BLOCK))))[:, :size]


@jax.jit
def _logits(policy: Policy, tokens: Int[Array, "B N"]) -> Float[Array, "B N V"]:
    config, lora = policy.config, policy.lora
    ropes = layer_tables(config, jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape))
    residual = embed(config, policy.base, tokens)
    for i, weights in enumerate(policy.base["layers"]):
        adapter = layer_adapter(policy.adapter, i)
        q, k, v = queries_keys_values(config, lora, weights, adapter, residual, ropes[i])
        options = attention_options(config, weights, i)
        out = attend_row(q, k, v, block_of(tokens.shape[1]), **options)
        residual = finish_layer(config, lora, weights, adapter, residual, out)
    return unembed(lora, policy.base, policy.adapter, final_norm(config, policy.base, residual))
