"""What is compiled of experts' linears; their values and gradients are compared in test_experts."""

import jax
import jax.numpy as jnp

from mintjax.models.grouped_linear import grouped_linear


def test_the_gradient_of_frozen_weights_is_left_out():
    def value(x, adapter, weight, sizes):
        return (grouped_linear(x, weight, sizes, adapter, 2.0) ** 2).sum()

    factors = {"a": jnp.ones((6, 2, 13)), "b": jnp.ones((6, 11, 2))}
    arguments = jnp.ones((48, 13)), factors, jnp.ones((6, 11, 13)), jnp.full(6, 8)

    def sums(by):
        """Sums over groups that are as large as the weights."""
        compiled = jax.jit(jax.grad(value, by)).lower(*arguments).compile().as_text()
        return compiled.count("f32[6,11,13]{2,1,0} broadcast(")

    assert (sums((0, 1)), sums((0, 1, 2))) == (0, 1)
