"""Log probabilities of whole rows, differentiable: the plan that holds a row's activations at once."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from mintjax.adapters import Adapter, layer_adapter
from mintjax.attention_kernels import Kernel
from mintjax.models.dense import attention_options, embed, final_norm
from mintjax.models.rope import layer_tables
from mintjax.ordering import after
from mintjax.policy import Policy
from mintjax.row_attention import attend_row
from mintjax.scoring import predictors, token_logprobs
from mintjax.train.layers import end_layer, start_layer


def row_logprobs(
    adapter: Adapter | None,
    policy: Policy,
    tokens: Int[Array | np.ndarray, "B N"],
    positions: Int[Array | np.ndarray, " P"],
    labels: Int[Array | np.ndarray, " P *K"],
    temperature: Float[ArrayLike, ""],
    *,
    block: int,
    remat: bool,
    kernel: Kernel = "blockwise",
    starts: Int[Array | np.ndarray, "B N"] | None = None,
) -> Float[Array, " P *K"]:
    """Log probabilities of labels at chosen positions of right-padded rows, given all tokens before each in its document.

    A row is one document, or several that do not see each other.

    Args:
        adapter: what the result is differentiated by; it takes the place of ``policy.adapter``.
        policy: the model.
        tokens: rows; N is a multiple of the block.
        positions: places in the flattened rows; at a row's first there is nothing to predict from.
        labels: the ids to score there: the rows' own tokens, or any others, one a position or K.
        temperature: what logits are divided by.
        block: attention's block.
        remat: keep each layer's input alone and recompute the rest in the backward pass.
        kernel: what computes attention.
        starts: for each place the one in its row where its document begins; None where a row is one.

    Returns:
        Log probabilities, shaped as the labels.

    Example:
        >>> logprobs = row_logprobs(policy.adapter, policy, tokens, places, labels, 1.0, block=64, remat=False)
    """
    policy = policy.replace(adapter=adapter)
    batch, size = tokens.shape
    starts = None if starts is None else jnp.asarray(starts)
    places = jnp.broadcast_to(jnp.arange(size), tokens.shape)
    ropes = layer_tables(policy.config, places if starts is None else places - starts)
    residual = embed(policy.config, policy.base, jnp.asarray(tokens))
    for i in range(policy.config.num_layers):
        # A layer that is recomputed whole keeps nothing for long: made again twice, it would take more.
        options = ropes[i], block, kernel, starts, not remat
        layer = partial(row_layer, policy.replace(adapter=None), i, *options)
        residual = (_rematerialised(layer) if remat else layer)(layer_adapter(adapter, i), residual)
    hidden = final_norm(policy.config, policy.base, residual)
    nothing = jnp.zeros((batch, hidden.shape[-1]), hidden.dtype)
    scored_by = predictors(nothing, hidden).reshape(batch * size, -1)[positions]
    return token_logprobs(policy, scored_by, labels, temperature)


def row_layer(policy, index, rope, block, kernel, starts, lean, adapter, residual):
    """A whole layer, as a function of its adapter and the residual stream."""
    q, k, v = start_layer(policy, index, rope, lean=lean)(adapter, residual)
    options = attention_options(policy.config, policy.base["layers"][index], index)
    out = attend_row(q, k, v, block, kernel, starts=starts, **options)
    return end_layer(policy, index, lean=lean)(adapter, residual, out)


def _rematerialised(layer):
    @jax.custom_vjp
    def run(adapter, residual):
        return layer(adapter, residual)

    def backward(saved, cotangent):
        adapter, residual = saved
        return jax.vjp(layer, adapter, after(residual, cotangent))[1](cotangent)

    run.defvjp(lambda adapter, residual: (layer(adapter, residual), (adapter, residual)), backward)
    return run
