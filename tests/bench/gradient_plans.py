"""The gradient of one long episode: a packed row against the segment scan, in time and in the compiler's memory."""

from functools import partial

import numpy as np

from mintjax.train.gradients import (
    Plan,
    _gradients,
    _packed_arguments,
    _pick,
    _segment_arguments,
    gradients,
)
from mintjax.train.losses import LossInputs, Ppo
from tests.bench._shared import CONFIG, bench_policy, paired, report
from tests.tiny import random_batch

TOKENS, SEGMENT = 2048, 64
PLANS = {
    "packed": Plan("packed"),
    "packed_remat": Plan("packed", remat=True),
    "segments": Plan("segments", segment=SEGMENT),
}


def temp_mib(policy, batch, plan: Plan) -> float:
    """The compiler's temporary memory for a gradient, in MiB."""
    make = _packed_arguments if plan.kind == "packed" else partial(_segment_arguments, plan.segment)
    data, index = make(batch, np.flatnonzero(batch.mask))
    inputs = LossInputs(
        *(_pick(index, x) for x in (batch.mask, batch.weights, batch.advantages, batch.logprobs))
    )
    lowered = _gradients.lower(policy, data, inputs, batch.temperature, loss=Ppo(), plan=plan)
    return round(lowered.compile().memory_analysis().temp_size_in_bytes / 2**20, 1)


def main() -> None:
    """Measures an episode of 2048 tokens."""
    policy, batch = bench_policy(), random_batch([TOKENS], TOKENS)
    memory = {f"{name}_temp_mib": temp_mib(policy, batch, plan) for name, plan in PLANS.items()}
    run = {name: partial(gradients, policy, batch, Ppo(), plan) for name, plan in PLANS.items()}
    for other in ("packed", "packed_remat"):
        times = paired(lambda: run["segments"]()[0], lambda other=other: run[other]()[0], runs=3)
        report(
            f"segments_over_{other}",
            tokens=TOKENS,
            segment=SEGMENT,
            layers=CONFIG.num_layers,
            **times,
            **memory,
        )


if __name__ == "__main__":
    main()
