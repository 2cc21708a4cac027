"""RoPE against transformers' own frequencies, and the rotation against complex arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mintjax.cache import init_state
from mintjax.extension import run_segment
from mintjax.models.config import RopeConfig
from mintjax.models.rope import apply_rope, rope_frequencies, rope_tables
from mintjax.types import Segment
from tests.tiny import tiny_policy

# transformers computes frequencies in float32.
FREQUENCY_RTOL = 1e-6
# One float32 rotation of a unit-scale entry.
ROTATION_ATOL = 1e-5

SCALINGS = {
    "linear": RopeConfig("linear", 1000000.0, 8.0, 1024),
    "llama3": RopeConfig("llama3", 500000.0, 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0),
    "llama3, narrow band": RopeConfig(
        "llama3", 10000.0, 32.0, 64, low_freq_factor=2.0, high_freq_factor=2.5
    ),
    "yarn": RopeConfig("yarn", 1000000.0, 4.0, 32768),
    "yarn, not truncated": RopeConfig("yarn", 150000.0, 32.0, 4096, truncate=False),
    "yarn, other band": RopeConfig("yarn", 10000.0, 40.0, 4096, beta_fast=16.0, beta_slow=2.0),
    "yarn, given factor": RopeConfig("yarn", 10000.0, 4.0, 2048, attention_factor=1.25),
    "yarn, band outside the head": RopeConfig("yarn", 1000000.0, 2.0, 16),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_equal_transformers(name):
    rope = SCALINGS[name]
    parameters = {
        "rope_type": rope.kind,
        "rope_theta": rope.theta,
        "factor": rope.factor,
        "original_max_position_embeddings": rope.original_context,
    }
    if rope.kind == "llama3":
        parameters |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
        }
    elif rope.kind == "yarn":
        parameters |= {
            "beta_fast": rope.beta_fast,
            "beta_slow": rope.beta_slow,
            "truncate": rope.truncate,
            "attention_factor": rope.attention_factor,
        }
    theirs = transformers.LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=int(rope.original_context * rope.factor),
        rope_parameters=parameters,
    )
    expected, expected_factor = ROPE_INIT_FUNCTIONS[rope.kind](theirs, None)
    frequencies, factor = rope_frequencies(rope, head_dim=64)
    np.testing.assert_allclose(frequencies, expected.numpy(), rtol=FREQUENCY_RTOL)
    assert factor == pytest.approx(expected_factor, rel=FREQUENCY_RTOL)


def test_default_frequencies_fall_geometrically_from_one():
    frequencies, factor = rope_frequencies(RopeConfig(theta=81.0), head_dim=8)
    np.testing.assert_allclose(frequencies, [1, 1 / 3, 1 / 9, 1 / 27])
    assert factor == 1.0


def test_rotation_is_complex_multiplication_of_halves():
    x = np.random.default_rng(0).normal(size=(2, 5, 3, 8)).astype(np.float32)
    positions = np.array([[0, 1, 2, 3, 4], [40, 41, 42, 43, 44]])
    tables = rope_tables(SCALINGS["yarn"], 8, jnp.asarray(positions))
    turned = apply_rope(jnp.asarray(x), *tables)
    frequencies, factor = rope_frequencies(SCALINGS["yarn"], 8)
    angles = positions[:, :, None, None] * frequencies
    numbers = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angles) * factor
    expected = np.concatenate([numbers.real, numbers.imag], axis=-1)
    np.testing.assert_allclose(turned, expected, atol=ROTATION_ATOL)


def test_bfloat16_is_rotated_in_float32():
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 3, 2, 8)), jnp.bfloat16)
    tables = rope_tables(RopeConfig(), 8, jnp.arange(3)[None])
    turned = apply_rope(x, *tables)
    assert turned.dtype == jnp.bfloat16
    exact = apply_rope(x.astype(jnp.float32), *tables)
    assert (turned == exact.astype(jnp.bfloat16)).all()


def test_x64_keeps_float64_throughout():
    with jax.enable_x64(True):
        cos, sin = rope_tables(RopeConfig(), 8, jnp.asarray([[0, 63]]))
        x = jnp.ones((1, 2, 1, 8))
        assert cos.dtype == sin.dtype == apply_rope(x, cos, sin).dtype == jnp.float64
        np.testing.assert_allclose(cos[0, 1], np.cos(63 * rope_frequencies(RopeConfig(), 8)[0]))


@pytest.mark.parametrize(
    ("rope", "head_dim", "words"),
    [
        (RopeConfig("longrope"), 8, "rope.kind.*'longrope'"),
        (RopeConfig("yarn", factor=4.0), 8, "original_context=0"),
        (RopeConfig("linear", factor=0.5), 8, "factor=0.5"),
        (RopeConfig("llama3", factor=0.5, original_context=8), 8, "factor=0.5"),
        (RopeConfig(), 7, "head_dim.*7"),
    ],
)
def test_refusals_name_the_field(rope, head_dim, words):
    with pytest.raises(ValueError, match=words):
        rope_frequencies(rope, head_dim)


def test_all_layers_read_the_same_cosines():
    policy, segment = tiny_policy(), Segment(np.ones((2, 16), np.int32), np.full(2, 16, np.int32))
    run = jax.jit(lambda *args: run_segment(*args)[1])
    compiled = run.lower(policy, segment, init_state(policy, 2, 64)).compile()
    assert compiled.as_text().count(" cosine(") == 1
