"""1,000 episodes of uneven length in 16 rows that refill, against the same rows in lockstep: one JSON line.

Lockstep samples as many whole groups side by side as the rows hold, until the longest of their episodes has ended; what a
group begins with is then read once for all of its rows. Both sample the same tokens; a part of them is enough to tell how
fast lockstep is, and the time it takes to compile is left out.
"""

import json
import time
from dataclasses import dataclass, replace

from mintjax.bench.models import SMALL, random_policy
from mintjax.renderers import get_renderer
from mintjax.train.compiles import counted_compiles
from mintjax.train.environment import Step
from mintjax.train.rollout import RolloutSettings, rollout
from mintjax.train.rollout_stats import RolloutStats, one_after_another
from tests.tiny import tiny_tokenizer

EPISODES, ROWS, GROUP, EARLY = 1000, 16, 4, 200
ASIDE = 320  # episodes in lockstep
TURNS = (1, 2, 1, 3, 2, 8, 1, 4)  # of an episode, by its task and its first reply
SETTINGS = RolloutSettings(group_size=GROUP, max_tokens=48, max_turns=8, capacity=1024)


def resident() -> int:
    """Bytes of this process that are in memory now; on Linux."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


ended: list[int] = []


@dataclass
class Uneven:
    """Goes on for as many turns as the task and the first reply say."""

    turn: int = 0

    def reset(self, task: int, seed: int) -> list[dict[str, str]]:
        self.task = task
        return [{"role": "user", "content": "x" * (20 + 9 * (task % 5))}]

    def step(self, assistant: dict) -> Step:
        self.turn += 1
        if self.turn == 1:
            self.turns = TURNS[(self.task + len(assistant["content"])) % len(TURNS)]
        if self.turn == self.turns:
            return Step([], 1.0, True, "finished")
        return Step([{"role": "user", "content": "y" * (5 + 11 * (self.turn % 3))}], None, False)

    def close(self) -> None:
        ended.append(resident() if len(ended) in (EARLY, ASIDE - 1, EPISODES - 1) else 0)


def main() -> None:
    """Measures both."""
    tokenizer = tiny_tokenizer()
    config = replace(SMALL, vocab_size=tokenizer.get_vocab_size(), num_layers=2, context=1024)
    policy, renderer = random_policy(config), get_renderer("chatml")

    def sample(tasks: list[int], rows: int, seed: int) -> RolloutStats:
        settings = replace(SETTINGS, rows=rows)
        wave = len(tasks) if rows else ROWS // GROUP
        return one_after_another(
            [
                rollout(
                    policy, renderer, tokenizer, Uneven, tasks[first : first + wave], settings,
                    seed=seed, first_group=first,
                ).stats
                for first in range(0, len(tasks), wave)
            ]
        )  # fmt: skip

    figures = {}
    for name, rows, episodes in (("refill", ROWS, EPISODES), ("lockstep", 0, ASIDE)):
        tasks = list(range(episodes // GROUP))
        sample(tasks[:20], rows, seed=1)
        ended.clear()
        with counted_compiles() as compiles:
            start = time.perf_counter()
            stats = sample(tasks, rows, seed=0)
            seconds = time.perf_counter() - start - compiles.seconds
        figures |= {
            f"{name}_rows_busy": round(stats.rows_busy, 3),
            f"{name}_compiles": compiles.programs,
            f"{name}_tokens_a_second": round(stats.sampled_tokens / seconds),
            f"{name}_sampled_tokens": stats.sampled_tokens,
            f"{name}_decode_calls": stats.decode_calls,
            f"{name}_mib_early": round(ended[EARLY] / 2**20, 1),
            f"{name}_mib_at_the_end": round(ended[-1] / 2**20, 1),
        }
    speed = figures["refill_tokens_a_second"] / figures["lockstep_tokens_a_second"]
    figures |= {"name": "refill", "episodes": EPISODES, "rows": ROWS, "ratio": round(speed, 2)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
