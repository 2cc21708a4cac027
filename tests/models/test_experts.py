"""Experts and their adapters equal a float64 loop over tokens, jax's own gradient of a dense form, and transformers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen3_moe

from mintjax.adapters import LoraConfig
from mintjax.models.expert_config import ExpertsConfig, RoutingConfig
from mintjax.models.experts import activation, router_logits, run_experts
from mintjax.models.routing import route
from tests.tiny import relative_difference

EXACT = 1e-10  # of float64
DIFFERENCE = 1e-7  # of a central difference in float64
TOLERANCE = 1e-5  # of float32, of outputs near 1
BFLOAT16 = 0.01  # of all outputs, relative: a few factors rounded to 8 bits
WIDTH, INNER, EXPERTS, RANK = 10, 6, 8, 2
LORA = LoraConfig(rank=RANK, alpha=3.0)

QWEN3 = ExpertsConfig(RoutingConfig("softmax", EXPERTS, 3, normalise=True), INNER)
DEEPSEEK = ExpertsConfig(
    RoutingConfig("sigmoid", EXPERTS, 3, True, groups=4, chosen_groups=2, scale=2.5),
    INNER,
    shared_size=7,
)
GPT_OSS = ExpertsConfig(
    RoutingConfig("chosen_softmax", EXPERTS, 3), INNER, activation="clamped_swiglu", bias=True
)
KINDS = {"qwen3": QWEN3, "deepseek": DEEPSEEK, "gpt_oss": GPT_OSS}


def drawn(config, seed=0):
    """Weights, adapter and input, in float64."""
    rng = np.random.default_rng(seed)
    e, d, f = EXPERTS, WIDTH, INNER
    shapes = {"experts_gate": (e, f, d), "experts_up": (e, f, d), "experts_down": (e, d, f)}
    if config.shared_size:
        s = config.shared_size
        shapes |= {"shared_gate": (s, d), "shared_up": (s, d), "shared_down": (d, s)}

    def draw(*shape):
        return rng.standard_normal(shape) * shape[-1] ** -0.5

    weights = {name: draw(*shape) for name, shape in shapes.items()}
    adapter = {
        name: {"a": draw(*stack, RANK, i), "b": draw(*stack, o, RANK)}
        for name, (*stack, o, i) in shapes.items()
    }
    weights["router"] = rng.standard_normal((e, d))
    if config.bias:
        weights["router_bias"] = draw(e)
        weights |= {f"{name}_bias": draw(e, shape[1]) for name, shape in shapes.items()}
    if config.routing.kind == "sigmoid":
        weights["router_correction"] = draw(e)
    return weights, adapter, rng.standard_normal((2, 9, d))


def arrays(*trees):
    """The same trees of jax's arrays, of 64 bits where jax has them."""
    return jax.tree.map(jnp.asarray, trees)


def adapted(weights, adapter, name):
    pair = adapter.get(name)
    return weights[name] + (0 if pair is None else LORA.scale * pair["b"] @ pair["a"])


def naive(config, weights, adapter, x):
    """Token by token and expert by expert, in numpy."""

    def gated(prefix, z, e=...):
        def bias(name):
            return weights[f"{prefix}_{name}_bias"][e] if config.bias else 0

        gate, up, down = (
            adapted(weights, adapter, f"{prefix}_{n}")[e] for n in ("gate", "up", "down")
        )
        gate, up = gate @ z + bias("gate"), up @ z + bias("up")
        if config.activation == "clamped_swiglu":
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            return down @ (gate / (1 + np.exp(-1.702 * gate)) * (up + 1)) + bias("down")
        return down @ (gate / (1 + np.exp(-gate)) * up) + bias("down")

    rows = x.reshape(-1, WIDTH)
    logits = rows @ weights["router"].T + weights.get("router_bias", 0)
    with jax.enable_x64(True):
        choice = route(config.routing, *arrays(logits, weights.get("router_correction")))
        ids, shares = map(np.asarray, choice)
    out = np.zeros_like(rows)
    for t, z in enumerate(rows):
        for e, share in zip(ids[t], shares[t], strict=True):
            out[t] += share * gated("experts", z, e)
        if config.shared_size:
            out[t] += gated("shared", z)
    return out.reshape(x.shape)


