"""Every family equals transformers: its logits, its greedy generation, and the gradients of its adapters by every plan."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from mintjax import load_policy
from mintjax.cache import fork, init_state
from mintjax.decoding import DecodeParams
from mintjax.extension import extend, forward
from mintjax.generation import generate
from mintjax.train.gradients import gradients
from mintjax.train.losses import CrossEntropy
from mintjax.train.plan import Plan
from mintjax.types import Segment
from mintjax.weights.families import FAMILIES
from tests.layout import ROOT
from tests.models.loaded import SHARED, load_tiny, sharing_batch
from tests.models.tiny_families import TINY_FAMILIES
from tests.models.torch_lora import lora_gradient
from tests.tiny import fed, relative_difference
from tests.transformers_models import CONTEXT, logits, random_tokens, saved, tiny_model

LOGITS_ATOL = 1e-4
TURNS_ATOL = 1e-5
ORACLE_GRADIENT = 1e-4  # of ‖g₁ - g₂‖ / ‖g₂‖, the worst leaf, against PyTorch
PLANS_GRADIENT = 1e-5  # the same, between plans

# What attention and cache have beside grouped queries is compared in every plan; these have nothing, and every plan of such a
# model is compared in tests/train.
# What is of their own in these is held by tests of its own too, so the three plans of the others stand for theirs.
PACKED_ALONE = ("llama", "qwen2", "qwen3", "gemma3", "qwen3_moe")
EVERY_PLAN = [
    pytest.param(kind, marks=[pytest.mark.wide] * (kind in PACKED_ALONE)) for kind in TINY_FAMILIES
]

PROMPTS, NEW = [41, 7, 30], 24


@pytest.fixture(scope="module", params=TINY_FAMILIES)
def loaded(request, tmp_path_factory):
    return load_tiny(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize(
    ("kind", "rope"), [(kind, rope) for kind, tiny in TINY_FAMILIES.items() for rope in tiny.ropes]
)
def test_logits_past_the_original_context(kind, rope, tmp_path):
    tied = TINY_FAMILIES[kind].tied
    model = tiny_model(kind, rope=rope, tied=tied)
    policy = load_policy(saved(model, tmp_path))
    assert policy.config.tied_head == tied and policy.config.context == CONTEXT
    tokens = random_tokens(model)
    assert np.abs(policy.logits(jnp.asarray(tokens)) - logits(model, tokens)).max() < LOGITS_ATOL


def test_turns_equal_one_pass(loaded):
    policy = loaded.policy
    tokens = random_tokens(loaded.model, length=96)
    scores = jax.nn.log_softmax(policy.logits(jnp.asarray(tokens))[:, :-1])
    want = np.take_along_axis(np.asarray(scores), tokens[:, 1:, None], 2)[..., 0]
    state, found = init_state(policy, 2, 128), [[], []]
    # Rows take turns of their own lengths; padding stands in the middle of what is fed.
    for lengths in ([32, 9], [20, 32], [32, 30], [12, 25]):
        turn = np.zeros((2, 32), np.int32)
        for row, length in enumerate(lengths):
            start = int(state.length[row])
            turn[row, :length] = tokens[row, start : start + length]
        logprobs, state = forward(policy, Segment(turn, np.asarray(lengths, np.int32)), state)
        for row, length in enumerate(lengths):
            found[row] += np.asarray(logprobs)[row, :length].tolist()
    got = np.asarray(found)
    assert np.isnan(got[:, 0]).all()
    np.testing.assert_allclose(got[:, 1:], want, rtol=0, atol=TURNS_ATOL)


def test_greedy_generation(loaded):
    model, policy = loaded.model, loaded.policy.base_only()
    rng = np.random.default_rng(3)
    prompts = [rng.integers(1, model.config.vocab_size, n) for n in PROMPTS]
    left, mask = (np.zeros((len(PROMPTS), max(PROMPTS)), np.int64) for _ in range(2))
    right = np.zeros((len(PROMPTS), 64), np.int32)
    for row, prompt in enumerate(prompts):
        left[row, -len(prompt) :], mask[row, -len(prompt) :] = prompt, 1
        right[row, : len(prompt)] = prompt
    want = model.generate(
        torch.tensor(left),
        attention_mask=torch.tensor(mask),
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[:, max(PROMPTS) :]
    params = DecodeParams(
        np.float32(0),
        np.int32(0),
        np.float32(1),
        np.array([-1], np.int32),
        np.full(3, NEW, np.int32),
    )
    state = extend(
        policy, Segment(right, np.asarray(PROMPTS, np.int32)), init_state(policy, 3, 128)
    )
    out = generate(policy, state, jax.random.split(jax.random.key(0), 3), params, buffer=NEW)
    np.testing.assert_array_equal(np.stack(out.tokens), want.numpy())


def cache_of(policy, batch):
    """The rows' cache as a rollout leaves it: prompts once, then what each row says after them."""
    tokens = np.zeros((2, 64), np.int32)
    for group, length in enumerate(SHARED):
        tokens[group, :length] = batch.tokens[2 * group, :length]
    state = extend(policy, Segment(tokens, np.asarray(SHARED, np.int32)), init_state(policy, 2, 64))
    return fed(policy, fork(state, fan=2, capacity=64), batch, [np.full(4, 17), np.full(4, 33)])


@pytest.mark.parametrize("loaded", PACKED_ALONE, indirect=True, scope="module")
def test_gradient(loaded):
    check_packed_gradient(loaded, sharing_batch())


def check_packed_gradient(loaded, batch):
    """The gradient of packed rows, which is PyTorch's."""
    reference = lora_gradient(loaded.model, loaded.family, loaded.policy, batch)
    packed, _ = gradients(loaded.policy, batch, CrossEntropy(), Plan("packed"))
    assert relative_difference(packed, reference) < ORACLE_GRADIENT
    return packed


@pytest.mark.parametrize("loaded", EVERY_PLAN, indirect=True, scope="module")
def test_gradients_of_every_plan(loaded):
    policy, batch = loaded.policy, sharing_batch()
    packed = check_packed_gradient(loaded, batch)
    segments, _ = gradients(policy, batch, CrossEntropy(), Plan("segments", segment=16))
    assert relative_difference(segments, packed) < PLANS_GRADIENT
    state = cache_of(policy, batch)
    walked, _ = gradients(policy, batch, CrossEntropy(), Plan("reverse_only", segment=16), state)
    assert relative_difference(walked, packed) < PLANS_GRADIENT


def test_every_family_is_compared_and_told_of():
    table = (ROOT / "docs" / "models.md").read_text()
    compared = {tiny.config.model_type for tiny in TINY_FAMILIES.values()}
    compared |= {"gemma3", "kimi_k2"}  # in test_gemma3_multimodal.py and test_deepseek.py
    for model_type in (kind for family in FAMILIES for kind in family.model_types):
        assert model_type in compared and f"| `{model_type}` |" in table


@pytest.mark.parametrize("kind", TINY_FAMILIES)
def test_unimplemented_features_are_refused_by_name(kind, tmp_path):
    model = tiny_model(kind, rope=TINY_FAMILIES[kind].ropes[-1])
    file = saved(model, tmp_path) / "config.json"
    fields = json.loads(file.read_text())
    for field, value in ({"fused_frobnication": 3} | TINY_FAMILIES[kind].refused).items():
        file.write_text(json.dumps(fields | {field: value}))
        with pytest.raises(ValueError, match=f"does not implement.*{field}="):
            load_policy(tmp_path)
