"""Python's garbage collector, set for programs that keep state."""

from __future__ import annotations

import gc
from typing import Final

# Records die young, a few runs of 1,024 at a time: after Python's 700 or 2,000 objects most
# of those that are looked at still live, and for nothing. A full pass, which holds the
# event loop for as long as it takes to visit all state, comes after 5,000 of the first.
_THRESHOLDS: Final = (100_000, 50, 100)


def tune_collector() -> None:
    """Let Python's garbage collector look at less, and more rarely.

    What is there now is collected once and never visited again (`gc.freeze`), and the
    thresholds become 100,000 objects, 50 and 100 passes. A program calls this once, after
    its imports and before its jobs. Only objects that refer to each other in a circle
    wait longer for their memory; all others are freed at once, as before. The worker
    processes of `Processes` and the command line do this by themselves; a program's
    collector is its own, so the library leaves it alone unless it is asked.

    Example:
        >>> import gc
        >>> before = gc.get_threshold()
        >>> tune_collector()
        >>> gc.get_threshold()[0]
        100000
        >>> gc.unfreeze()
        >>> gc.set_threshold(*before)

    Concept:
        Python, ``gc.freeze`` and ``gc.set_threshold``.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
