"""The text part of a multimodal Gemma 3 checkpoint equals transformers' whole model given text."""

import jax.numpy as jnp
import numpy as np
import torch
import transformers

from mintjax import load_policy
from tests.models.tiny_families import TINY_FAMILIES
from tests.transformers_models import CONTEXT, logits, saved, tiny_model

LOGITS_ATOL = 1e-4


def test_text_is_what_the_whole_model_makes_of_it(tmp_path):
    text = tiny_model("gemma3", rope=TINY_FAMILIES["gemma3"].ropes[-1], tied=True)
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    whole = transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(
            text_config=text.config.to_dict(), vision_config=vision, mm_tokens_per_image=4
        )
    ).eval()
    whole.model.language_model.load_state_dict(text.model.state_dict())
    with torch.no_grad():
        whole.lm_head.weight.copy_(text.lm_head.weight)
    policy = load_policy(saved(whole, tmp_path))
    tokens = np.random.default_rng(0).integers(0, 96, (2, CONTEXT))
    assert np.abs(policy.logits(jnp.asarray(tokens)) - logits(whole, tokens)).max() < LOGITS_ATOL