def dense(config, weights, adapter, x):
    """Every expert over every token, the unchosen at weight 0: what jax differentiates by itself."""
    rows = x.reshape(-1, WIDTH)
    logits = rows @ weights["router"].T + weights.get("router_bias", 0)
    ids, shares = route(config.routing, logits, weights.get("router_correction"))
    share = (jax.nn.one_hot(ids, EXPERTS, dtype=x.dtype) * shares[..., None]).sum(1)

    def project(name, z):
        y = jnp.einsum("e...i,eoi->e...o", z, adapted(weights, adapter, name))
        return y + weights[f"{name}_bias"][:, None] if config.bias else y

    z = jnp.broadcast_to(rows, (EXPERTS, *rows.shape))
    inner = activation(config.activation, project("experts_gate", z), project("experts_up", z))
    out = jnp.einsum("eto,te->to", project("experts_down", inner), share)
    if config.shared_size:
        gate, up, down = (
            adapted(weights, adapter, f"shared_{name}").T for name in ("gate", "up", "down")
        )
        out = out + jax.nn.silu(rows @ gate) * (rows @ up) @ down
    return out.reshape(x.shape)


@pytest.mark.parametrize("kind", ["loop", "ragged"])
@pytest.mark.parametrize(
    ("config", "trained"),
    [(QWEN3, True), (QWEN3, False), (DEEPSEEK, True), (GPT_OSS, True)],
    ids=["qwen3", "qwen3_base", "deepseek", "gpt_oss"],
)
def test_values_are_a_loops_and_gradients_those_of_the_dense_form(config, trained, kind):
    weights, adapter, x = drawn(config)
    adapter = adapter if trained else {}
    readout = np.random.default_rng(1).standard_normal(x.shape)
    # A correction is for the choice alone.
    correction = {name: weights.pop(name) for name in ("router_correction",) if name in weights}

    def value(run, weights, adapter, x):
        out = run(config, weights | arrays(correction)[0], adapter, x)
        return (out * readout).sum(), out

    def ours(config, weights, adapter, x):
        return run_experts(config, LORA, weights, adapter, x, kind)

    with jax.enable_x64(True):
        gradient = jax.jit(jax.grad(value, (1, 2, 3), has_aux=True), static_argnums=0)
        (got, out), (want, _) = (
            gradient(run, *arrays(weights, adapter, x)) for run in (ours, dense)
        )
    assert out.dtype == jnp.float64
    expected = naive(config, weights | correction, adapter, x)
    np.testing.assert_allclose(out, expected, rtol=0, atol=EXACT)
    assert relative_difference(got, want) < EXACT


def test_gradient_is_a_finite_difference():
    weights, adapter, x = drawn(DEEPSEEK)
    rng = np.random.default_rng(1)
    readout = rng.standard_normal(x.shape)
    direction = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), (adapter, x))
    step = 1e-6

    def moved(amount):
        return jax.tree.map(lambda leaf, way: leaf + amount * way, (adapter, x), direction)

    def value(pair):
        return (naive(DEEPSEEK, weights, *pair) * readout).sum()

    want = (value(moved(step)) - value(moved(-step))) / (2 * step)
    with jax.enable_x64(True):
        base, pair = arrays(weights, (adapter, x))
        gradient = jax.jit(
            jax.grad(lambda pair: (run_experts(DEEPSEEK, LORA, base, *pair) * readout).sum())
        )(pair)
    along = jax.tree.map(lambda g, way: (np.asarray(g) * way).sum(), gradient, direction)
    np.testing.assert_allclose(sum(jax.tree.leaves(along)), want, rtol=DIFFERENCE)


@pytest.mark.parametrize("kind", ["loop", "ragged"])
def test_padding_changes_no_other_token(kind):
    weights, adapter, x = drawn(QWEN3)
    other = x.copy()
    other[0, 4:] = np.random.default_rng(5).standard_normal(other[0, 4:].shape)
    with jax.enable_x64(True):
        weights, adapter, x, other = arrays(weights, adapter, x, other)
        run = jax.jit(lambda x: run_experts(QWEN3, LORA, weights, adapter, x, kind))
        got, want = run(x), run(other)
    real = np.ones((2, 9), bool)
    real[0, 4:] = False
    np.testing.assert_array_equal(got[real], want[real])
    assert (got != want)[~real].any()


