"""What a gradient plan is estimated to take in memory, against what the compiler plans for it."""

import json

from mintjax.adapters import LoraConfig
from mintjax.bench.models import SMALL
from mintjax.train.plan import Plan
from mintjax.train.plan_choice import plan_name
from mintjax.train.plan_memory import Shapes, plan_memory
from tests.plan_temp import compiled_bytes

TOKENS = (1024, 2048)
PLANS = [Plan(kind, 64, remat) for kind in ("packed", "segments", "reverse_only") for remat in (False, True)]  # fmt: skip


def main() -> None:
    """Compares all plans at two lengths of one row."""
    shapes = Shapes(SMALL, LoraConfig(rank=8, alpha=16.0), "float32")
    for plan in PLANS:
        estimate = plan_memory(shapes, plan, rows=1)
        short, long = (compiled_bytes(shapes, plan, 1, tokens) for tokens in TOKENS)
        slope = (long - short) / (TOKENS[1] - TOKENS[0])
        total = estimate.fixed + TOKENS[1] * estimate.per_token
        figures = {
            "name": f"plan_memory_{plan_name(plan)}",
            "tokens": TOKENS[1],
            "estimated_bytes_a_token": estimate.per_token,
            "compiled_bytes_a_token": round(slope),
            "ratio_a_token": round(estimate.per_token / slope, 3),
            "estimated_mib": round(total / 2**20, 1),
            "compiled_mib": round(long / 2**20, 1),
            "ratio": round(total / long, 3),
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
