"""What a gradient plan takes in memory, from shapes alone: nothing is allocated and nothing compiled.

The backward pass of a layer needs numbers that its forward pass made; ``jax.eval_shape`` of the layer's own code counts
them. A plan is told by what it keeps of them, and for how many tokens:

    packed              every layer's, of whole rows
    packed, remat       every layer's input, and one layer's at a time, of whole rows
    segments            cache and its gradient of whole rows; every layer's numbers of one segment; a slope a token
    segments, remat     the same with every layer's input, and one layer's numbers, of one segment
    reverse_only        as segments, in a copy of the rollout's cache

What the compiler adds or saves by fusing cannot be seen in shapes. It goes in as factors that were measured.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mintjax.adapters import LoraConfig, init_adapter, layer_adapter
from mintjax.attention import BLOCK
from mintjax.models.config import ModelConfig, like_layer
from mintjax.models.dense import weight_shapes
from mintjax.models.rope import layer_tables
from mintjax.policy import Policy
from mintjax.scoring import CHUNK, COUNTED_CHUNK
from mintjax.train.packed import row_layer, row_logprobs
from mintjax.train.plan import Plan

_LENGTHS = (
    512,
    1024,
)  # beyond the rows that attention takes in one block, so that all grows evenly

# XLA's temporary memory for CPU, at five shapes: what layers keep, of a row and of a segment (a few sums are held as both of
# their terms); beside it, in units of all that one layer makes, while its turn in the backward pass lasts; and that of a
# layer that is recomputed.
_ROW_LAYERS = 1.03
_SEGMENT_LAYERS = 1.1
_BESIDE_ROW = 0.6
_BESIDE_SEGMENT = 0.75
_RECOMPUTED_LAYER = 1.25
_HEAD_COPIES = 2  # a chunk's logits, and their gradient
_SCORE_COPIES = 5  # attention's scores and weights of one segment or block, and their gradients
# Rows of a product; with more it is hardly faster, and attention within a segment is quadratic in them.
PRODUCT_ROWS = 256


class Shapes(NamedTuple):
    """What an estimate is made from. Hashable.

    Attributes:
        config: the model.
        lora: its adapter.
        dtype: name of the base weights' dtype.
    """

    config: ModelConfig
    lora: LoraConfig
    dtype: str


def shapes_of(policy: Policy) -> Shapes:
    """What estimates for a policy are made from.

    Example:
        >>> plan_memory(shapes_of(policy), Plan(), rows=8)
    """
    return Shapes(policy.config, policy.lora, policy.base["norm"].dtype.name)


class TokenBytes(NamedTuple):
    """Bytes that a token takes in one place or another.

    Attributes:
        layer: what one layer makes of it, products and all that is between them; the one that makes most.
        layers: what all of them keep for their backward passes.
        head: the same of what follows the last layer.
        layer_input: its residual stream between two layers.
        cache: its keys and values in all layers.
        cache_gradient: what flows to them.
    """

    layer: int
    layers: int
    head: int
    layer_input: int
    cache: int
    cache_gradient: int


class PlanMemory(NamedTuple):
    """Bytes that a gradient takes beside the weights, the adapter and the optimizer.

    Attributes:
        per_token: of one row.
        fixed: whatever the length of the rows.
    """

    per_token: int
    fixed: int


def plan_memory(shapes: Shapes, plan: Plan, rows: int) -> PlanMemory:
    """Estimates what a gradient takes, the gradient itself included and every token scored.

    Rows of few hundred tokens take somewhat more than this line says: attention holds all their scores at once.

    Args:
        shapes: model, adapter and dtype.
        plan: how the gradient is computed.
        rows: rows of a micro-batch.

    Returns:
        A line: ``fixed + rows * tokens * per_token``. For ``"reverse_only"`` the copy of the micro-batch's caches is in
        it, the caches that it is copied from are not.

    Example:
        >>> memory = plan_memory(Shapes(config, LoraConfig(), "bfloat16"), Plan("segments"), rows=8)
        >>> memory.fixed + 8 * 4096 * memory.per_token
    """
    config = shapes.config
    a_token = token_bytes(shapes)
    inputs = config.num_layers * a_token.layer_input
    accumulate = jnp.promote_types(shapes.dtype, jnp.float32).itemsize
    adapter = adapter_bytes(shapes)
    logits = _HEAD_COPIES * config.vocab_size * accumulate
    if plan.kind == "packed":
        kept = inputs if plan.remat else _ROW_LAYERS * a_token.layers
        beside = _RECOMPUTED_LAYER if plan.remat else _BESIDE_ROW
        per_token = kept + a_token.head + beside * a_token.layer
        return PlanMemory(int(per_token), adapter + CHUNK * logits)
    size = rows * plan.segment
    kept = inputs if plan.remat else _SEGMENT_LAYERS * a_token.layers
    beside = _RECOMPUTED_LAYER if plan.remat else _BESIDE_SEGMENT
    head = min(COUNTED_CHUNK, size) * logits
    scores = _score_bytes(shapes, plan.segment)
    layers, a_layer = size * (kept + a_token.head), size * max(beside * a_token.layer, scores)
    per_token = a_token.cache + a_token.cache_gradient
    if plan.kind == "segments" and "unembed" not in _adapter(config, shapes.lora):
        # The forward pass is done with the head, and leaves a slope for each token (mintjax.scoring).
        per_token += config.hidden_size * accumulate
        return PlanMemory(per_token, adapter + int(max(head, layers + a_layer)))
    # The head is done with when the last layer's turn comes.
    return PlanMemory(per_token, adapter + int(layers + max(head, a_layer)))


def joined_segments(shapes: Shapes, tokens: int, steps: int) -> int:
    """How many segments a forward pass runs as one: it keeps nothing of them but their cache.

    Args:
        shapes: model, adapter and dtype.
        tokens: of all rows of a segment.
        steps: segments that there are.

    Returns:
        As many as make a product large and take no more than the cache's gradient will, which comes later; at least 1.

    Example:
        >>> joined_segments(shapes, tokens=64, steps=32)
        4
    """
    a_token = token_bytes(shapes)
    room = steps * tokens * a_token.cache_gradient

    def need(size: int) -> int:
        return size * (a_token.layer + _score_bytes(shapes, size))

    counts = range(min(steps, PRODUCT_ROWS // tokens), 1, -1)
    return next((count for count in counts if need(count * tokens) <= room), 1)


@cache
def token_bytes(shapes: Shapes) -> TokenBytes:
    """Counts what a token takes, for every plan.

    Args:
        shapes: model, adapter and dtype.

    Returns:
        Bytes a token.

    Example:
        >>> token_bytes(Shapes(config, LoraConfig(), "bfloat16")).cache
        147456
    """
    config = shapes.config
    accumulate = jnp.promote_types(shapes.dtype, jnp.float32).itemsize
    kinds = [like_layer(config, layer, 1) for layer in range(config.num_layers)]
    kept = {kind: _layer_and_head(shapes._replace(config=kind)) for kind in set(kinds)}
    numbers = sum(heads * width for heads, width in config.cached) * config.num_layers
    return TokenBytes(
        layer=max(_made(shapes._replace(config=kind)) for kind in kept),
        layers=sum(kept[kind][0] for kind in kinds),
        head=kept[kinds[-1]][1],
        layer_input=config.hidden_size * accumulate,
        cache=numbers * jnp.dtype(shapes.dtype).itemsize,
        cache_gradient=numbers * accumulate,
    )


def base_bytes(shapes: Shapes) -> int:
    """What the frozen weights take.

    Example:
        >>> base_bytes(Shapes(config, LoraConfig(), "float32"))
    """
    return _size(weight_shapes(shapes.config, jnp.dtype(shapes.dtype)))


@cache
def adapter_bytes(shapes: Shapes) -> int:
    """What an adapter takes; its gradient takes as much, and AdamW's two moments twice that.

    Example:
        >>> adapter_bytes(Shapes(config, LoraConfig(), "float32"))
    """
    return _size(_adapter(shapes.config, shapes.lora))


def _score_bytes(shapes: Shapes, segment: int) -> int:
    """What attention's scores of a token take in a segment of so many."""
    accumulate = jnp.promote_types(shapes.dtype, jnp.float32).itemsize
    return _SCORE_COPIES * shapes.config.num_heads * max(BLOCK, segment) * accumulate


