"""The exit codes of commands."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of all commands.

    Attributes:
        FINE: All is well.
        DAMAGED: A file is damaged.
        USAGE: The command line is wrong, or an extra is missing.
        NOTHING: The requested item does not exist.
        IN_USE: A running job uses it.
        FAILED: An operation of the system failed: a disk, a permission, a network.
        JOB_FAILED: The job failed, or was cancelled.
        PROGRAM: The program's own code raised before the job was started.
    """

    FINE = 0
    DAMAGED = 1
    USAGE = 2
    NOTHING = 3
    IN_USE = 4
    FAILED = 5
    JOB_FAILED = 6
    PROGRAM = 7
