"""The settings of checkpoints."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from enum import Enum
from os import PathLike
from typing import Any, Final

from aiomailbox.durations import above_zero, duration_text, pipeline_ms
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.records.events import NO_ALIGNED_TIMEOUT, Alignment, SnapshotType
from aiomailbox.signatures import check_count, check_type, refuse_home
from aiomailbox.storage.local import PRIVATE

# A file of its own costs some syncs.
MEMORY_THRESHOLD: Final = 16 * 1024


class Retention(Enum):
    """Which checkpoints are kept when a job ended early; a program that dies leaves them.

    A job that has finished keeps none: its input ended, or it was stopped. One that was
    cancelled, as by SIGTERM, or has failed, has not finished.

    Concept:
        Flink, ``ExternalizedCheckpointRetention``; ``NEVER`` is its default, and
        ``ON_CANCELLATION`` that of this library (docs/decisions, 45).
    """

    NEVER = "never"
    ON_FAILURE = "on_failure"
    ON_CANCELLATION = "on_cancellation"


class CheckpointingMode(Enum):
    """How often a recovery counts the records that were processed after the checkpoint."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """The settings of a job's checkpoints.

    Args:
        interval: The time between periodic checkpoints: a timedelta; None
            for manual checkpoints and savepoints only.
        mode: Whether the channels of a task wait for each other's barriers.
        timeout: How long a checkpoint may take before it fails: a timedelta.
        min_pause: The minimum time from the end of one periodic checkpoint to the start
            of the next: a timedelta.
        max_concurrent: How many checkpoints may be pending at once.
        tolerable_failures: How many checkpoints in a row may fail before the job fails.
        unaligned: Whether barriers may overtake data, which then is part of the
            checkpoint.
        aligned_timeout: With ``unaligned``, how long barriers wait for each other
            before they overtake: a timedelta; 0 to overtake at once.
        retained: How many completed checkpoints are kept; with 1 there is no other to
            use if the latest is damaged.
        directory: Where they are kept: a path, or a URL such as ``s3://bucket/jobs``;
            None for a temporary directory, which helps when a task or a worker
            fails, but not when the program does.
        retention: Whether those in ``directory`` are kept when the job has not
            finished: if it failed or was cancelled, only if it failed, or never.
        after_tasks_finish: Whether checkpoints continue once some tasks have finished; if
            so, tasks that have finished wait for the one that commits their results.
        journal_directory: Where operators with a journal keep finished calls: a path or
            a URL; None for next to the checkpoints. If these are in an object store, a file
            system that appends is faster.
        memory_threshold: Task state of at most so many bytes is stored in the
            checkpoint's metadata instead of a file of its own.
        file_mode: The mode of new files of checkpoints, savepoints and the journal,
            exactly, whatever the umask; new directories get the x bits that go with it.
            For processes of other users, such as Spark's executors: ``0o660`` for those
            of the same group.

    Raises:
        InvalidArgumentError: If a number is out of its range, or settings exclude each
            other.
        WrongTypeError: If an argument has the wrong type.

    Concept:
        Flink, ``CheckpointConfig``; the defaults are Flink's.

    Example:
        >>> CheckpointConfig(timedelta(seconds=5), unaligned=True).alignment(
        ...     SnapshotType.CHECKPOINT
        ... )
        (<Alignment.UNALIGNED: 'unaligned'>, 9223372036854775807)
    """

    interval: timedelta | None
    _: KW_ONLY
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    timeout: timedelta = timedelta(minutes=10)
    min_pause: timedelta = timedelta()
    max_concurrent: int = 1
    tolerable_failures: int = 0
    unaligned: bool = False
    aligned_timeout: timedelta = timedelta()
    retained: int = 1
    directory: str | PathLike[str] | None = None
    retention: Retention = Retention.ON_CANCELLATION
    after_tasks_finish: bool = True
    journal_directory: str | PathLike[str] | None = None
    memory_threshold: int = MEMORY_THRESHOLD
    file_mode: int = PRIVATE

    def __post_init__(self) -> None:
        if self.interval is not None and self.interval_ms < 10:
            raise InvalidArgumentError(
                "interval",
                f"{self.interval} is too short for a checkpoint",
                "Use at least 10 ms, or None for manual checkpoints.",
            )
        if not isinstance(self.mode, CheckpointingMode):
            raise WrongTypeError(
                "mode",
                f"{self.mode!r} is not a checkpointing mode",
                "Use e.g. am.CheckpointingMode.EXACTLY_ONCE.",
            )
        why = ", so that every checkpoint would fail"
        above_zero(self.timeout_ms, "timeout", why)
        pipeline_ms(self.min_pause, "min_pause")
        check_count(self.max_concurrent, "max_concurrent")
        check_count(self.retained, "retained")
        check_count(self.tolerable_failures, "tolerable_failures", minimum=0)
        check_count(self.memory_threshold, "memory_threshold", minimum=0)
        _check_file_mode(self.file_mode)
        check_type(self.retention, Retention, "retention", "Use a Retention.")
        for name in ("directory", "journal_directory"):
            place: Any = getattr(self, name)
            check_type(
                place, str | PathLike | None, name, "Give a str or a Path.", "a path"
            )
            if place is not None and not refuse_home(place, name):
                raise InvalidArgumentError(
                    name, "it is empty", 'Write "." for the directory of the program.'
                )
        self._check_unaligned()

    def __str__(self) -> str:
        """Return when checkpoints are taken and where they go, for `explain`.

        Example:
            >>> str(CheckpointConfig(interval=timedelta(minutes=1), directory="/jobs"))
            'every 1 min, to /jobs, which keeps the last one'
        """
        when = "when asked for"
        if self.interval is not None:
            when = f"every {duration_text(self.interval_ms)}"
        place = "to a temporary directory, which ends with the job"
        if self.directory is not None:
            kept = "one" if self.retained == 1 else str(self.retained)
            place = f"to {os.fspath(self.directory)}, which keeps the last {kept}"
        journal = ""
        if self.journal_directory is not None:
            journal = f", journals to {os.fspath(self.journal_directory)}"
        return f"{when}, {place}{journal}"

    @property
    def is_durable(self) -> bool:
        """Whether checkpoints outlive the program."""
        return self.directory is not None

    def keeps_after(self, *, cancelled: bool) -> bool:
        """Return whether a job that was cancelled, or has failed, keeps checkpoints."""
        if cancelled:
            return self.retention is Retention.ON_CANCELLATION
        return self.retention is not Retention.NEVER

    @property
    def interval_ms(self) -> int:
        """The interval, at least the pause; 0 without periodic checkpoints."""
        if self.interval is None:
            return 0
        # The pause wins: asked for more often, checkpoints would be refused.
        return max(pipeline_ms(self.interval, "interval"), self.min_pause_ms)

    @property
    def min_pause_ms(self) -> int:
        """The pause in milliseconds."""
        return pipeline_ms(self.min_pause, "min_pause")

    @property
    def timeout_ms(self) -> int:
        """The timeout in milliseconds."""
        return pipeline_ms(self.timeout, "timeout")

    def alignment(self, kind: SnapshotType) -> tuple[Alignment, int]:
        """Return how barriers of a kind meet, and the timeout of their alignment."""
        if self.mode is CheckpointingMode.AT_LEAST_ONCE:
            return Alignment.AT_LEAST_ONCE, NO_ALIGNED_TIMEOUT
        # A savepoint has nothing in flight, so that parallelism and graph may change.
        if kind.is_savepoint or not self.unaligned:
            return Alignment.ALIGNED, NO_ALIGNED_TIMEOUT
        timeout_ms = pipeline_ms(self.aligned_timeout, "aligned_timeout")
        if timeout_ms == 0:
            return Alignment.UNALIGNED, NO_ALIGNED_TIMEOUT
        return Alignment.ALIGNED, timeout_ms

    def _check_unaligned(self) -> None:
        timeout_ms = pipeline_ms(self.aligned_timeout, "aligned_timeout")
        if not self.unaligned:
            if timeout_ms:
                raise InvalidArgumentError(
                    "aligned_timeout",
                    "it has no effect on aligned checkpoints",
                    "Set unaligned=True, or leave it out.",
                )
            return
        if self.mode is CheckpointingMode.AT_LEAST_ONCE:
            raise InvalidArgumentError(
                "unaligned",
                "it has no effect at least once, where no barrier waits for others",
                "Use CheckpointingMode.EXACTLY_ONCE, or leave it out.",
            )
        if self.max_concurrent != 1:
            raise InvalidArgumentError(
                "max_concurrent",
                "unaligned checkpoints do not run concurrently",
                "Use 1 with unaligned=True.",
            )


def _check_file_mode(mode: int) -> None:
    if isinstance(mode, bool) or not isinstance(mode, int):
        raise WrongTypeError(
            "file_mode", f"{mode!r} is not a mode", "Use an int such as 0o640."
        )
    # An octal number without its prefix is refused, too.
    if mode & ~0o666 or mode & PRIVATE != PRIVATE:
        raise InvalidArgumentError(
            "file_mode",
            f"{mode:#o} is not the mode of files that their owner reads and writes",
            "Use e.g. 0o600, 0o640 or 0o660, with the prefix 0o; directories get "
            "their x bits by themselves.",
        )