def _layer_and_head(shapes: Shapes) -> tuple[int, int]:
    """Bytes that a token takes in the layer of a model that has but one, and after it."""
    one, two = map(_kept, (shapes, shapes._replace(config=like_layer(shapes.config, 0, 2))))
    return two - one, one - (two - one)


def _made(shapes: Shapes) -> int:
    """Bytes that a layer makes of a token, were all kept that JAX would keep."""

    def made(tokens: int) -> int:
        policy = _policy(shapes)
        shape = 1, tokens, shapes.config.hidden_size
        residual = jax.ShapeDtypeStruct(shape, jnp.promote_types(shapes.dtype, jnp.float32))

        def forward(policy: Policy, residual: Any) -> Any:
            (rope,) = layer_tables(policy.config, jnp.arange(tokens)[None])
            layer = partial(row_layer, policy, 0, rope, BLOCK, "blockwise", None, False)
            return jax.vjp(layer, layer_adapter(policy.adapter, 0), residual)[1]

        return _size(jax.eval_shape(forward, policy, residual))

    return _a_token(made)


def _kept(shapes: Shapes) -> int:
    """Bytes of a token that a row's forward pass hands to its backward pass."""
    policy = _policy(shapes)

    def forward(policy: Policy, tokens: Any, positions: Any, labels: Any) -> Any:
        def logprobs(adapter: Any) -> jax.Array:
            row = (tokens, positions, labels)
            return row_logprobs(adapter, policy, *row, 1.0, block=BLOCK, remat=False)

        return jax.vjp(logprobs, policy.adapter)[1]

    def kept(tokens: int) -> int:
        row = _array(1, tokens), _array(tokens), _array(tokens)
        return _size(jax.eval_shape(forward, policy, *row))

    return _a_token(kept)


def _a_token(held: Callable[[int], int]) -> int:
    """What grows with the length: the weights among the arrays do not."""
    short, long = _LENGTHS
    return (held(long) - held(short)) // (long - short)


def _policy(shapes: Shapes) -> Policy:
    """An abstract policy."""
    base = weight_shapes(shapes.config, jnp.dtype(shapes.dtype))
    adapter = _adapter(shapes.config, shapes.lora)
    return Policy(shapes.config, shapes.lora, base, adapter, _array())


def _array(*shape: int) -> Any:
    """An abstract array of ids."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _adapter(config: ModelConfig, lora: LoraConfig) -> Any:
    """An abstract adapter."""
    return jax.eval_shape(lambda: init_adapter(config, lora, jax.random.key(0)))


def _size(tree: Any) -> int:
    """Bytes of a tree's arrays."""
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))
