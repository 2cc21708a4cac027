"""What Qwen3-MoE's configuration may say beside what the tests of all families try."""

import jax.numpy as jnp
import numpy as np

from mintjax import load_policy
from tests.models.test_families import LOGITS_ATOL
from tests.models.tiny_families import TINY_FAMILIES
from tests.transformers_models import logits, random_tokens, tiny_model


def test_weights_that_do_not_add_up_to_one_and_every_second_layer_dense(monkeypatch, tmp_path):
    family = TINY_FAMILIES["qwen3_moe"]
    sizes = {"norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": []}
    changed = family._replace(sizes=family.sizes | sizes)
    monkeypatch.setitem(TINY_FAMILIES, "qwen3_moe", changed)
    model = tiny_model("qwen3_moe")
    model.save_pretrained(tmp_path, save_original_format=False)
    policy = load_policy(tmp_path)
    assert ["router" in layer for layer in policy.base["layers"]] == [False, True]
    tokens = random_tokens(model)
    assert np.abs(policy.logits(jnp.asarray(tokens)) - logits(model, tokens)).max() < LOGITS_ATOL
