"""The commands, put together."""

from __future__ import annotations

import typer

from aiomailbox.cli.checkpoints import checkpoints

__all__ = ["app"]

app = typer.Typer(
    help="Stateful stream processing that you can await.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(checkpoints, name="checkpoints")


def _commands() -> None:
    """Keep the name of the group in the command line while there is one only."""


app.callback()(_commands)
