"""``mintjax sft`` and ``mintjax dpo``: read the experiment, then hand it to the loop over a data set."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mintjax.cli.experiment import run_experiment

if TYPE_CHECKING:
    from mintjax.train.config_dataset import DatasetConfig

_USAGE = """usage: mintjax {command} CONFIG.yaml [field=value | --field value]... [--overwrite]

{purpose} CONFIG.yaml is a file, or the name of a shipped experiment such as
{command}_count_down. A run that was interrupted goes on where it was when the same command is given again.

data, one JSON object a line:
  {line}

options:
  --overwrite    discard what an earlier run left in the run directory
  --help         show this

fields:
"""


def sft(arguments: Sequence[str]) -> int:
    """Run ``mintjax sft``.

    Args:
        arguments: the command line after ``sft``.

    Returns:
        The exit status.

    Raises:
        ConfigError: if the configuration cannot be used.
        DataError: if a data file cannot.

    Example:
        >>> sft(["sft_count_down", "steps=1", "--overwrite"])
    """
    from mintjax.train.config_dataset import SftConfig

    usage = _USAGE.format(
        command="sft",
        purpose="Train a policy on conversations.",
        line='{"messages": [{"role": "user", "content": "Hello"}, ...], "tools": [...]}; tools may be left out',
    )
    return run_experiment(arguments, usage, _start, SftConfig)


def dpo(arguments: Sequence[str]) -> int:
    """Run ``mintjax dpo``.

    Args:
        arguments: the command line after ``dpo``.

    Returns:
        The exit status.

    Raises:
        ConfigError: if the configuration cannot be used.
        DataError: if a data file cannot.

    Example:
        >>> dpo(["dpo_count_down", "steps=1", "--overwrite"])
    """
    from mintjax.train.config_dataset import DpoConfig

    usage = _USAGE.format(
        command="dpo",
        purpose="Train a policy to prefer chosen replies to rejected ones (DPO).",
        line='{"prompt": [messages], "chosen": [messages], "rejected": [messages], "tools": [...]}; tools may be left out',
    )
    return run_experiment(arguments, usage, _start, DpoConfig)


def _start(config: "DatasetConfig", *, overwrite: bool) -> None:
    from mintjax.train.dataset_loop import run_dataset

    run_dataset(config, overwrite=overwrite)
