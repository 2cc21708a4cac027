"""Prefill of a conversation's turns: over the carried cache, against running the whole prompt again every turn."""

import numpy as np

from mintjax.cache import bucket, init_state
from mintjax.extension import extend
from mintjax.types import Segment
from tests.bench._shared import CONFIG, bench_policy, paired, report

TURNS, TOKENS, ROWS = 16, 64, 4


def main() -> None:
    """Measures 16 turns of 64 tokens in 4 rows."""
    policy = bench_policy()
    stream = (
        np.random.default_rng(0)
        .integers(0, CONFIG.vocab_size, (ROWS, TURNS * TOKENS))
        .astype(np.int32)
    )
    empty = init_state(policy, ROWS, bucket(stream.shape[1]))

    def carried():
        state = empty
        for turn in range(TURNS):
            tokens = stream[:, turn * TOKENS : (turn + 1) * TOKENS]
            state = extend(policy, Segment(tokens, np.full(ROWS, TOKENS, np.int32)), state)
        return state.hidden

    def again():
        hidden = None
        for turn in range(1, TURNS + 1):
            # Padded to a power of two, as whoever re-runs prompts must, so that few lengths are compiled for.
            size = bucket(turn * TOKENS)
            tokens = np.zeros((ROWS, size), np.int32)
            tokens[:, : turn * TOKENS] = stream[:, : turn * TOKENS]
            hidden = extend(
                policy, Segment(tokens, np.full(ROWS, turn * TOKENS, np.int32)), empty
            ).hidden
        return hidden

    np.testing.assert_allclose(carried(), again(), atol=1e-4)
    report(
        "carried_cache",
        turns=TURNS,
        tokens_a_turn=TOKENS,
        rows=ROWS,
        **paired(again, carried, runs=3),
    )


if __name__ == "__main__":
    main()
