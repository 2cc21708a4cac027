"""The table of docs/memory.md. `python -m tests.memory_table` prints it."""

from mintjax.adapters import LoraConfig
from mintjax.models.config import ModelConfig, RopeConfig
from mintjax.models.counts import layer_numbers
from mintjax.models.expert_config import ExpertsConfig, RoutingConfig
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
MODELS = (QWEN3_4B, QWEN3_30B_A3B)
LORA, DTYPE = LoraConfig(rank=16), "bfloat16"
TOKENS = 32768
SEGMENT = 64
# Layers, width, and numbers that the cache holds of a token in a layer, as the models' public configurations have them.
ARITHMETIC = {
    "Qwen3-4B": (36, 2560, 2 * 8 * 128),
    "Qwen3-30B-A3B": (48, 2048, 2 * 4 * 128),
    "Kimi-K2": (61, 7168, 512 + 64),
}
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
        attention = 4 * config.num_layers * config.num_heads * config.head_dim
        lines.append(
            f"| {config.name} | {base // CACHED:,} | {show_bytes(base)} | {show_bytes(adapter)} | {operations:,} | {attention:,} |"
        )
    return lines


def layer_rows() -> list[str]:
    """What one layer holds of a token, by arithmetic."""
    lines = []
    for name, (layers, width, numbers) in ARITHMETIC.items():
        cache, gradient, layer_input = CACHED * numbers, ACCUMULATED * numbers, ACCUMULATED * width
        scan = layers * (cache + gradient)
        row = layers * layer_input
        lines.append(
            f"| {name} | {layers} | {cache:,} | {gradient:,} | {cache + gradient:,} | {layer_input:,} | {scan:,} | {row:,} |"
        )
    return lines


if __name__ == "__main__":
    tables = [model_rows(), *map(plan_rows, MODELS), layer_rows()]
    print("\n\n".join("\n".join(rows) for rows in tables))
