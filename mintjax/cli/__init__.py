"""The command line, ``mintjax COMMAND ...``: a module a command, importing late what it needs."""

from mintjax.cli.main import main

__all__ = ["main"]
