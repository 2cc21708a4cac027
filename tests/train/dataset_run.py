"""A whole run over a data set on a tiny random model: ``python -m tests.train.dataset_run ROOT NAME``."""

import json
import sys
from pathlib import Path
from typing import Any

from mintjax.train.config_dataset import DatasetConfig, DpoConfig, SftConfig
from mintjax.train.config_files import from_dict
from mintjax.train.dataset_loop import train_dataset
from tests.train.tiny_run import tiny_parts

STEPS = 5
WORDS = ("ash", "birch", "cedar", "dogwood", "elm")


def messages(index: int, said: str | None = None) -> list[dict[str, str]]:
    """A question, and its answer where one is given."""
    asked = {"role": "user", "content": f"Tree {index}?"}
    return [asked] if said is None else [asked, {"role": "assistant", "content": said}]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """A JSONL file of rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def sft_config(root: Path, name: str, **changes: Any) -> SftConfig:
    """Five conversations of one or two turns, three a step, and one held out."""
    rows = [
        {"messages": [*messages(i, word), *(messages(i + 1, word) if i % 2 else [])]}
        for i, word in enumerate(WORDS)
    ]
    return _config(SftConfig, root, name, rows, **changes)


def dpo_config(root: Path, name: str, **changes: Any) -> DpoConfig:
    """Five pairs, three a step, and one held out."""
    rows = [
        {
            "prompt": messages(i),
            "chosen": messages(i, word)[1:],
            "rejected": messages(i, word[::-1] + "!")[1:],
        }
        for i, word in enumerate(WORDS)
    ]
    return _config(DpoConfig, root, name, rows, **changes)


def _config(
    kind: Any, root: Path, name: str, rows: list[dict[str, Any]], **changes: Any
) -> DatasetConfig:
    return from_dict(
        {
            "name": name,
            "root": str(root),
            "data": write(root / "data.jsonl", rows),
            "steps": STEPS,
            "batch": 3,
            "renderer": "chatml",
            "optimizer": {"learning_rate": 0.03, "schedule": "linear", "warmup_steps": 2},
            "gradients": {"rows": 2, "row_tokens": 128},
            "checkpoint": {"every": 1},
            "evaluation": {"data": write(root / "held.jsonl", rows[:1]), "every": 2},
            **changes,
        },
        kind,
    )


if __name__ == "__main__":
    train_dataset(sft_config(Path(sys.argv[1]), sys.argv[2]), *tiny_parts())
