"""An event loop on which threads take turns and time passes unevenly, by a seed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import random
from collections.abc import Callable
from contextvars import Context
from datetime import datetime
from typing import Any, Final, TypeVarTuple

from aiomailbox.testing.clock import ManualClock
from aiomailbox.testing.simulation.world import Life
from aiomailbox.testing.virtual_time import VirtualTimeLoop

__all__ = ["SimulationLoop"]

_Ts = TypeVarTuple("_Ts")

_SLOW_S: Final = 5.0
_STEPS_PER_COLLECTION: Final = 20_000


class SimulationLoop(VirtualTimeLoop):
    """A virtual-time loop that is the same in each run with the same seed.

    Calls in an executor are made on the loop's own thread, a little later, and what
    they return arrives a little later still. Other threads are not waited for. Work
    takes time: each reading of the clock moves it.

    Args:
        life: Decides what is slow, and counts callbacks.
        start: Wall-clock time at the start, an aware datetime.
        steps_max: After how many callbacks `on_exhausted` is called.

    Attributes:
        is_exhausted: Whether there were so many.
        on_exhausted: What is called then; by default it stops the loop.
    """

    def __init__(self, life: Life, start: datetime, steps_max: int) -> None:
        self._life = life
        self._steps_left = steps_max
        self.is_exhausted: bool = False
        self.on_exhausted: Callable[[], object] = self.stop
        super().__init__(start=start, real_wait_limit=0.0)
        self.clock = _UnevenClock(start, life.world.random.getrandbits(64))

    def now_s(self) -> float:
        """Return what `time` does without moving it."""
        return self.clock._monotonic

    def call_soon(
        self,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call a function in the next turn; a blow may come before it."""
        self._steps_left -= 1
        if self._steps_left == 0:
            # Once: what is left comes to its end.
            self.is_exhausted = True
            super().call_soon(self.on_exhausted)
        if self._steps_left % _STEPS_PER_COLLECTION == 0:
            gc.collect()
        self._life.step()
        return super().call_soon(callback, *args, context=context)

    def run_in_executor(
        self,
        executor: concurrent.futures.Executor | None,
        func: Callable[[*_Ts], Any],
        *args: *_Ts,
    ) -> asyncio.Future[Any]:
        """Call a function after a while, here; its result arrives after another."""
        del executor
        future: asyncio.Future[Any] = self.create_future()
        self.call_later(self._delay_s(), self._call_outside, future, func, args)
        return future

    def _call_outside(
        self, future: asyncio.Future[Any], func: Callable[..., Any], args: Any
    ) -> None:
        result, error = None, None
        try:
            result = func(*args)
        except Exception as raised:  # noqa: BLE001 -- the waiting caller gets it
            error = raised
        self.call_later(self._delay_s(), _arrive, future, result, error)

    def _delay_s(self) -> float:
        life = self._life
        draw = life.world.random
        if life.is_alive and life.world.chance(life.world.faults.slow_call):
            life.world.take(life.now(), "a slow call in a thread")
            return draw.uniform(0, _SLOW_S)
        return draw.choice((0.0, draw.uniform(0, 0.002), draw.uniform(0, 0.02)))

    def _may_be_woken_by_thread(self) -> bool:
        return False


class _UnevenClock(ManualClock):
    """A clock that is moved by reading it."""

    __slots__ = ("_random",)

    def __init__(self, start: datetime, seed: int) -> None:
        super().__init__(start)
        self._random = random.Random(seed)

    def monotonic(self) -> float:
        """Return the seconds since the clock was made; a moment later each time."""
        draw = self._random.random()
        # Now and then something else has had the processor.
        self._monotonic += draw * 1e-4 if draw < 0.85 else draw * 0.01
        return self._monotonic


def _arrive(
    future: asyncio.Future[Any], result: Any, error: BaseException | None
) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
