"""The command line: ``aiomailbox``, or ``python -m aiomailbox``; needs ``aiomailbox[cli]``.

Exit codes are the same for all commands: see `ExitCode`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from aiomailbox.cli.exit_codes import ExitCode
from aiomailbox.errors import MissingExtraError

__all__ = ["ExitCode", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code.

    Args:
        arguments: The arguments after the program's name; None for those of this process.
    """
    try:
        from aiomailbox.cli.app import app
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in {"rich", "typer"}:
            raise
        sys.stderr.write(f"{MissingExtraError('the command line', 'cli')}\n")
        return ExitCode.USAGE
    given = None if arguments is None else list(arguments)
    is_script = Path(sys.argv[0]).stem == "aiomailbox"
    try:
        app(args=given, prog_name="aiomailbox" if is_script else "python -m aiomailbox")
    except SystemExit as end:
        return int(end.code or 0)
    return ExitCode.FINE
