"""``checkpoints``: lists, inspects, verifies and deletes the checkpoints of jobs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from aiomailbox.checkpoint.reader import (
    FoundCheckpoint,
    delete_checkpoint,
    find_checkpoints,
)
from aiomailbox.checkpoint.savepoint import Savepoint
from aiomailbox.cli.exit_codes import ExitCode
from aiomailbox.cli.output import end, show_json, show_table, size_text
from aiomailbox.clock import SystemClock
from aiomailbox.errors import (
    AioMailboxError,
    CorruptStreamError,
    DamagedFileError,
    MissingExtraError,
    StorageClaimedError,
)

_CODES = (
    "Exit codes: 0 all is well, 1 something is damaged, 2 the command line is wrong or an "
    "extra is missing, 3 there is no checkpoint, 4 a running job holds it, 5 the system "
    "refused."
)

checkpoints = typer.Typer(
    help="Checkpoints and savepoints: list, inspect, verify, delete.",
    epilog=_CODES,
    no_args_is_help=True,
)

_Place = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help="Path or URL of a checkpoint, a savepoint, or a directory of these.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def list_checkpoints(place: _Place, as_json: _Json = False) -> None:
    """Show the checkpoints and savepoints at a place."""
    found = _found_at(place)
    if as_json:
        show_json([_summary(one) for one in found])
    else:
        heads = ("PLACE", "ID", "KIND", "JOB", "EPOCH", "TIME", "SIZE", "PROBLEM")
        show_table(heads, [_row(one) for one in found])
    end(_code(one.problem for one in found))


def inspect(place: _Place, as_json: _Json = False) -> None:
    """Show the contents of a checkpoint: operators, states, tasks, sizes."""
    found = _found_at(place)
    described = [_described(one) for one in found]
    if as_json:
        show_json(described)
    else:
        for one in described:
            _show_described(one)
    end(_code(one["problem"] for one in described))


def verify(place: _Place, as_json: _Json = False) -> None:
    """Read all files and compare their checksums."""
    checked = [_verified(one) for one in _found_at(place)]
    if as_json:
        show_json([_summary(one) for one in checked])
    else:
        for one in checked:
            typer.echo(f"{one.place}: {one.problem or 'whole'}")
    end(_code(one.problem for one in checked))


def delete(
    place: _Place,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Delete even if there are several.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Delete a checkpoint or savepoint with all its files."""
    found = _found_at(place)
    if len(found) > 1 and not every:
        end(
            ExitCode.USAGE,
            f"{place} has {len(found)} checkpoints: name one of them, or say --all",
        )
    names = "\n".join(one.place for one in found)
    if not yes and not typer.confirm(f"Delete this?\n{names}\n", err=True):
        end(ExitCode.USAGE, "nothing was deleted")
    for one in found:
        delete_checkpoint(one, SystemClock())
    if as_json:
        show_json([one.place for one in found])


@contextmanager
def _refusals() -> Iterator[None]:
    """End the command with a readable error message and its exit code."""
    try:
        yield
    except MissingExtraError as error:
        end(ExitCode.USAGE, str(error))
    except StorageClaimedError as error:
        end(ExitCode.IN_USE, str(error))
    except (DamagedFileError, CorruptStreamError) as error:
        end(ExitCode.DAMAGED, str(error))
    except (AioMailboxError, OSError) as error:
        end(ExitCode.FAILED, str(error))


def _found_at(place: str) -> list[FoundCheckpoint]:
    found = find_checkpoints(place)
    if not found:
        end(ExitCode.NOTHING, f"there is no checkpoint at {place}")
    return found


def _code(problems: Iterable[str]) -> int:
    return ExitCode.DAMAGED if any(problems) else ExitCode.FINE


def _verified(found: FoundCheckpoint) -> FoundCheckpoint:
    if found.metadata is None:
        return found
    try:
        found.files.verify()
    except DamagedFileError as error:
        return FoundCheckpoint(found.files, found.metadata, str(error))
    return found


def _summary(found: FoundCheckpoint) -> dict[str, Any]:
    summary: dict[str, Any] = {"place": found.place, "problem": found.problem}
    metadata = found.metadata
    if metadata is not None:
        summary |= {
            "checkpoint_id": metadata.checkpoint_id,
            "kind": metadata.kind.value,
            "job_id": metadata.job_id,
            "job_name": metadata.job_name,
            "epoch": metadata.epoch,
            "timestamp_ms": metadata.timestamp_ms,
            "size_bytes": metadata.size_bytes,
            "format": metadata.version,
        }
    return summary


def _row(found: FoundCheckpoint) -> tuple[str, ...]:
    metadata = found.metadata
    if metadata is None:
        return (found.place, "", "", "", "", "", "", found.problem)
    return (
        found.place,
        str(metadata.checkpoint_id),
        metadata.kind.value,
        metadata.job_id,
        str(metadata.epoch),
        _time_text(metadata.timestamp_ms),
        size_text(metadata.size_bytes),
        found.problem,
    )


def _time_text(timestamp_ms: int) -> str:
    moment = dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC)
    return moment.isoformat(timespec="seconds")


def _described(found: FoundCheckpoint) -> dict[str, Any]:
    described = _summary(found)
    metadata = found.metadata
    if metadata is None:
        return described
    try:
        operators = Savepoint(found.place).operators()
    except (DamagedFileError, CorruptStreamError) as error:
        return described | {"problem": str(error)}
    return described | {
        "operators": operators,
        "tasks": [
            {
                "task": str(handle.task),
                "file": handle.file,
                "size_bytes": handle.size,
                "is_finished": handle.is_finished,
                "prepared": len(handle.prepared),
            }
            for handle in metadata.handles
        ],
        "sources": sorted(metadata.enumerators),
        "services": sorted(metadata.services),
        "serializers": metadata.serializers,
        "statistics": metadata.statistics,
    }


def _show_described(described: dict[str, Any]) -> None:
    for name in ("place", "job_id", "checkpoint_id", "kind", "epoch", "problem"):
        if described.get(name) not in {None, ""}:
            typer.echo(f"{name}: {described[name]}")
    if "operators" not in described:
        return
    typer.echo(f"time: {_time_text(described['timestamp_ms'])}")
    typer.echo(f"size: {size_text(described['size_bytes'])}")
    rows = [
        (
            operator.uid or operator.id,
            operator.name,
            str(operator.parallelism),
            state.name if state else "",
            state.kind if state else "",
            " | ".join(state.types.values()) if state else "",
            state.serializer if state else "",
        )
        for operator in described["operators"]
        for state in operator.states or (None,)
    ]
    show_table(
        ("OPERATOR", "NAME", "SUBTASKS", "STATE", "KIND", "TYPE", "SERIALIZER"), rows
    )
    show_table(
        ("TASK", "FILE", "SIZE"),
        [
            (one["task"], one["file"] or "(inline)", size_text(one["size_bytes"]))
            for one in described["tasks"]
        ],
    )


for _name, _command in (
    ("list", list_checkpoints),
    ("inspect", inspect),
    ("verify", verify),
    ("delete", delete),
):
    checkpoints.command(_name, epilog=_CODES)(_refusals()(_command))
