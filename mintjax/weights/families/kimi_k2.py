"""Kimi-K2: DeepSeek-V3's decoder under a name of its own."""

from dataclasses import replace

from mintjax.weights.families import deepseek_v3

FAMILY = replace(
    deepseek_v3.FAMILY,
    name="Kimi-K2",
    model_types=("kimi_k2",),
    architectures=("DeepseekV3ForCausalLM", "KimiK2ForCausalLM"),
)
