"""The attention kernels of NVIDIA GPUs and TPUs, behind the shapes of :func:`mintjax.attention.attend`.

| name | what it is | where | dtypes | heads |
|---|---|---|---|---|
| ``"blockwise"`` | ``mintjax.attention``, compiled by XLA | anywhere | any | any |
| ``"cudnn"`` | ``jax.nn.dot_product_attention`` | NVIDIA GPUs from Ampere on | bfloat16, float16 | a multiple of 8, up to 128, from Hopper on 256 |
| ``"splash"`` | JAX's splash attention, a Pallas kernel | one TPU | bfloat16, float32 | any |

Sliding windows, sinks and latents are served by ``"blockwise"`` alone. Both kernels are causal from the first query and the
first key on, and a segment stands at the end of its keys, at a place that differs from row to row and from call to call. So a cache is laid before the segment's own keys, and what a row does
not see of it is masked by data: cuDNN takes a mask ``[B, 1, S, N + S]``; splash takes a causal mask shifted by the
capacity, which is static, and two kinds of slots, seen and unseen. That is one program a capacity, and the kernels' own
backward passes hold. The price: a cache is copied and read whole, where ``"blockwise"`` reads up to the longest prefix.
(Merging two calls by their logsumexp would spare that; but ``jax.nn`` gives the logsumexp in the dtype of the queries,
too coarse in bfloat16, and neither kernel lets a gradient through it.)
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from mintjax.attention import Span, for_each_row

Kernel = Literal["blockwise", "cudnn", "splash"]
_LANES = 128  # splash takes lengths that are multiples of a TPU's vector lanes
_SPLASH_BLOCKS = (512, 256, _LANES)


class Hardware(NamedTuple):
    """Where attention is to run.

    Attributes:
        platform: ``"cuda"`` for an NVIDIA GPU, otherwise JAX's name: ``"cpu"``, ``"tpu"``, ``"gpu"``.
        capability: an NVIDIA GPU's compute capability, as (9, 0) for Hopper.
        devices: how many devices share the work.
    """

    platform: str
    capability: tuple[int, ...] = (0, 0)
    devices: int = 1


def hardware_of(array: ArrayLike) -> Hardware:
    """The hardware that an array lies on; JAX's default device for one of numpy.

    Example:
        >>> hardware_of(jnp.zeros(1))
        Hardware(platform='cpu', capability=(0, 0), devices=1)
    """
    return _hardware(jnp.asarray(array).sharding.device_set)


def _hardware(devices: Collection[Any]) -> Hardware:
    """Devices of one kind, described."""
    device = next(iter(devices))
    if device.platform == "gpu" and "cuda" in device.client.platform_version:
        capability = tuple(int(part) for part in device.compute_capability.split("."))
        return Hardware("cuda", capability, len(devices))
    return Hardware(device.platform, devices=len(devices))


def choose_kernel(
    name: str,
    hardware: Hardware,
    head_dim: int,
    dtype: jnp.dtype,
    *,
    features: Sequence[str] = (),
) -> Kernel:
    """The kernel of a name, where it can serve; ``"auto"`` is the platform's own where it can, else ``"blockwise"``.

    Args:
        name: ``"auto"`` or a kernel's.
        hardware: where it will run.
        head_dim: numbers in a head.
        dtype: of queries, keys and values, which is the weights'.
        features: what attention has beside causal softmax in some layer; ``"blockwise"`` alone serves any.

    Returns:
        A kernel that runs there.

    Raises:
        ValueError: if the name is none of these, or its kernel cannot serve.

    Example:
        >>> choose_kernel("auto", Hardware("cuda", (9, 0)), 128, jnp.dtype("bfloat16"))
        'cudnn'
    """
    if name == "auto":
        own: dict[str, Kernel] = {"cuda": "cudnn", "tpu": "splash"}
        kernel = own.get(hardware.platform, "blockwise")
        return "blockwise" if _refusal(kernel, hardware, head_dim, dtype, features) else kernel
    for kernel in get_args(Kernel):
        if name == kernel:
            if reason := _refusal(kernel, hardware, head_dim, dtype, features):
                raise ValueError(f"attention: {name!r} needs {reason}; take 'blockwise' or 'auto'")
            return kernel
    raise ValueError(f"attention: expected 'auto' or one of {get_args(Kernel)}, got {name!r}")


def _refusal(
    kernel: Kernel, hardware: Hardware, head_dim: int, dtype: jnp.dtype, features: Sequence[str]
) -> str | None:
    """What a kernel needs and does not have, in words; None where it can serve."""
    if kernel == "blockwise":
        return None
    platform, dtypes = {
        "cudnn": ("cuda", ("bfloat16", "float16")),
        "splash": ("tpu", ("bfloat16", "float32")),
    }[kernel]
    if hardware.platform != platform:
        where = {"cuda": "an NVIDIA GPU", "tpu": "a TPU"}[platform]
        return f"{where}, and the weights are on {hardware.platform!r}"
    if features:
        return f"a model without {' and '.join(features)}"
    if dtype.name not in dtypes:
        return f"weights of {' or '.join(dtypes)}, which load_policy(dtype=...) gives, and these are {dtype.name}"
    if kernel == "splash":
        return f"a single device, got {hardware.devices}" if hardware.devices > 1 else None
    capability = ".".join(map(str, hardware.capability))
    if hardware.capability < (8, 0):
        return f"compute capability 8.0 (Ampere), got {capability}"
    most = 256 if hardware.capability >= (9, 0) else 128
    if head_dim % 8 or head_dim > most:
        return f"a head that is a multiple of 8 up to {most} at compute capability {capability}, got {head_dim}"
    return None


def attend_cudnn(
    q: Float[Array, "B K G S H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S H"],
    spans: Sequence[Span] = (),
    *,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B K G S H"]:
    """Attends as :func:`mintjax.attention.attend` does, through ``jax.nn.dot_product_attention``; differentiable.

    cuDNN's backward pass adds in no fixed order, so two runs may differ in a gradient's last bits.

    Args:
        q: the segment's queries, grouped by key head.
        k: the segment's own keys.
        v: the segment's own values.
        spans: what stands before.
        implementation: ``"xla"`` computes the same without cuDNN, in memory quadratic in the length.

    Returns:
        The mean of the values that each position sees.

    Example:
        >>> out = attend_cudnn(q, k, v, [Span(keys, values, length)])
    """
    attend = partial(jax.nn.dot_product_attention, implementation=implementation)
    size = q.shape[3]
    # The backward pass takes even lengths alone; a capacity is even.
    q, k, v = (_padded(x, 2) for x in (q, k, v))
    if not spans:
        out = attend(_flat(q), _flat(k), _flat(v), is_causal=True)
        return _grouped(out, q.shape)[..., :size, :]
    seen = _seen(spans, q.shape[0])[:, None]
    seen = jnp.broadcast_to(seen, (q.shape[0], q.shape[3], seen.shape[2]))
    own = jnp.broadcast_to(jnp.tri(q.shape[3], dtype=bool), (q.shape[0], q.shape[3], q.shape[3]))
    mask = jnp.concatenate([seen, own], 2)[:, None]
    keys, values = _joined(spans, k, v)
    return _grouped(attend(_flat(q), _flat(keys), _flat(values), mask=mask), q.shape)[..., :size, :]


# Compiled by itself, so that the layers of a model trace it once: splash lays its mask out in blocks on the host.
@partial(jax.jit, static_argnames="interpret")
def attend_splash(
    q: Float[Array, "B K G S H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S H"],
    spans: Sequence[Span] = (),
    *,
    interpret: bool = False,
) -> Float[Array, "B K G S H"]:
    """Attends as :func:`mintjax.attention.attend` does, through JAX's splash attention; differentiable.

    Args:
        q: the segment's queries, grouped by key head.
        k: the segment's own keys.
        v: the segment's own values.
        spans: what stands before.
        interpret: run the kernel's program without a TPU, slowly.

    Returns:
        The mean of the values that each position sees.

    Example:
        >>> out = attend_splash(q, k, v, [Span(keys, values, length)])
    """
    # Pallas takes most of a second to import, and few need it.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    size, group = q.shape[3], q.shape[2]
    keys, values = _joined(spans, k, v)
    offset = keys.shape[2] - size
    q, keys, values = (_padded(x, _LANES) for x in (q * q.shape[-1] ** -0.5, keys, values))
    mask = splash.CausalMask((q.shape[3], keys.shape[2]), offset=offset)
    block_q, block_kv = _splash_block(q.shape[3]), _splash_block(keys.shape[2])
    kernel = splash.make_splash_mqa(
        splash.MultiHeadMask([mask] * group),
        block_sizes=splash.BlockSizes(
            block_q=block_q,
            block_kv=block_kv,
            block_q_dkv=block_q,
            block_kv_dkv=block_kv,
            block_q_dq=block_q,
            block_kv_dq=block_kv,
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    run = cast(Callable[..., Array], kernel)  # without residuals it returns the output alone
    if not spans:
        return jax.vmap(jax.vmap(run))(q, keys, values)[..., :size, :]
    # A query sees the slots of its own kind, up to itself. Padding at the end of the keys lies past every real query.
    unseen = jnp.pad(~_seen(spans, q.shape[0]), ((0, 0), (0, keys.shape[2] - offset))).astype(
        jnp.int32
    )
    kinds = splash.SegmentIds(q=jnp.zeros((q.shape[0], q.shape[3]), jnp.int32), kv=unseen)
    over_heads = jax.vmap(run, in_axes=(0, 0, 0, None))
    return jax.vmap(over_heads)(q, keys, values, kinds)[..., :size, :]


def platform_attention(
    kernel: Literal["cudnn", "splash"],
    window: int | None = None,
    sinks: Array | None = None,
) -> Callable[..., Float[Array, "B K G S H"]]:
    """The function of a platform's kernel: q, k, v and the spans before them in, the mean of values out.

    Raises:
        ValueError: for a window or sinks, which neither serves.

    Example:
        >>> out = platform_attention("cudnn")(q, k, v, [Span(keys, values, length)])
    """
    if window is not None:
        raise ValueError(
            f"window: {kernel!r} serves no sliding window, got {window}; take 'blockwise'"
        )
    if sinks is not None:
        raise ValueError(f"sinks: {kernel!r} serves no attention sinks; take 'blockwise'")
    return {"cudnn": attend_cudnn, "splash": attend_splash}[kernel]


def _flat(x: Array) -> Float[Array, "B S heads H"]:
    """Queries or keys as ``jax.nn`` takes them: heads in one dimension, behind the sequence."""
    return jnp.moveaxis(x, -2, 1).reshape(x.shape[0], x.shape[-2], -1, x.shape[-1])


def _grouped(out: Float[Array, "B S heads H"], shape: tuple[int, ...]) -> Array:
    """Undoes :func:`_flat`."""
    batch, kv_heads, group, size, head = shape
    return jnp.moveaxis(out.reshape(batch, size, kv_heads, group, head), 1, -2)


def _padded(x: Array, multiple: int) -> Array:
    """Pads the sequence with zeros at its end."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, -x.shape[-2] % multiple), (0, 0)])


def _seen(spans: Sequence[Span], batch: int) -> Bool[Array, "B N"]:
    """The slots of all spans, one after the other, that each row sees."""
    seen = (jnp.arange(span.keys.shape[2]) < span.length[:, None] for span in spans)
    return jnp.concatenate([for_each_row(x, batch) for x in seen], 1)


def _joined(spans: Sequence[Span], k: Array, v: Array) -> tuple[Array, Array]:
    """The spans, each whole, and behind them the segment's own keys and values."""
    keys = [for_each_row(span.keys, len(k)) for span in spans]
    values = [for_each_row(span.values_like(v), len(v)) for span in spans]
    return jnp.concatenate([*keys, k], 2), jnp.concatenate([*values, v], 2)


def _splash_block(size: int) -> int:
    """How many queries or keys splash takes at a time: the most that divide their number."""
    return next(block for block in _SPLASH_BLOCKS if size % block == 0)
