"""Products of rows with the matrix of the group each belongs to: what experts' linears are made of.

Rows stand sorted by group, ``sizes`` says how many each group has. An accelerator has ``jax.lax.ragged_dot_general`` for
this. On CPU that computes every row with every group's matrix, so there a loop runs over *tiles*, pieces of at most so
many rows of one group. How many tiles there are is traced: one program serves all sizes, and its work is that of the
rows and of at most one partial tile a group.
"""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mintjax.ordering import after
from mintjax.products import product

Kind = Literal["platform", "loop", "ragged"]
Factors = tuple[tuple[Array, Array], ...]

# A tile has about as many rows as a group has on average: more would be masked, fewer read its matrix more often.
_FEWEST_ROWS, _MOST_ROWS = 8, 128


def grouped_rows(
    factors: Sequence[tuple[Float[Array, "T _"], Float[Array, "E _ _"]]],
    sizes: Int[Array, " E"],
    contracted: Literal[1, 2],
    kind: Kind = "platform",
) -> Float[Array, "T n"]:
    """Multiplies each row by its group's matrix, and adds up what several pairs of rows and matrices give.

    Args:
        factors: pairs of rows ``[T, m]``, sorted by group, and of one matrix a group; m may differ from pair to pair.
            Matrices are cast to the dtype of the rows, which is one for all.
        sizes: rows of each group; they add up to T.
        contracted: the dimension of the matrices that is summed over, of size m.
        kind: ``"loop"`` or ``"ragged"``; ``"platform"`` is the loop on CPU, ragged elsewhere. Static.

    Returns:
        ``[T, n]``, n the other dimension, in ``promote_types(dtype, float32)``, in which it is summed.

    Example:
        >>> y = grouped_rows([(x, weight)], sizes, 2)  # x Wᵀ of each row's expert
    """
    loop, ragged = (partial(f, contracted=contracted) for f in (_loop_rows, _ragged_rows))
    return _chosen(kind, loop, ragged)(tuple(factors), sizes)


def grouped_sums(
    x: Float[Array, "T m"],
    y: Float[Array, "T n"],
    sizes: Int[Array, " E"],
    kind: Kind = "platform",
) -> Float[Array, "E m n"]:
    """Sums the outer products of two rows over each group: the gradient by a group's matrix.

    Args:
        x: rows, sorted by group; they give the dtype of the factors.
        y: rows in the same order, cast to it.
        sizes: rows of each group; they add up to T.
        kind: as for :func:`grouped_rows`.

    Returns:
        ``xᵀ y`` of each group's rows, zero for an empty one, in ``promote_types(x.dtype, float32)``.

    Example:
        >>> d_weight = grouped_sums(d_y, x, sizes)  # [E, out, in]
    """
    return _chosen(kind, _loop_sums, _ragged_sums)(x, y, sizes)


def _chosen(kind: Kind, loop, ragged):
    if kind == "platform":
        return partial(jax.lax.platform_dependent, cpu=loop, default=ragged)
    return {"loop": loop, "ragged": ragged}[kind]


def _loop_rows(factors: Factors, sizes: Array, *, contracted: int) -> Array:
    first, matrices = factors[0]
    count, tile = _tiles(sizes, len(first))

    def step(t: Array, out: Array) -> Array:
        group, start, mine = tile(t)
        each = (
            product(_rows(x, start, mine), matrices[group], (1, contracted - 1))
            for x, matrices in factors
        )
        y = reduce(jnp.add, each)
        # A tile may reach into its neighbours' rows, which keep what is there.
        y = jnp.where(mine[:, None], y, _rows(out, start, mine))
        return jax.lax.dynamic_update_slice_in_dim(out, y, start, 0)

    dtype = jnp.promote_types(first.dtype, jnp.float32)
    empty = jnp.zeros((len(first), matrices.shape[3 - contracted]), dtype)
    return jax.lax.fori_loop(0, count, step, after(empty, first))


def _loop_sums(x: Array, y: Array, sizes: Array) -> Array:
    count, tile = _tiles(sizes, len(x))

    def step(t: Array, out: Array) -> Array:
        group, start, mine = tile(t)
        a, b = (jnp.where(mine[:, None], _rows(z, start, mine), 0) for z in (x, y))
        return out.at[group].add(product(a, b, (0, 0)))

    dtype = jnp.promote_types(x.dtype, jnp.float32)
    empty = jnp.zeros((len(sizes), x.shape[1], y.shape[1]), dtype)
    return jax.lax.fori_loop(0, count, step, after(empty, y))


def _rows(x: Array, start: Array, mine: Array) -> Array:
    """A tile's rows."""
    return jax.lax.dynamic_slice_in_dim(x, start, len(mine))


def _tiles(sizes: Int[Array, " E"], rows: int):
    """How many tiles there are (traced), and a function from a tile's number to its group, first row and own rows."""
    mean = -(-rows // len(sizes))
    # No more than there are rows: then a tile's slice, moved up where it would pass the end, is always inside.
    height = min(max(_FEWEST_ROWS, min(_MOST_ROWS, 1 << (mean - 1).bit_length())), rows)
    ends, tiles = jnp.cumsum(sizes), -(-sizes // height)
    tile_ends = jnp.cumsum(tiles)

    def tile(t: Array) -> tuple[Array, Array, Array]:
        group = jnp.sum(tile_ends <= t)
        first = ends[group] - sizes[group] + (t - tile_ends[group] + tiles[group]) * height
        start = jnp.minimum(first, rows - height)
        row = start + jnp.arange(height)
        return group, start, (first <= row) & (row < ends[group])

    return tile_ends[-1], tile


def _ragged_rows(factors: Factors, sizes: Array, *, contracted: int) -> Array:
    dimensions = ((1,), (contracted,)), ((), ())
    each = (_ragged(x, matrices.astype(x.dtype), sizes, dimensions, [0]) for x, matrices in factors)
    return reduce(jnp.add, each)


def _ragged_sums(x: Array, y: Array, sizes: Array) -> Array:
    return _ragged(x, y.astype(x.dtype), sizes, (((0,), (0,)), ((), ())), [])


def _ragged(x, y, sizes, dimensions, groups) -> Array:
    numbers = jax.lax.RaggedDotDimensionNumbers(dimensions, [0], groups)
    accumulate = jnp.promote_types(x.dtype, jnp.float32)
    return jax.lax.ragged_dot_general(x, y, sizes, numbers, preferred_element_type=accumulate)
