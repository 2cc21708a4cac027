"""The table of docs/memory.md. `python -m tests.memory_table` prints it."""

from dataclasses import replace

from mintjax.adapters import LoraConfig
from mintjax.models.config import ModelConfig, RopeConfig
from mintjax.models.counts import layer_numbers
from mintjax.models.expert_config import ExpertsConfig, RoutingConfig
from mintjax.models.latent_config import LatentConfig
from mintjax.train.byte_sizes import show_bytes
from mintjax.train.plan import Plan
from mintjax.train.plan_choice import plan_name
from mintjax.train.plan_memory import (
    PlanMemory,
    Shapes,
    adapter_bytes,
    base_bytes,
    plan_memory,
    token_bytes,
)

QWEN3_4B = ModelConfig(
    name="Qwen3-4B",
    vocab_size=151936,
    hidden_size=2560,
    intermediate_size=9728,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    context=40960,
    qk_norm=True,
    rope=RopeConfig(theta=1e6),
)
QWEN3_30B_A3B = ModelConfig(
    name="Qwen3-30B-A3B",
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=6144,
    num_layers=48,
    num_heads=32,
    num_kv_heads=4,
    head_dim=128,
    context=40960,
    qk_norm=True,
    tied_head=False,
    rope=RopeConfig(theta=1e6),
    experts=ExpertsConfig(RoutingConfig("softmax", 128, 8, normalise=True), 768),
)
DEEPSEEK_V3 = ModelConfig(
    name="DeepSeek-V3",
    vocab_size=129280,
    hidden_size=7168,
    intermediate_size=18432,
    num_layers=61,
    num_heads=128,
    num_kv_heads=1,
    head_dim=64,
    context=163840,
    tied_head=False,
    latent=LatentConfig(1536, 512, 128, 64, 128),
    experts=ExpertsConfig(
        RoutingConfig("sigmoid", 256, 8, True, groups=8, chosen_groups=4, scale=2.5),
        2048,
        shared_size=2048,
        dense_layers=(0, 1, 2),
    ),
)
KIMI_K2 = replace(
    DEEPSEEK_V3,
    name="Kimi-K2",
    vocab_size=163840,
    num_heads=64,
    context=131072,
    experts=ExpertsConfig(
        RoutingConfig("sigmoid", 384, 8, True, scale=2.827),
        2048,
        shared_size=2048,
        dense_layers=(0,),
    ),
)
MODELS = (QWEN3_4B, QWEN3_30B_A3B, DEEPSEEK_V3, KIMI_K2)
PLANNED = (QWEN3_4B, QWEN3_30B_A3B, KIMI_K2)
LORA, DTYPE = LoraConfig(rank=16), "bfloat16"
TOKENS = 32768
SEGMENT = 64
CACHED, ACCUMULATED = (
    2,
    4,
)  # bytes of bfloat16, and of the float32 that gradients and the residual stream are in


def plan_rows(config: ModelConfig) -> list[str]:
    """What each plan takes for one row of a model."""
    shapes = Shapes(config, LORA, DTYPE)
    lines = []
    for kind in ("packed", "segments", "reverse_only"):
        for remat in (False, True):
            plan = Plan(kind, SEGMENT, remat)  # type: ignore
            memory = handed(shapes, plan, plan_memory(shapes, plan, rows=1))
            total = memory.fixed + TOKENS * memory.per_token
            lines.append(
                f"| `{plan_name(plan)}` | {memory.per_token:,} | {show_bytes(memory.fixed)} | {show_bytes(total)} |"
            )
    return lines


def handed(shapes: Shapes, plan: Plan, memory: PlanMemory) -> PlanMemory:
    """With the rollout's cache of the row, which a walk over it keeps alive."""
    held = token_bytes(shapes).cache if plan.kind == "reverse_only" else 0
    return memory._replace(per_token=memory.per_token + held)


def model_rows() -> list[str]:
    """What each model's weights and adapter take, and how many operations a token takes forwards."""
    lines = []
    for config in MODELS:
        shapes = Shapes(config, LORA, DTYPE)
        base, adapter = base_bytes(shapes), adapter_bytes(shapes)
        layers = sum(layer_numbers(config, layer) for layer in range(config.num_layers))
        operations = 2 * (layers + config.vocab_size * config.hidden_size)
        attention = 2 * config.num_layers * config.num_heads * met_in_attention(config)
        lines.append(
            f"| {config.name} | {base // CACHED:,} | {show_bytes(base)} | {show_bytes(adapter)} | {operations:,} | {attention:,} |"
        )
    return lines


def met_in_attention(config: ModelConfig) -> int:
    """Numbers of a cached token that one query head is multiplied by: a key's and a value's."""
    if config.latent is not None:
        return config.latent.cached + config.latent.rank
    return 2 * config.head_dim


def layer_rows() -> list[str]:
    """What one layer holds of a token, by arithmetic."""
    lines = []
    for config in MODELS:
        name, layers, width = config.name, config.num_layers, config.hidden_size
        numbers = sum(heads * size for heads, size in config.cached)
        cache, gradient, layer_input = CACHED * numbers, ACCUMULATED * numbers, ACCUMULATED * width
        scan = layers * (cache + gradient)
        row = layers * layer_input
        lines.append(
            f"| {name} | {layers} | {cache:,} | {gradient:,} | {cache + gradient:,} | {layer_input:,} | {scan:,} | {row:,} |"
        )
    return lines


if __name__ == "__main__":
    tables = [model_rows(), *map(plan_rows, PLANNED), layer_rows()]
    print("\n\n".join("\n".join(rows) for rows in tables))
