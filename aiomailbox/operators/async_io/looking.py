"""Describes calls that have not ended; nothing is prepared for it while they run."""

from __future__ import annotations

import heapq
import reprlib
from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

from aiomailbox.operators.async_io.entry import Call, Worker
from aiomailbox.operators.core.locate import users_line_of
from aiomailbox.operators.core.open_calls import OpenCall, OpenCalls
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.supervision import frames_of

__all__ = ["LimitShown", "look_at_calls"]

_TEXT_MAX: Final = 200

# What is long is not written out first.
_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _TEXT_MAX
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 8


class LimitShown(NamedTuple):
    """The limit of an operator's calls.

    Attributes:
        limit: The limit, or None.
        free: Units that may be used now; None if they are counted in another process.
        waiting: Attempts of this operator that wait for it.
    """

    limit: RateLimit | None
    free: float | None
    waiting: int

    @property
    def name(self) -> str:
        """What people call the limit."""
        limit = self.limit
        if limit is None or limit.name is None:
            return "the limit"
        return f"limit {limit.name!r}"

    @property
    def text(self) -> str:
        """The limit and its tokens in words, "" without one."""
        limit = self.limit
        if limit is None:
            return ""
        free = "" if self.free is None else f"{self.free:g} of "
        return (
            f"{self.name}: {free}{limit.count:g} {limit.unit} free in {limit.per_s:g} s, "
            f"{self.waiting} calls wait for it"
        )


def look_at_calls(
    workers: Iterable[Worker],
    retrying: Collection[Call],
    limit: LimitShown,
    *,
    waiting_for_slot: int,
    now_s: float,
    count_max: int,
) -> OpenCalls:
    """Return the oldest calls; of the very oldest, where its code stands, too.

    Args:
        workers: They make the calls.
        retrying: Those that wait for their next attempt.
        limit: What they share.
        waiting_for_slot: Calls that no worker makes yet.
        now_s: The time by the job's monotonic clock.
        count_max: How many are described.
    """
    made: list[tuple[Call, Worker | None]] = [
        (worker.call, worker) for worker in workers if worker.call is not None
    ]
    made += [(call, None) for call in retrying]
    oldest = [
        _describe(call, worker, limit, now_s, with_line=place == 0)
        for place, (call, worker) in enumerate(
            heapq.nsmallest(count_max, made, key=lambda each: each[0].begun_s)
        )
    ]
    return OpenCalls(len(made), oldest, waiting_for_slot, limit.text)


def _describe(
    call: Call,
    worker: Worker | None,
    limit: LimitShown,
    now_s: float,
    *,
    with_line: bool,
) -> OpenCall:
    line = ""
    if worker is None:
        waits_for = "its next attempt"
    elif worker.abandoned:
        waits_for = "its function, which goes on after it was cancelled"
    elif call.is_leasing:
        waits_for = limit.name
    else:
        waits_for = "its function"
    if with_line and worker is not None and not call.is_leasing:
        line = users_line_of(frames_of(worker.task))
    return OpenCall(
        _records(call), call.attempts, max(0.0, now_s - call.begun_s), waits_for, line
    )


def _records(call: Call) -> str:
    first = _text(call.entries[0].value)
    more = len(call.entries) - 1
    return f"{first} and {more} more" if more else first


def _text(value: Any) -> str:
    try:
        text = _SHORT.repr(value)
    except Exception:  # noqa: BLE001 -- the user's own type
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."
