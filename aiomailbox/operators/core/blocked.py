"""Why an operator or its task does not go on."""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = ["BlockCause", "Blocked"]


class BlockCause(enum.Enum):
    """What is waited for, or done.

    Attributes:
        INPUT: The task waits for input.
        SOURCE: The source waits for what it reads.
        OUTPUT: The task waits for room in its outputs.
        LOOP: The task could go on, and others use the event loop.
        LIMIT: Calls wait for their rate limit.
        CALLS: As many calls are being made as are allowed.
        RETRY: Calls wait for their next attempt.
        KEY: Records wait for others of their key.
        AWAIT: A function is awaited, for one record at a time.
        FUNCTION: A function runs: it computes, or blocks.
    """

    INPUT = "input"
    SOURCE = "source"
    OUTPUT = "output"
    LOOP = "loop"
    LIMIT = "limit"
    CALLS = "calls"
    RETRY = "retry"
    KEY = "key"
    AWAIT = "await"
    FUNCTION = "function"


class Blocked(NamedTuple):
    """What an operator waits for.

    Attributes:
        cause: What it is.
        what: Which one, for people: the name of a limit, a line.
    """

    cause: BlockCause
    what: str = ""
