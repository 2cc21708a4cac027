"""Every family with every rotary embedding, its head tied and not: logits, and one gradient, against transformers."""

import jax.numpy as jnp
import numpy as np
import pytest

from mintjax import load_policy
from mintjax.train.gradients import gradients
from mintjax.train.losses import CrossEntropy
from mintjax.train.plan import Plan
from tests.models.loaded import load_tiny, sharing_batch
from tests.models.test_families import LOGITS_ATOL, ORACLE_GRADIENT
from tests.models.tiny_families import TINY_FAMILIES
from tests.models.torch_lora import lora_gradient
from tests.tiny import relative_difference
from tests.transformers_models import logits, random_tokens, saved, tiny_model

pytestmark = pytest.mark.wide

# Gemma 3 names two rotary embeddings, and transformers ties its head in any case.
KINDS = [kind for kind in TINY_FAMILIES if kind != "gemma3"]
ROPES = ["default", "linear", "llama3", "yarn", "yarn, not truncated", "deepseek yarn"]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_past_the_original_context(kind, rope, tied, tmp_path):
    model = tiny_model(kind, rope=rope, tied=tied)
    policy, tokens = load_policy(saved(model, tmp_path)), random_tokens(model)
    assert policy.config.tied_head == tied
    assert np.abs(policy.logits(jnp.asarray(tokens)) - logits(model, tokens)).max() < LOGITS_ATOL


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_over_segments(kind, rope, tmp_path):
    loaded, batch = load_tiny(kind, tmp_path, rope), sharing_batch()
    grads, _ = gradients(loaded.policy, batch, CrossEntropy(), Plan("segments", segment=16))
    reference = lora_gradient(loaded.model, loaded.family, loaded.policy, batch)
    assert relative_difference(grads, reference) < ORACLE_GRADIENT
