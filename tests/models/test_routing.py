"""Each kind of routing equals a plain loop over tokens in float64, and transformers' router."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen3_moe

from mintjax.models.expert_config import RoutingConfig
from mintjax.models.routing import route

EXACT = 1e-12  # of float64
TOLERANCE = 1e-6  # of float32
DIFFERENCE = 1e-7  # of a central difference in float64

SOFTMAX = RoutingConfig("softmax", 12, 3)
SIGMOID = RoutingConfig("sigmoid", 12, 3, groups=4, chosen_groups=2, scale=2.5)
CHOSEN = RoutingConfig("chosen_softmax", 12, 3)
CONFIGS = [
    SOFTMAX,
    replace(SOFTMAX, normalise=True),
    SIGMOID,
    replace(SIGMOID, normalise=True),
    replace(SIGMOID, groups=1, chosen_groups=1, normalise=True),
    CHOSEN,
]


def scores_of(config, tokens=40):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((tokens, config.experts))
    # Large enough to change choices, too small to make them alone.
    correction = 0.3 * rng.standard_normal(config.experts) if config.kind == "sigmoid" else None
    return logits, correction


def run(config, logits, correction):
    """What is tested, over jax's own arrays."""
    return route(
        config, jnp.asarray(logits), None if correction is None else jnp.asarray(correction)
    )


def naive(config, logits, correction):
    """One token at a time, by sorting."""
    ids, weights = [], []
    for z in logits:
        if config.kind == "softmax":
            score = np.exp(z) / np.exp(z).sum()
            best = np.argsort(-score, kind="stable")[: config.per_token]
            w = score[best]
        elif config.kind == "chosen_softmax":
            best = np.argsort(-z, kind="stable")[: config.per_token]
            w = np.exp(z[best]) / np.exp(z[best]).sum()
        else:
            score = 1 / (1 + np.exp(-z))
            for_choice = score + correction
            size = config.experts // config.groups
            groups = [for_choice[i * size : (i + 1) * size] for i in range(config.groups)]
            value = np.array([np.sort(group)[-2:].sum() for group in groups])
            taken = np.argsort(-value, kind="stable")[: config.chosen_groups]
            candidates = sorted(i * size + j for i in taken for j in range(size))
            best = sorted(candidates, key=lambda e: -for_choice[e])[: config.per_token]
            w = score[best]
        if config.normalise:
            w = w / w.sum()
        ids.append(best)
        weights.append(w * config.scale)
    return np.array(ids), np.array(weights)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_equals_a_loop_over_tokens(config):
    logits, correction = scores_of(config)
    with jax.enable_x64(True):
        ids, weights = run(config, logits, correction)
    want_ids, want = naive(config, logits, correction)
    assert ids.dtype == jnp.int32 and weights.dtype == jnp.float64
    np.testing.assert_array_equal(ids, want_ids)
    np.testing.assert_allclose(weights, want, rtol=0, atol=EXACT)


def modules():
    """transformers' routers with the same numbers, and what to read of their answer: weights, then ids."""
    sizes = {"hidden_size": 12, "num_experts_per_tok": 3, "num_local_experts": 12}
    qwen = qwen3_moe.Qwen3MoeConfig(**sizes, norm_topk_prob=True)
    deep = deepseek.DeepseekV3Config(
        **sizes, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5
    )
    return [
        (replace(SOFTMAX, normalise=True), qwen3_moe.Qwen3MoeTopKRouter(qwen)),
        (replace(SIGMOID, normalise=True), deepseek.DeepseekV3TopkRouter(deep)),
        (CHOSEN, gpt_oss.GptOssTopKRouter(gpt_oss.GptOssConfig(**sizes))),
    ]


@pytest.mark.parametrize(("config", "module"), modules(), ids=lambda x: getattr(x, "kind", ""))
def test_equals_the_router_of_transformers(config, module):
    logits, correction = (x if x is None else x.astype(np.float32) for x in scores_of(config))
    with torch.no_grad():
        module.weight.copy_(torch.eye(12))  # then the hidden states are the logits
        if correction is not None:
            module.e_score_correction_bias.copy_(torch.tensor(correction))
        _, want, want_ids = module(torch.tensor(logits))
    ids, weights = run(config, logits, correction)
    got = np.zeros((2, *logits.shape), np.float32)
    np.put_along_axis(got[0], np.asarray(ids), np.asarray(weights), -1)
    np.put_along_axis(got[1], want_ids.numpy(), want.numpy(), -1)
    np.testing.assert_allclose(got[0], got[1], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_equal_scores_go_to_the_lowest_index(config):
    correction = np.zeros(config.experts) if config.kind == "sigmoid" else None
    ids, _ = run(config, np.zeros((2, config.experts)), correction)
    np.testing.assert_array_equal(ids, [[0, 1, 2]] * 2)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_gradient_of_the_weights(config):
    logits, correction = scores_of(config)
    rng = np.random.default_rng(1)
    direction = rng.standard_normal(logits.shape)
    readout = rng.standard_normal((len(logits), config.per_token))
    step = 1e-6

    def value(logits):
        return (naive(config, logits, correction)[1] * readout).sum()

    want = (value(logits + step * direction) - value(logits - step * direction)) / (2 * step)
    with jax.enable_x64(True):
        gradient = jax.grad(lambda z: (run(config, z, correction)[1] * readout).sum())(
            jnp.asarray(logits)
        )
    np.testing.assert_allclose((np.asarray(gradient) * direction).sum(), want, rtol=DIFFERENCE)


def test_bfloat16_logits_are_weighed_in_float32():
    logits = jnp.asarray(scores_of(SOFTMAX)[0], jnp.bfloat16)
    got, want = (route(SOFTMAX, x)[1] for x in (logits, logits.astype(jnp.float32)))
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, want)


def test_sigmoids_that_vanish_give_no_nan():
    config = replace(SIGMOID, normalise=True)
    _, weights = run(config, np.full((1, 12), -200.0), np.zeros(12))
    np.testing.assert_array_equal(weights, np.zeros((1, 3)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "hash"}, "routing.kind: expected one of .*'hash'"),
        ({"per_token": 13}, "routing.per_token: expected 1 to 12.*13"),
        ({"per_token": 0}, "routing.per_token: expected 1 to 12.*0"),
        ({"groups": 5}, "groups that divide 12 experts.*groups=5"),
        ({"chosen_groups": 5}, "1 to groups chosen.*chosen_groups=5"),
        ({"groups": 12}, "12 groups of 1 experts: a group is scored by its two best"),
        ({"per_token": 7}, "the 2 chosen must hold the 7 experts"),
        ({"kind": "softmax"}, "groups, chosen_groups and scale are of kind 'sigmoid'"),
        (
            {"kind": "chosen_softmax", "groups": 1, "chosen_groups": 1, "scale": 1.0}
            | {"normalise": True},
            "routing.normalise: weights of kind 'chosen_softmax' add up to 1",
        ),
    ],
)
def test_refused(change, words):
    with pytest.raises(ValueError, match=words):
        replace(SIGMOID, **change)


@pytest.mark.parametrize("config", [SIGMOID, SOFTMAX], ids=["sigmoid", "softmax"])
def test_a_correction_belongs_to_sigmoid(config):
    logits, correction = scores_of(config)
    correction = np.zeros(12) if correction is None else None
    with pytest.raises(ValueError, match=re.escape(f"correction: routing of kind {config.kind!r}")):
        run(config, logits, correction)
