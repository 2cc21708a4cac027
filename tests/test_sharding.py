"""Base weights over a mesh: where each lies, what is refused, and that logits do not change."""

import os
import subprocess
import sys
from dataclasses import replace

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

from mintjax.models.sharding import base_shardings
from tests.layout import ROOT
from tests.tiny import CONFIG, EXPERTS
from tests.transformers_models import saved, tiny_model

# float32 sums over two devices part from those over one by their order.
LOGITS_ATOL = 1e-5


def mesh(sizes, names, kind=AxisType.Auto):
    return AbstractMesh(sizes, names, axis_types=(kind,) * len(names))


def test_dimensions_go_to_their_axes():
    config = replace(CONFIG, vocab_size=64)
    shardings = base_shardings(config, mesh((1, 2, 2), ("data", "fsdp", "tensor")))
    assert shardings["embed"].spec == jax.P("tensor", "fsdp")
    assert shardings["layers"][1]["o"].spec == jax.P("fsdp", "tensor")
    assert shardings["layers"][0]["q_norm"].spec == jax.P(None)
    only_data = base_shardings(config, mesh((4,), ("data",)))
    assert {axis for s in jax.tree.leaves(only_data) for axis in s.spec} == {None}


def test_experts_go_to_their_own_axis():
    config = replace(CONFIG, vocab_size=64, experts=EXPERTS)
    layer = base_shardings(config, mesh((2, 2, 2), ("fsdp", "tensor", "expert")))["layers"][1]
    assert layer["experts_up"].spec == jax.P("expert", "tensor", "fsdp")
    assert layer["experts_down"].spec == jax.P("expert", "fsdp", "tensor")
    assert layer["router"].spec == jax.P(None, "fsdp")
    with pytest.raises(ValueError, match=r"experts_down: dimension 0 of \(8, 24, 32\).*'expert'"):
        base_shardings(config, mesh((3,), ("expert",)))


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (mesh((2,), ("model",)), "mesh: expected axes among .*'model'"),
        (mesh((2,), ("fsdp",), AxisType.Explicit), "mesh: expected axes of type Auto"),
        (mesh((2,), ("tensor",)), r"embed: dimension 0 of \(61, 24\).*'tensor'.* 2 devices"),
        (mesh((16,), ("fsdp",)), r"embed: dimension 1 of \(61, 24\).*'fsdp'.* 16 devices"),
    ],
)
def test_refusals_name_what_does_not_fit(argument, words):
    with pytest.raises(ValueError, match=words):
        base_shardings(CONFIG, argument)


PROGRAM = """
import sys
import jax, jax.numpy as jnp, numpy as np
from mintjax import load_policy

names = tuple(sys.argv[2].split(","))
mesh = jax.make_mesh((1, 2, 2), names, axis_types=(jax.sharding.AxisType.Auto,) * 3)
tokens = jnp.asarray(np.random.default_rng(0).integers(0, 96, (2, 64)))
one, four = load_policy(sys.argv[1]), load_policy(sys.argv[1], mesh=mesh)
weight = four.base["layers"][0][sys.argv[3]]
assert len(weight.sharding.device_set) == 4
assert str(weight.addressable_shards[0].data.shape) == sys.argv[4]
assert four.adapter["layers"][0]["q"]["a"].sharding.is_fully_replicated
print(float(np.abs(np.asarray(one.logits(tokens)) - np.asarray(four.logits(tokens))).max()))
"""


@pytest.mark.parametrize(
    ("kind", "axes", "weight", "shard"),
    [
        ("llama", "data,fsdp,tensor", "q", "(24, 24)"),
        ("qwen3_moe", "data,tensor,expert", "experts_up", "(4, 12, 48)"),
    ],
)
def test_logits_on_four_devices_equal_those_on_one(kind, axes, weight, shard, tmp_path):
    saved(tiny_model(kind), tmp_path)
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), axes, weight, shard],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < LOGITS_ATOL
