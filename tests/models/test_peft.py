"""The gradient of an adapter is that of PEFT's own, on the same model with the same factors."""

import jax
import numpy as np
import peft
import pytest
import torch

from mintjax import load_policy
from mintjax.train.gradients import gradients
from mintjax.train.losses import CrossEntropy
from mintjax.weights.families import FAMILIES
from tests.models.loaded import filled_adapter, sharing_batch
from tests.models.test_families import ORACLE_GRADIENT
from tests.models.tiny_families import TINY_FAMILIES
from tests.models.torch_lora import weighted_loss
from tests.tiny import relative_difference
from tests.transformers_models import saved, tiny_model

RANK, ALPHA = 3, 6


# PEFT asks transformers by a name that it gives up.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_gradient_is_pefts(kind, tmp_path):
    tiny = TINY_FAMILIES[kind]
    model = tiny_model(kind, rope=tiny.ropes[0], tied=tiny.tied)
    policy = load_policy(saved(model, tmp_path), rank=RANK, alpha=ALPHA)
    policy = policy.replace(adapter=filled_adapter(policy.adapter))
    family = next(f for f in FAMILIES if model.config.model_type in f.model_types)
    lora = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear")
    adapted = peft.get_peft_model(model, lora)

    def factor(path, value):
        """PEFT's parameter of one of our factors, with its numbers."""
        _, layer, name, half = (getattr(key, "key", getattr(key, "idx", None)) for key in path)
        place = family.tensor_name(f"layers.{layer}.{name}").removesuffix(".weight")
        module = adapted.get_submodule(f"base_model.model.{place}.lora_{half.upper()}.default")
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy(np.array(value)))
        return module.weight

    factors = jax.tree_util.tree_map_with_path(factor, policy.adapter)
    batch = sharing_batch()
    weighted_loss(adapted, batch).backward()
    reference = jax.tree.map(lambda x: x.grad.numpy(), factors)
    trained = sum(x.numel() for x in adapted.parameters() if x.requires_grad)
    assert trained == sum(x.size for x in jax.tree.leaves(policy.adapter))
    grads, _ = gradients(policy, batch, CrossEntropy())
    assert relative_difference(grads, reference) < ORACLE_GRADIENT
