"""One decoder layer's halves, and what the backward pass keeps of them: products alone, all else is made again."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_policies
from jax.tree_util import Partial
from jaxtyping import Array

from mintjax.models.dense import finish_layer, queries_keys_values
from mintjax.ordering import after
from mintjax.policy import Policy
from mintjax.products import PRODUCT


def start_layer(policy: Policy, index: int, rope: tuple[Array, Array], *, lean: bool):
    """The half of layer ``index`` before attention, as a function of its adapter and the residual stream.

    With ``lean`` its backward pass keeps inputs and products alone: less than half of what JAX would.
    """
    config, lora, weights = policy.config, policy.lora, policy.base["layers"][index]

    def start(given, adapter, residual):
        weights, rope = given
        return queries_keys_values(config, lora, weights, adapter, residual, rope)

    return partial(_lean(start) if lean else start, (weights, rope))


def end_layer(policy: Policy, index: int, *, lean: bool):
    """The half of layer ``index`` after attention, as a function of its adapter, residual stream and attention."""
    config, lora, weights = policy.config, policy.lora, policy.base["layers"][index]

    def end(weights, adapter, residual, attended):
        return finish_layer(config, lora, weights, adapter, residual, attended)

    return partial(_lean(end) if lean else end, weights)


def add_trees(a, b):
    """Adds two pytrees leaf by leaf."""
    return jax.tree.map(jnp.add, a, b)


def _lean(half: Callable) -> Callable:
    """A half that keeps its inputs and its products; what it is given first has no gradient.

    Norms and activations are quickly made again, and are as wide as what they are made of.
    """
    policy = checkpoint_policies.save_only_these_names(PRODUCT)
    keeping = jax.checkpoint(half, policy=policy, prevent_cse=False)
    run = jax.custom_vjp(half)

    def forward(given, adapter, *inputs):
        out, pull = jax.vjp(partial(keeping, given), adapter, *inputs)
        leaves, tree = jax.tree.flatten(pull)
        # Weights are among them. They are read where they lie: what waits for a cotangent is a copy.
        fixed = [id(x) for x in jax.tree.leaves((given, adapter))]
        made = tuple(id(x) not in fixed for x in leaves)
        return out, Partial(partial(_pull_late, tree, made), leaves)

    run.defvjp(forward, lambda pull, cotangents: (None, *pull(cotangents)))
    return run


def _pull_late(tree, made: tuple[bool, ...], leaves: list[Array], cotangents):
    first = jax.tree.leaves(cotangents)[0]
    late = [after(x, first) if new else x for x, new in zip(leaves, made, strict=True)]
    return jax.tree.unflatten(tree, late)(cotangents)
