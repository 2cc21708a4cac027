"""Memory a token, as the compiler plans it: what rematerialisation and the segment scan promise."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.train.gradients import _gradients
from mintjax.train.layers import end_layer
from mintjax.train.losses import LossInputs, Ppo
from mintjax.train.plan import Plan
from mintjax.train.plan_arguments import plan_arguments
from tests.tiny import CONFIG, random_batch, tiny_policy

TOLERANCE = 1e-6
SLACK = 1.1  # of the bytes that the formula says


def temp_bytes_per_token(plan):
    config = replace(CONFIG, num_layers=6, intermediate_size=128)
    policy, batch = tiny_policy(config=config), random_batch([256], 256)
    rows, index = plan_arguments(batch, plan)
    zeros = np.zeros(index.shape, np.float32)
    inputs = LossInputs(zeros, zeros, zeros, zeros)
    lowered = _gradients.lower(policy, rows, inputs, batch.temperature, loss=Ppo(), plan=plan)
    return lowered.compile().memory_analysis().temp_size_in_bytes / 256


def test_remat_lowers_memory_a_token():
    kept, recomputed = temp_bytes_per_token(Plan()), temp_bytes_per_token(Plan(remat=True))
    if kept == recomputed == 0:
        pytest.fail("the backend reports no temporary memory, so this test would compare nothing")
    assert recomputed < 0.5 * kept


def test_a_layer_keeps_its_products_alone():
    policy, rows = tiny_policy(), 6
    rng = np.random.default_rng(0)
    residual = jnp.asarray(rng.standard_normal((1, rows, CONFIG.hidden_size), np.float32))
    heads = CONFIG.num_kv_heads, CONFIG.num_heads // CONFIG.num_kv_heads
    attended = jnp.asarray(rng.standard_normal((1, *heads, rows, CONFIG.head_dim), np.float32))
    grads, wide = [], []
    for lean in (False, True):
        end = end_layer(policy.replace(adapter=None), 0, lean=lean)
        out, pull = jax.vjp(end, policy.adapter["layers"][0], residual, attended)
        grads.append(pull(out))
        shapes = [x.shape for x in jax.tree.leaves(pull)]
        wide.append(sum(shape[-2:] == (rows, CONFIG.intermediate_size) for shape in shapes))
    # What the gate and the other linear return; not the activation, nor what the last linear is given.
    assert wide[1] == 2 < wide[0]
    for got, wanted in zip(*map(jax.tree.leaves, reversed(grads)), strict=True):
        assert np.linalg.norm(got - wanted) <= TOLERANCE * np.linalg.norm(wanted)


def segment_scan_temp(policy, size):
    batch = random_batch([size], size)
    plan = Plan("segments", segment=64)
    levels, index = plan_arguments(batch, plan)
    zeros = np.zeros(index.shape, np.float32)
    inputs = LossInputs(zeros, zeros, zeros, zeros)
    lowered = _gradients.lower(policy, levels, inputs, batch.temperature, loss=Ppo(), plan=plan)
    return lowered.compile().memory_analysis().temp_size_in_bytes


def test_a_token_costs_the_segment_scan_its_cache_and_the_gradient_of_that():
    config = replace(CONFIG, num_layers=1, head_dim=64)
    policy = tiny_policy(config=config)
    grown = (segment_scan_temp(policy, 1024) - segment_scan_temp(policy, 512)) / 512
    numbers = 2 * config.num_kv_heads * config.head_dim * config.num_layers
    cache, gradient = 4 * numbers, 4 * numbers
    # Beside them, what a segment hands to the next one, and a log probability a scored token.
    assert cache + gradient <= grown <= SLACK * (cache + gradient)
