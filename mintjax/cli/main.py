"""Finding the command, and turning errors into one readable message and an exit status."""

import argparse
import linecache
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import mintjax
from mintjax.allocator import keep_freed_memory
from mintjax.cli.bench import bench
from mintjax.cli.dataset import dpo, sft
from mintjax.cli.plan import plan
from mintjax.cli.render import render
from mintjax.cli.train import train

_COMMANDS = {
    "bench": bench,
    "dpo": dpo,
    "plan": plan,
    "render": render,
    "sft": sft,
    "train": train,
}
_COMPUTING = "bench", "dpo", "sft", "train"
_DESCRIPTION = """commands:
  train CONFIG.yaml [field=value | --field value]... [--overwrite]
                 train a policy in an environment; see mintjax train --help
  sft CONFIG.yaml [field=value | --field value]... [--overwrite]
                 train a policy on conversations; see mintjax sft --help
  dpo CONFIG.yaml [field=value | --field value]... [--overwrite]
                 train a policy on chosen and rejected replies; see mintjax dpo --help
  plan CONFIG.yaml [field=value | --field value]... [--tokens N]
                 show what a run takes in memory and compiles; see mintjax plan --help
  render CONVERSATION.json --renderer NAME [--html PAGE.html]
                 show a conversation token by token; see mintjax render --help
  bench [NAME]... [--json] [--runs N] [--plot FILE.png]
                 measure on this machine; see mintjax bench --help
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line after the program's name; None takes it from ``sys.argv``, and the process is then
            this command's own.

    Returns:
        The exit status: 0 is success, 2 a command line or configuration that cannot be used, 1 any other error that
        mintjax raised. Errors of other libraries, and bugs, keep their traceback.

    Example:
        >>> main(["train", "configs/count_down.yaml", "steps=1"])
    """
    own_process = arguments is None
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or arguments[0] not in _COMMANDS:
        _parser().parse_args(arguments)
    if own_process and arguments[0] in _COMPUTING:
        keep_freed_memory()  # of a caller's process the caller decides
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return _COMMANDS[arguments[0]](arguments[1:])
        except (ValueError, RuntimeError, OSError) as error:
            if (message := _explain(error)) is None:
                raise
            print(f"mintjax: error: {message}", file=sys.stderr)
            from mintjax.train.config import ConfigError

            return 2 if isinstance(error, ConfigError) else 1


def _parser() -> argparse.ArgumentParser:
    """Return the parser for what stands before a command's own arguments."""
    parser = argparse.ArgumentParser(
        prog="mintjax",
        usage="mintjax [--help] [--version] COMMAND ...",
        epilog=_DESCRIPTION,
        description="Chat renderers and multi-turn reinforcement learning of language models in JAX.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mintjax {mintjax.__version__}")
    parser.add_argument("command", choices=sorted(_COMMANDS), help=argparse.SUPPRESS)
    return parser


def _explain(error: Exception) -> str | None:
    """Return the message of an error that mintjax raised on purpose; None for any other."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    statement = linecache.getline(frame.f_code.co_filename, line).strip()
    # A raise statement of ours was written for the reader of its message; anything else broke.
    raised_here = _is_ours(frame.f_globals["__name__"]) and statement.startswith("raise ")
    return str(error) if raised_here or _is_ours(type(error).__module__) else None


def _is_ours(module: str) -> bool:
    """Return whether a module belongs to this package."""
    return module.split(".")[0] == "mintjax"


def _show_warning(message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Print a warning as one line, without the place in the source."""
    print(f"mintjax: warning: {message}", file=sys.stderr)
