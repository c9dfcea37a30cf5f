"""Runs a blocking iterator in a thread of its own, a bounded way ahead of the loop."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic

from aiomailbox.errors import IllegalStateError
from aiomailbox.supervision import run_in_thread
from aiomailbox.typevars import ItemT

_CANCEL_EVERY_S: Final = 0.5
_CANCEL_ATTEMPTS: Final = 60
_END: Final = object()


def _as_it_is(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else IllegalStateError(repr(error))


class Pump(Generic[ItemT]):
    """Carries the items of a blocking iterator from a thread to the event loop.

    The thread makes the iterator, asks for an item whenever there is room for one, and
    also drops the iterator: whatever that does or waits for never happens on the loop.

    Args:
        produce: Makes the iterator; called in the thread.
        on_ready: Called on the loop when there is something to take.
        depth: How many items may wait to be taken, at least 1.
        name: The thread's name.
        cancel: Makes a blocked ``next`` return or raise soon, and says whether nothing
            is left to cancel; called in some other thread, again and again until
            that is so and the thread has ended.
        explain: Turns what the iterator raised into the error for the taker; called
            in the thread.

    Attributes:
        ended: Whether the end has been taken.

    Invariants:
        At most ``depth`` items wait; while they do, the iterator is not asked.
    """

    def __init__(
        self,
        produce: Callable[[], Iterator[ItemT]],
        on_ready: Callable[[], None],
        *,
        depth: int,
        name: str,
        cancel: Callable[[], bool] = lambda: True,
        explain: Callable[[BaseException], Exception] = _as_it_is,
    ) -> None:
        self.ended: bool = False
        self._produce = produce
        self._cancel = cancel
        self._explain = explain
        self._on_ready = on_ready
        self._items: deque[Any] = deque()
        self._room = threading.Semaphore(depth)
        self._stopped = threading.Event()
        # A daemon: a read that never returns must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: Exception | None = None
        self._exhausted = False

    def start(self) -> None:
        """Start the thread; on the loop that will take."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def take(self) -> ItemT | None:
        """Return the next item, or None if none is there yet or the end was reached.

        Raises:
            Exception: What ``explain`` made of the iterator's error, if it failed.
        """
        if not self._items:
            if self._error is not None:
                raise self._error
            # Not the end: `ended` says that.
            return None
        item = self._items.popleft()
        if item is _END:
            self.ended = True
            if self._error is not None:
                raise self._error
            return None
        self._room.release()
        return item

    @property
    def is_running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive()

    def abandon(self) -> None:
        """Let the thread end as soon as it can, without waiting for it."""
        self._stopped.set()
        # A thread that waits for room looks at `_stopped` as soon as it has some.
        self._room.release()

    async def stop(self) -> bool:
        """End the thread, whatever it is doing, and wait for it.

        Cancelling the caller does not cut this short.

        Returns:
            Whether all has ended; False after half a minute of trying.
        """
        self.abandon()
        # Ended by itself: nothing is left to be cancelled.
        if self._exhausted and not self._thread.is_alive():
            return True
        return await run_in_thread(self._end_thread)

    def _end_thread(self) -> bool:
        if self._exhausted:
            # It ends by itself now; a cancellation could hit work of others.
            self._thread.join(_CANCEL_ATTEMPTS * _CANCEL_EVERY_S)
            return not self._thread.is_alive()
        # A job may start just after a cancellation, so one is not enough; and with
        # prefetching one may go on when the thread has ended.
        for _ in range(_CANCEL_ATTEMPTS):
            nothing_left = self._cancel()
            self._thread.join(_CANCEL_EVERY_S)
            if not self._thread.is_alive() and (nothing_left or self._cancel()):
                return True
        return False

    def _run(self) -> None:
        try:
            self._carry()
        except BaseException as error:  # noqa: BLE001 -- the taker gets it
            if not self._stopped.is_set():
                self._error = self._explained(error)
            # The frames hold the iterator, which must not outlive this thread.
            traceback.clear_frames(error.__traceback__)
            error.__traceback__ = None
        self._hand_over(_END)

    def _explained(self, error: BaseException) -> Exception:
        try:
            explained = self._explain(error)
        except Exception as unexplained:  # noqa: BLE001 -- the taker must get an error
            explained = unexplained
        error.__context__ = None
        if explained is not error:
            explained.__cause__ = error
        return explained

    def _carry(self) -> None:
        iterator = self._produce()
        try:
            while True:
                # Room first: an item in the hand of the thread would be one more than
                # `depth`.
                self._room.acquire()
                if self._stopped.is_set():
                    return
                item = next(iterator, _END)
                if item is _END:
                    self._exhausted = True
                    return
                # Its taker is gone, perhaps with its loop.
                if self._stopped.is_set():
                    return
                self._hand_over(item)
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    def _hand_over(self, item: Any) -> None:
        self._items.append(item)
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._on_ready)
        except RuntimeError:
            # The loop is closed: nothing will be taken any more.
            self._stopped.set()
