"""The platforms' kernels against a dense formula in float64, and what is lowered for hardware that is not here."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax._src.cudnn.fused_attention_stablehlo
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.attention import Span
from mintjax.attention_kernels import (
    Hardware,
    _hardware,
    attend_cudnn,
    attend_splash,
    choose_kernel,
    hardware_of,
    platform_attention,
)
from mintjax.row_attention import attend_row
from mintjax.segment_attention import attend_segment, attend_segment_vjp
from tests.tiny import CONFIG

TOLERANCE = 1e-5  # of ‖x - x₆₄‖ / ‖x₆₄‖, in float32
KERNELS = {
    "cudnn": partial(attend_cudnn, implementation="xla"),
    "splash": partial(attend_splash, interpret=True),
}
ROWS, KV_HEADS, GROUP, HEAD = 3, 2, 3, 24
# An empty cache, a part, all of it. With a segment of 33, splash takes the keys in three blocks, and a row with an empty
# cache sees nothing of the first two.
CAPACITY, PREFIX = 256, [0, 137, 256]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def queries_keys_values(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shape = ROWS, KV_HEADS, size, HEAD
    return draw(ROWS, KV_HEADS, GROUP, size, HEAD), draw(*shape, seed=1), draw(*shape, seed=2)


def cache() -> Span:
    shape = ROWS, KV_HEADS, CAPACITY, HEAD
    return Span(draw(*shape, seed=3), draw(*shape, seed=4), jnp.array(PREFIX, jnp.int32))


def reference(q, k, v, keys, values, d_out):
    """The output, and the gradients of all arrays: one row at a time, with the keys that it sees and no others."""
    out, grads = np.zeros(q.shape), [np.zeros(x.shape) for x in (q, k, v, keys, values)]
    for row in range(ROWS):
        prefix = PREFIX[row] if keys.size else 0
        scale, own_q, own_d = HEAD**-0.5, q[row].astype(np.float64), d_out[row].astype(np.float64)
        own_k, own_v = (
            np.concatenate([a[row, :, :prefix], b[row]], 1) for a, b in ((keys, k), (values, v))
        )
        scores = np.einsum("kgsh,kmh->kgsm", own_q, own_k) * scale
        seen = np.arange(scores.shape[-1]) <= prefix + np.arange(q.shape[3])[:, None]
        p = np.where(seen, np.exp(scores - scores.max(-1, keepdims=True)), 0)
        p /= p.sum(-1, keepdims=True)
        out[row] = np.einsum("kgsm,kmh->kgsh", p, own_v)
        d_p = np.einsum("kgsh,kmh->kgsm", own_d, own_v)
        d_scores = p * (d_p - (p * d_p).sum(-1, keepdims=True)) * scale
        grads[0][row] = np.einsum("kgsm,kmh->kgsh", d_scores, own_k)
        d_k = np.einsum("kgsm,kgsh->kmh", d_scores, own_q)
        d_v = np.einsum("kgsm,kgsh->kmh", p, own_d)
        for own, cached, d in ((1, 3, d_k), (2, 4, d_v)):
            grads[own][row], grads[cached][row, :, :prefix] = d[:, prefix:], d[:, :prefix]
    return out, *grads


def difference(got, want) -> float:
    return float(np.linalg.norm(np.asarray(got) - want) / np.linalg.norm(want))


# 45 is odd and in one block of any kernel; 300 is padded to 384, which splash takes in three.
@pytest.mark.parametrize(("name", "size"), [("cudnn", 45), ("splash", 300)])
def test_rows_and_their_gradients_equal_the_dense_formula(monkeypatch, name, size):
    monkeypatch.setattr(f"mintjax.attention_kernels.attend_{name}", KERNELS[name])
    q_k_v, d_out = queries_keys_values(size), draw(ROWS, KV_HEADS, GROUP, size, HEAD, seed=5)
    run = jax.jit(partial(attend_row, block=64, kernel=name))
    out, pull = jax.vjp(run, *q_k_v)
    nothing = np.zeros((ROWS, KV_HEADS, 0, HEAD))
    wanted = reference(*q_k_v, nothing, nothing, d_out)[:4]
    for got, want in zip((out, *pull(d_out)), wanted, strict=True):
        assert difference(got, want) < TOLERANCE


@pytest.mark.parametrize("name", [*KERNELS, "blockwise"])
def test_segments_and_their_gradients_equal_the_dense_formula(monkeypatch, name):
    if name in KERNELS:
        monkeypatch.setattr(f"mintjax.attention_kernels.attend_{name}", KERNELS[name])
    size = 33
    q_k_v, before = queries_keys_values(size), cache()
    d_out = draw(ROWS, KV_HEADS, GROUP, size, HEAD, seed=5)
    flowed = draw(*before.keys.shape, seed=6), draw(*before.keys.shape, seed=7)

    @jax.jit
    def run(q_k_v, before, d_out, flowed):
        out, pull = attend_segment_vjp(*q_k_v, [before], name)
        again = attend_segment(*q_k_v, [before], name)
        return again, out, pull(d_out, [flowed])

    again, out, (*own, (cached,)) = run(q_k_v, before, d_out, flowed)
    grads = *own, *cached
    wanted = reference(*q_k_v, before.keys, before.values, d_out)
    # What later segments have sent to the cache is added to, and stays where a row sees nothing.
    wanted = (*wanted[:4], wanted[4] + flowed[0], wanted[5] + flowed[1])
    for got, want in zip((out, *grads), wanted, strict=True):
        assert difference(got, want) < TOLERANCE
    assert (again == out).all()


@pytest.mark.parametrize("name", KERNELS)
def test_what_rows_share_is_pulled_at_by_all_of_them(monkeypatch, name):
    monkeypatch.setattr(f"mintjax.attention_kernels.attend_{name}", KERNELS[name])
    q_k_v, own = queries_keys_values(8), cache()
    shared = Span(own.keys[:1, :, :64], own.values[:1, :, :64], jnp.array([50], jnp.int32))
    d_out = draw(ROWS, KV_HEADS, GROUP, 8, HEAD, seed=5)

    @partial(jax.jit, static_argnames="kernel")
    def run(q_k_v, spans, d_out, kernel):
        out, pull = attend_segment_vjp(*q_k_v, spans, kernel)
        zeros = [(jnp.zeros(span.keys.shape), jnp.zeros(span.values.shape)) for span in spans]
        return out, pull(d_out, zeros)

    got, want = (run(q_k_v, [shared, own], d_out, kernel) for kernel in (name, "blockwise"))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert difference(a, b) < TOLERANCE


def lowered(name: str, platform: str, before: bool) -> str:
    """The program of a forward and a backward pass for a platform, as text."""
    narrow = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16), (queries_keys_values(33), tuple(cache()[:2]))
    )
    length = cache().length

    def total(q_k_v, keys_values):
        cached = [Span(*keys_values, length)] if before else []
        return platform_attention(name)(*q_k_v, cached).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(total, argnums=(0, 1))).trace(*narrow)
    return traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.fixture
def cudnn_library(monkeypatch):
    """JAX asks for the version of the library, which is not here; lowering needs no more of it."""
    monkeypatch.setattr(
        jax._src.cudnn.fused_attention_stablehlo, "check_cudnn_version", lambda: 91000
    )


def test_a_row_on_a_gpu_is_cudnns_causal_attention(cudnn_library):
    text = lowered("cudnn", "cuda", before=False)
    assert "fmhaSoftmax(" in text and "fmhaSoftmaxBackward(" in text and r"\22CAUSAL\22" in text


def test_a_segment_on_a_gpu_is_cudnns_attention_with_a_mask(cudnn_library):
    text = lowered("cudnn", "cuda", before=True)
    assert "fmhaScaleBiasSoftmax(" in text and "fmhaScaleBiasSoftmaxBackward(" in text
    # One mask for all heads, over lengths that the backward pass takes.
    assert f"tensor<{ROWS}x1x34x{CAPACITY + 34}x" in text


@pytest.mark.parametrize("before", [False, True])
def test_attention_on_a_tpu_is_three_kernels_of_splash(before):
    text = lowered("splash", "tpu", before)
    for phase in ("fwd", "dq", "dkv"):
        assert f"splash_mqa_{phase}" in text
    assert "tpu_custom_call" in text


HOPPER, AMPERE = Hardware("cuda", (9, 0)), Hardware("cuda", (8, 0))


@pytest.mark.parametrize(
    ("hardware", "head_dim", "dtype", "kernel"),
    [
        (Hardware("cpu"), 128, "bfloat16", "blockwise"),
        (HOPPER, 256, "bfloat16", "cudnn"),
        (AMPERE, 128, "float16", "cudnn"),
        (AMPERE, 256, "bfloat16", "blockwise"),
        (HOPPER, 100, "bfloat16", "blockwise"),
        (HOPPER, 128, "float32", "blockwise"),
        (Hardware("cuda", (7, 5)), 64, "float16", "blockwise"),
        (Hardware("gpu"), 64, "bfloat16", "blockwise"),
        (Hardware("tpu"), 128, "float32", "splash"),
        (Hardware("tpu"), 128, "float16", "blockwise"),
        (Hardware("tpu", devices=4), 128, "bfloat16", "blockwise"),
    ],
)
def test_auto_is_the_platforms_kernel_where_it_serves(hardware, head_dim, dtype, kernel):
    assert choose_kernel("auto", hardware, head_dim, jnp.dtype(dtype)) == kernel
    assert choose_kernel(kernel, hardware, head_dim, jnp.dtype(dtype)) == kernel


@pytest.mark.parametrize(
    ("name", "hardware", "head_dim", "dtype", "reason"),
    [
        ("cudnn", Hardware("cpu"), 64, "bfloat16", "an NVIDIA GPU, and the weights are on 'cpu'"),
        ("cudnn", HOPPER, 64, "float32", "weights of bfloat16 or float16, .* these are float32"),
        ("cudnn", Hardware("cuda", (7, 5)), 64, "float16", "compute capability 8.0 .* got 7.5"),
        ("cudnn", AMPERE, 256, "bfloat16", "a head .* multiple of 8 up to 128 .* 8.0, got 256"),
        ("cudnn", HOPPER, 100, "bfloat16", "a head .* multiple of 8 up to 256 .* 9.0, got 100"),
        ("splash", HOPPER, 64, "bfloat16", "a TPU, and the weights are on 'cuda'"),
        ("splash", Hardware("tpu", devices=4), 64, "bfloat16", "a single device, got 4"),
    ],
)
def test_a_named_kernel_that_cannot_serve_is_refused(name, hardware, head_dim, dtype, reason):
    with pytest.raises(ValueError, match=rf"attention: '{name}' needs {reason}; take 'blockwise'"):
        choose_kernel(name, hardware, head_dim, jnp.dtype(dtype))


@pytest.mark.parametrize(("name", "hardware"), [("cudnn", HOPPER), ("splash", Hardware("tpu"))])
def test_a_model_with_windows_and_sinks_is_blockwise(name, hardware):
    features = replace(CONFIG, windows=(None, 8), sinks=True).attention_features
    bfloat16 = jnp.dtype("bfloat16")
    assert choose_kernel("auto", hardware, 128, bfloat16) == name
    assert choose_kernel("auto", hardware, 128, bfloat16, features=features) == "blockwise"
    with pytest.raises(
        ValueError, match=f"'{name}' needs a model without sliding windows and attention sinks"
    ):
        choose_kernel(name, hardware, 128, bfloat16, features=features)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"attention: expected 'auto' or one of .*, got 'flash'"):
        choose_kernel("flash", HOPPER, 64, jnp.dtype("bfloat16"))


def device(platform: str, version: str, capability: str | None = None) -> SimpleNamespace:
    """What is read of a device."""
    client = SimpleNamespace(platform_version=version)
    return SimpleNamespace(platform=platform, client=client, compute_capability=capability)


def test_hardware_is_that_of_the_devices():
    assert hardware_of(jnp.zeros(1)) == hardware_of(np.zeros(1)) == Hardware("cpu")
    nvidia = device("gpu", "PJRT C API\ncuda 12090", "9.0")
    assert _hardware([nvidia, nvidia]) == Hardware("cuda", (9, 0), 2)
    assert _hardware([device("gpu", "PJRT C API\nrocm 60300", "gfx942")]) == Hardware("gpu")
