"""The command line application, with all commands."""

from __future__ import annotations

import typer

from aiomailbox.cli.checkpoints import checkpoints
from aiomailbox.cli.programs import add_programs

_CODES = (
    "Exit codes: 0 all is well, 1 something is damaged, 2 the command line is wrong or an "
    "extra is missing, 3 what was asked for is not there, 4 a running job holds it, 5 the "
    "system refused, 6 the job failed or was cancelled, 7 the program's own code raised "
    "before there was a job, 130 it was interrupted, 143 it was ended by SIGTERM."
)

app = typer.Typer(
    help="Stateful stream processing that you can await.",
    epilog=_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(checkpoints, name="checkpoints")
add_programs(app)
