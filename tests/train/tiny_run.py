"""A whole training run on a tiny random model: ``python -m tests.train.tiny_run ROOT NAME``.

Run so, one group is in flight, and its gradient is taken before the next one starts.
"""

import sys
from dataclasses import replace

from mintjax.train.config import TrainConfig
from mintjax.train.config_files import from_dict
from mintjax.train.loop import train
from tests.tiny import CONFIG, tiny_policy, tiny_tokenizer

STEPS = 5


def tiny_config(root: str, name: str, **changes: object) -> TrainConfig:
    """Count-down for a model that speaks in random characters."""
    return from_dict(
        {
            "name": name,
            "root": root,
            "steps": STEPS,
            "renderer": "chatml",
            "environment": {"type": "count_down", "turns": 2, "numbers": [2, 4]},
            "rollout": {"groups": 2, "group_size": 3, "max_tokens": 12, "capacity": 192},
            "optimizer": {"learning_rate": 0.03, "schedule": "linear", "warmup_steps": 2},
            "gradients": {"rows": 6},
            "evaluation": {"at_start": False, "at_end": False},
            **changes,
        }
    )


def tiny_parts():
    """A policy and its tokenizer."""
    tokenizer = tiny_tokenizer()
    config = replace(CONFIG, vocab_size=tokenizer.get_vocab_size(), num_layers=1)
    return tiny_policy(config=config), tokenizer


if __name__ == "__main__":
    rollout = {"groups": 2, "group_size": 3, "max_tokens": 12, "capacity": 192}
    train(
        tiny_config(
            *sys.argv[1:3],
            rollout=rollout | {"groups_in_flight": 1},
            gradients={"plan": "reverse_only", "segment": 64, "rows": 6},
        ),
        *tiny_parts(),
    )
