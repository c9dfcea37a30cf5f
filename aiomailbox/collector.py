"""Python's garbage collector, set for programs that keep state."""

from __future__ import annotations

import gc
from typing import Final

# Records die young, a few runs of 1,024 at a time: after Python's 700 or 2,000 objects most
# of those that are looked at still live, and for nothing. A pass over 100,000 new objects that
# all live takes 10 to 30 ms, over 10,000 of them 1 to 3 ms, and both cost the same in all. A
# full pass, which holds the event loop while it visits all state, comes after 50,000 of these.
_THRESHOLDS: Final = (10_000, 500, 100)


def tune_collector() -> None:
    """Let Python's garbage collector look at less, and more rarely.

    Collects garbage once, excludes all present objects from later passes (`gc.freeze`),
    and sets the thresholds to 10,000 objects, 500 and 100 passes. Call it once, after the
    imports and before the jobs. Only objects that refer to each other in a circle wait
    longer for their memory; Python frees all others at once, as before. The worker
    processes of `Processes` and the command line call it by themselves. The library
    does not change the collector of your program unless you call this.

    Example:
        >>> import gc
        >>> before = gc.get_threshold()
        >>> tune_collector()
        >>> gc.get_threshold()[0]
        10000
        >>> gc.unfreeze()
        >>> gc.set_threshold(*before)

    Concept:
        Python, ``gc.freeze`` and ``gc.set_threshold``.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
