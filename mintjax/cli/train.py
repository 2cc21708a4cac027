"""``mintjax train``: read the experiment, then hand it to the training loop."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mintjax.cli.experiment import run_experiment

if TYPE_CHECKING:
    from mintjax.train.config import TrainConfig

_USAGE = """usage: mintjax train CONFIG.yaml [field=value | --field value]... [--overwrite]

Train a policy in an environment. CONFIG.yaml is a file, or the name of a shipped experiment such as
count_down. A run that was interrupted goes on where it was when the same command is given again.

options:
  --overwrite    discard what an earlier run left in the run directory
  --help         show this

fields:
"""


def train(arguments: Sequence[str]) -> int:
    """Run ``mintjax train``.

    Args:
        arguments: the command line after ``train``.

    Returns:
        The exit status.

    Raises:
        ConfigError: if the configuration cannot be used.

    Example:
        >>> train(["count_down", "steps=1", "--overwrite"])
    """
    return run_experiment(arguments, _USAGE, _start)


def _start(config: "TrainConfig", *, overwrite: bool) -> None:
    from mintjax.train.loop import run

    run(config, overwrite=overwrite)
