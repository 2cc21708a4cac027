"""The product of two matrices that every linear is made of: how it is summed, and on which side the weight stands."""

from functools import partial, reduce

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

# The name of what a linear returns, and of its adapter's narrow product: what a backward pass keeps of a layer, since all
# else is quickly made from it again (`mintjax.train.layers`).
PRODUCT = "product"

# Terms of a float32 sum on CPU under jax.default_matmul_precision("highest"). One long sum rounds about twice as much.
SHORT_SUM = 64

# How many rows a product on CPU has that takes less time with the weight on the left: those of a decoding batch. With a few
# more it takes longer. One row times a matrix takes as long either way in float32; in bfloat16 the compiler computes it number
# by number, which for a head of 49,152 rows took 27 times as long as two rows did.
FEW_ROWS = {jnp.dtype("float32"): range(2, 33), jnp.dtype("bfloat16"): range(1, 17)}


def product(
    x: Float[Array, "_ _"], y: Float[Array, "_ _"], contracted: tuple[int, int]
) -> Float[Array, "_ _"]:
    """A product of two matrices over one dimension of each.

    Under ``jax.default_matmul_precision("highest")`` float32 products are as exact as the platform has them: on CPU,
    where they are float32 anyway, by adding up sums of 64 terms, which takes 1.2 to 3 times as long.

    Args:
        x: it gives the dtype of the factors.
        y: cast to it.
        contracted: the dimension of each that is summed over.

    Returns:
        The other dimension of x by the other one of y, in ``promote_types(x.dtype, float32)``, in which it is summed.

    Example:
        >>> product(x, weight, (1, 1))  # x Wᵀ
    """
    y = y.astype(x.dtype)
    one_sum = partial(_one_sum, contracted=contracted)
    precision = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    if x.dtype == jnp.float32 and precision in ("highest", "float32"):
        short_sums = partial(_short_sums, contracted=contracted)
        return jax.lax.platform_dependent(x, y, cpu=short_sums, default=one_sum)
    if contracted == (1, 1) and len(x) in FEW_ROWS.get(x.dtype, ()):
        return jax.lax.platform_dependent(x, y, cpu=_left_weight, default=one_sum)
    return one_sum(x, y)


def kept(y: Float[Array, "..."]) -> Float[Array, "..."]:
    """The same array, under the name of what is worth keeping for the backward pass.

    Example:
        >>> y = kept(product(x, weight, (1, 1)))
    """
    return checkpoint_name(y, PRODUCT)


def _left_weight(x: Array, y: Array) -> Array:
    """``x yᵀ`` as the transposed ``y xᵀ``, of two rows at least; the barrier keeps the compiler from undoing that."""
    rows = jnp.pad(x, ((0, max(0, 2 - len(x))), (0, 0)))
    return jax.lax.optimization_barrier(_one_sum(y, rows, (1, 1))).T[: len(x)]


def _one_sum(x: Array, y: Array, contracted: tuple[int, int]) -> Array:
    dimensions = ((contracted[:1], contracted[1:]), ((), ()))
    accumulate = jnp.promote_types(x.dtype, jnp.float32)
    return jax.lax.dot_general(x, y, dimensions, preferred_element_type=accumulate)


def _short_sums(x: Array, y: Array, contracted: tuple[int, int]) -> Array:
    parts = [*range(SHORT_SUM, x.shape[contracted[0]], SHORT_SUM)]
    split = zip(jnp.split(x, parts, contracted[0]), jnp.split(y, parts, contracted[1]), strict=True)
    return reduce(jnp.add, (_one_sum(*part, contracted) for part in split))
