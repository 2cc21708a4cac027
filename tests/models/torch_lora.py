"""An adapter laid onto a transformers model, by hooks or into experts' weights, and its gradient by PyTorch."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.weights.family import Family


def lora_gradient(model: Any, family: Family, policy: Policy, batch: Batch) -> Any:
    """The gradient of minus the weighted sum of a batch's trained log probabilities, a tree like the adapter.

    Args:
        model: a transformers model with the policy's base weights.
        family: the names of its linears.
        policy: the adapter and its scale.
        batch: rows; their mask, weights and temperature are read.
    """
    factors = jax.tree.map(
        lambda x: torch.tensor(np.asarray(x), requires_grad=True), policy.adapter
    )
    merged = _merged_experts(model, family, factors, policy.lora.scale)
    hooks = []
    for key, pair in _pairs(factors):
        if pair["a"].ndim == 3:
            continue
        module = model.get_submodule(family.tensor_name(key).removesuffix(".weight"))

        def add(module, arguments, output, pair=pair):
            return output + policy.lora.scale * arguments[0] @ pair["a"].T @ pair["b"].T

        hooks.append(module.register_forward_hook(add))
    try:
        weighted_loss(
            lambda row: torch.func.functional_call(model, merged, (row,)), batch
        ).backward()
    finally:
        for hook in hooks:
            hook.remove()
    return jax.tree.map(lambda x: x.grad.numpy(), factors)


def weighted_loss(model: Callable[[torch.Tensor], Any], batch: Batch) -> torch.Tensor:
    """Minus the weighted sum of a batch's trained log probabilities, under what a model says of each row."""
    value = torch.zeros(())
    for tokens, length, mask, weights in zip(
        batch.tokens, batch.length, batch.mask, batch.weights, strict=True
    ):
        if not length:
            continue
        row = torch.tensor(tokens[None, :length]).long()
        logits = model(row).logits[0, :-1] / float(batch.temperature)
        logprobs = logits.log_softmax(-1).gather(1, row[0, 1:, None])[:, 0]
        value = value - (torch.tensor((mask * weights)[1:length]) * logprobs).sum()
    return value


def _pairs(adapter: Any) -> list[tuple[str, Any]]:
    """Each linear's pair of factors by the dotted name of its weight."""
    named = [
        (f"layers.{i}.{name}", pair)
        for i, layer in enumerate(adapter["layers"])
        for name, pair in layer.items()
    ]
    return named + [("unembed", adapter["unembed"])] * ("unembed" in adapter)


def _merged_experts(model: Any, family: Family, factors: Any, scale: float) -> dict[str, Any]:
    """Experts' weights with their adapters in them, by transformers' names: its experts are no modules to hook."""
    merged = {}
    for i, layer in enumerate(factors["layers"]):
        change = {
            name: scale * pair["b"] @ pair["a"]
            for name, pair in layer.items()
            if name.startswith("experts_")
        }
        if change:
            root = family.stored(f"layers.{i}.experts_up")[-1].name.rpartition(".")[0]
            experts = model.get_submodule(root)
            gate, up, down = (change[f"experts_{name}"] for name in ("gate", "up", "down"))
            if hasattr(experts, "gate_up_proj_bias"):  # gpt-oss: [in, out], gate and up in turns
                both = torch.stack([gate, up], 2).flatten(1, 2).mT
                down = down.mT
            else:
                both = torch.cat([gate, up], 1)
            merged[f"{root}.gate_up_proj"] = experts.gate_up_proj + both
            merged[f"{root}.down_proj"] = experts.down_proj + down
    return merged