def test_bfloat16_weights():
    weights, adapter, x = drawn(QWEN3)
    narrow = jax.tree.map(lambda w: jnp.asarray(w, jnp.bfloat16), weights)
    adapter, x = jax.tree.map(lambda w: jnp.asarray(w, jnp.float32), (adapter, x))
    got = jax.jit(lambda *args: run_experts(QWEN3, LORA, *args))(narrow, adapter, x)
    wide = jax.tree.map(lambda w: np.asarray(w, np.float64), (narrow, adapter, x))
    want = naive(QWEN3, *wide)
    assert got.dtype == jnp.float32
    assert np.linalg.norm(got - want) < BFLOAT16 * np.linalg.norm(want)


def test_logits_of_a_bfloat16_router_are_float32():
    weights, _, x = drawn(QWEN3)
    router, x = jnp.asarray(weights["router"], jnp.bfloat16), jnp.asarray(x[0], jnp.float32)
    want = np.asarray(x, np.float64) @ np.asarray(router, np.float64).T
    np.testing.assert_allclose(router_logits(x, router), want, rtol=0, atol=TOLERANCE)


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match=r"experts.activation: expected one of .*'gelu'"):
        replace(QWEN3, activation="gelu")


def transformers_module(config, weights):
    """transformers' own layer with the same numbers."""
    sizes = {
        "hidden_size": WIDTH,
        "moe_intermediate_size": INNER,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 3,
        "hidden_act": "silu",
    }
    state = {
        "gate.weight": weights["router"],
        "experts.gate_up_proj": np.concatenate(
            [weights["experts_gate"], weights["experts_up"]], axis=1
        ),
        "experts.down_proj": weights["experts_down"],
    }
    if config is QWEN3:
        module = qwen3_moe.Qwen3MoeSparseMoeBlock(
            qwen3_moe.Qwen3MoeConfig(**sizes, norm_topk_prob=True)
        )
    elif config is DEEPSEEK:
        # DeepSeek's shared experts are as wide as its others: two of them here.
        module = deepseek.DeepseekV3MoE(
            deepseek.DeepseekV3Config(**sizes, n_shared_experts=2, n_group=4, topk_group=2)
        )
        state["gate.e_score_correction_bias"] = weights["router_correction"]
        state |= {
            f"shared_experts.{name}_proj.weight": weights[f"shared_{name}"]
            for name in ("gate", "up", "down")
        }
    else:
        del sizes["moe_intermediate_size"]
        module = gpt_oss.GptOssMLP(gpt_oss.GptOssConfig(**sizes, intermediate_size=INNER))

        def interleaved(name):
            pair = [weights[f"experts_gate{name}"], weights[f"experts_up{name}"]]
            stacked = np.stack(pair, axis=2)
            return stacked.reshape(EXPERTS, 2 * INNER, *stacked.shape[3:])

        state = {
            "router.weight": weights["router"],
            "router.bias": weights["router_bias"],
            "experts.gate_up_proj": interleaved("").swapaxes(1, 2),
            "experts.gate_up_proj_bias": interleaved("_bias"),
            "experts.down_proj": weights["experts_down"].swapaxes(1, 2),
            "experts.down_proj_bias": weights["experts_down_bias"],
        }
    module.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
    return module.eval()


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_equals_the_layer_of_transformers(config):
    if config.shared_size:
        config = replace(config, shared_size=2 * INNER)
    weights, _, x = jax.tree.map(lambda leaf: leaf.astype(np.float32), drawn(config))
    original = next(c for c in KINDS.values() if c.routing.kind == config.routing.kind)
    with torch.no_grad():
        want = transformers_module(original, weights)(torch.tensor(x))
    want = want[0] if isinstance(want, tuple) else want
    got = jax.jit(lambda *args: run_experts(config, LORA, *args))(*arrays(weights, {}, x))
    np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=TOLERANCE)
