"""Looks at the frames of a thread that works, while each collection lets it go on.

Argument: who looks. The interpreter crashes if a collection begins in the middle.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator

from aiomailbox.runtime.held_loop import look_at_loop
from aiomailbox.runtime.loop_watch import LoopWatch, StallLog

LOOKS = 10_000


def dig(depth: int) -> int:
    """Make frames and objects, and drop them."""
    held = [depth, {}]
    return dig(depth - 1) + len(held) if depth else 0


def dig_wide(depth: int) -> int:
    """Make larger ones in their place."""
    one, two, three, four = [depth], {depth}, (depth, [depth]), {depth: None}
    below = dig_wide(depth - 1) if depth else 0
    return below + len(one) + len(two) + len(three) + len(four)


def count_down(depth: int) -> Iterator[int]:
    """Make frames that are no part of the thread's stack."""
    if depth:
        yield from count_down(depth - 1)
    yield depth


def work(begun: threading.Event, ended: threading.Event) -> None:
    begun.set()
    while not ended.is_set():
        dig(15)
        list(count_down(8))
        dig_wide(5)


def let_others_run(phase: str, info: dict[str, int]) -> None:
    """Do in a collection what a finalizer or a callback of a program may do."""
    if threading.current_thread() is not threading.main_thread():
        time.sleep(5e-5)


async def main(who: str) -> None:
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    watch = LoopWatch(loop, 1e9, StallLog(), still_held_s=1e9)
    looks: dict[str, Callable[[], object]] = {
        "watch": lambda: watch.look(time.monotonic()),
        "heartbeat": lambda: look_at_loop(loop, thread),
    }
    begun, ended = threading.Event(), threading.Event()

    def look() -> None:
        begun.wait()
        try:
            for _ in range(LOOKS):
                looks[who]()
        finally:
            ended.set()

    gc.callbacks.append(let_others_run)
    gc.set_threshold(9, 5, 5)
    sys.setswitchinterval(1e-5)
    looker = threading.Thread(target=look)
    looker.start()
    loop.call_soon(work, begun, ended)
    while not ended.is_set():
        await asyncio.sleep(0)
    looker.join()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
    print("whole")
