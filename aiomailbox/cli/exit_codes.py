"""What a command says by its exit code."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """The exit codes of all commands.

    Attributes:
        FINE: All is well.
        DAMAGED: Something is not what was written.
        USAGE: The command line is wrong, or an extra is missing.
        NOTHING: What was asked for is not there.
        IN_USE: A running job holds it.
        FAILED: The system refused: a disk, a permission, a network.
        JOB_FAILED: The job failed, or was cancelled.
        PROGRAM: The program's own code raised before there was a job.
    """

    FINE = 0
    DAMAGED = 1
    USAGE = 2
    NOTHING = 3
    IN_USE = 4
    FAILED = 5
    JOB_FAILED = 6
    PROGRAM = 7
