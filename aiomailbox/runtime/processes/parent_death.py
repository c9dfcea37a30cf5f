"""A signal from the system when the parent process dies, where there is one."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Final

__all__ = ["ORPHANED", "die_with_parent"]

# The exit code of a worker whose parent is gone.
ORPHANED: Final = 70
_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent dies, whatever either does.

    On Linux; on other systems the lifeline has to do, which needs Python's global lock,
    and that no other process has a copy of the parent's end. For the system the parent
    is the thread that started this process: the one that runs the job.

    Args:
        parent: The parent's process id. If it has died already, so does this process.
    """
    if sys.platform != "linux":
        return
    # A libc without prctl, or an interpreter without ctypes: the lifeline is left.
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # It may have died before the signal was requested.
    if os.getppid() != parent:
        os._exit(ORPHANED)
