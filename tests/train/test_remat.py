"""Memory a token, as the compiler plans it: what rematerialisation and the segment scan promise."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.adapters import LoraConfig, layer_adapter
from mintjax.bench.gradient_plans import temporary
from mintjax.models.latent_config import LatentConfig
from mintjax.models.rope import layer_tables
from mintjax.train.layers import end_layer, start_layer
from mintjax.train.plan import Plan
from mintjax.train.plan_memory import Shapes, adapter_bytes, token_bytes
from tests.plan_temp import compiled_bytes
from tests.tiny import CONFIG, EXPERTS, random_batch, tiny_policy

TOLERANCE = 1e-6
LEAN = 0.85  # of what would be kept; measured .71 and .78
WAITING = 1.25  # of what further layers keep
SLACK = 1.1  # of the bytes that the formula says


def temp_bytes_per_token(plan):
    config = replace(CONFIG, num_layers=6, intermediate_size=128)
    policy, batch = tiny_policy(config=config), random_batch([256], 256)
    return temporary(policy, batch, plan) / 256


def test_remat_lowers_memory_a_token():
    kept, recomputed = temp_bytes_per_token(Plan()), temp_bytes_per_token(Plan(remat=True))
    if kept == recomputed == 0:
        pytest.fail("the backend reports no temporary memory, so this test would compare nothing")
    assert recomputed < 0.5 * kept


LATENT = replace(CONFIG, qk_norm=False, latent=LatentConfig(12, 16, 8, 8, 8))


@pytest.mark.parametrize(
    "config",
    [CONFIG, replace(CONFIG, experts=EXPERTS), LATENT],
    ids=["dense", "experts", "latent"],
)
def test_a_layer_multiplies_nothing_wide_twice_and_copies_no_weight(config):
    policy = tiny_policy(config=config)
    rank = policy.lora.rank
    residual = jnp.ones((1, 6, config.hidden_size))
    (rope, *_) = layer_tables(config, jnp.arange(6)[None])

    def both_ways(adapter, residual, *, lean):
        frozen, pair = policy.replace(adapter=None), layer_adapter(adapter, 0)
        q_k_v, pull_start = jax.vjp(start_layer(frozen, 0, rope, lean=lean), pair, residual)
        q, _, v = q_k_v
        attended = jnp.ones((*q.shape[:-1], v.shape[-1]))
        out, pull_end = jax.vjp(end_layer(frozen, 0, lean=lean), pair, residual, attended)
        return pull_start(q_k_v), pull_end(out)

    def operations(lean: bool) -> tuple[int, ...]:
        lowered = jax.jit(partial(both_ways, lean=lean)).lower(policy.adapter, residual)
        lines = lowered.as_text().splitlines()
        shapes = {x.shape for x in jax.tree.leaves(policy.base["layers"][0]) if x.ndim > 1}
        types = tuple(f"tensor<{'x'.join(map(str, shape))}xf32>" for shape in shapes)
        loops = sum("stablehlo.while" in line for line in lines)
        # An adapter's second product, of its rank's few numbers, is made again.
        wide = [line for line in lines if "dot_general" in line and f"x{rank}xf32>, " not in line]
        products = len(wide)
        # Experts are multiplied in loops; what waits for a cotangent is a sum.
        sums = sum("stablehlo.add " in line and line.endswith(types) for line in lines)
        return products, loops, sums

    products, *_ = kept = operations(lean=True)
    assert kept == operations(lean=False) and products > 7


@pytest.mark.parametrize("plan", [Plan(), Plan("segments", 128)], ids=["packed", "segments"])
def test_what_is_made_again_is_not_kept(plan, monkeypatch):
    config = replace(CONFIG, num_layers=3, hidden_size=64, intermediate_size=512)
    policy, batch = tiny_policy(config=config), random_batch([512], 512)
    lean = temporary(policy, batch, plan)
    monkeypatch.setattr("mintjax.train.layers._lean", lambda half: half)
    jax.clear_caches()  # the program is traced already
    assert lean < LEAN * temporary(policy, batch, plan)


@pytest.mark.parametrize(
    "plan", [Plan(remat=True), Plan("segments", 128)], ids=["packed_remat", "segments"]
)
def test_a_further_layer_holds_what_it_keeps_and_no_buffer_that_waits_for_its_turn(plan):
    """Zeros that a loop starts from, and scores that need no cotangent, would be there for all layers at once."""
    size = 512
    shapes = [
        Shapes(replace(CONFIG, num_layers=layers), LoraConfig(rank=3), "float32")
        for layers in (2, 6)
    ]
    few, many = (compiled_bytes(each, plan, 1, size) for each in shapes)
    short, long = map(token_bytes, shapes)
    if plan.remat:
        kept = size * 4 * short.layer_input
    else:
        whole = long.cache + long.cache_gradient - short.cache - short.cache_gradient
        kept = size * whole + plan.segment * (long.layers - short.layers)
    adapters = 3 * (adapter_bytes(shapes[1]) - adapter_bytes(shapes[0]))
    assert many - few < WAITING * kept + adapters


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
    return temporary(policy, random_batch([size], size), Plan("segments", segment=64))


def test_a_token_costs_the_segment_scan_its_cache_and_the_gradient_of_that():
    config = replace(CONFIG, num_layers=1, head_dim=64)
    policy = tiny_policy(config=config)
    grown = (segment_scan_temp(policy, 1024) - segment_scan_temp(policy, 512)) / 512
    numbers = 2 * config.num_kv_heads * config.head_dim * config.num_layers
    cache, gradient = 4 * numbers, 4 * numbers
    # Beside them, what a segment hands to the next one, and a log probability a scored token.
    assert cache + gradient <= grown <= SLACK * (cache + gradient)
