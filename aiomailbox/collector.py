"""Python's garbage collector, set for programs that keep state."""

from __future__ import annotations

import gc
from typing import Final

# Records die young, a few runs of 1,024 at a time: after Python's 700 or 2,000 objects most
# of those that are looked at still live, and for nothing. A pass holds the event loop while
# it visits what lives of the new objects: some 1 ms for 5,000, and 5 ms for the 25,000 of a
# pass over two generations. A full pass visits all state: after 100,000 of the first.
_THRESHOLDS: Final = (5_000, 5, 20_000)


def tune_collector() -> None:
    """Let Python's garbage collector look at less, and more rarely.

    Collects garbage once, excludes all present objects from later passes (`gc.freeze`),
    and sets the thresholds to 5,000 objects, 5 and 20,000 passes. Call it once, after the
    imports and before the jobs. Only objects that refer to each other in a circle wait
    longer for their memory; Python frees all others at once, as before. The worker
    processes of `Processes` and the command line call it by themselves. The library
    does not change the collector of your program unless you call this.

    Example:
        >>> import gc
        >>> before = gc.get_threshold()
        >>> tune_collector()
        >>> gc.get_threshold()[0]
        5000
        >>> gc.unfreeze()
        >>> gc.set_threshold(*before)

    Concept:
        Python, ``gc.freeze`` and ``gc.set_threshold``.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
