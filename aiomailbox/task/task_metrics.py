"""The metrics of a task: how it spends its time, and how full its buffers are.

Everything here is computed when it is read; a task whose metrics are not read pays for
none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from aiomailbox.availability import Availability
from aiomailbox.exchange.core.contract import ChannelCredit, ChannelStatistics
from aiomailbox.mailbox.control import PeriodTimer
from aiomailbox.mailbox.metrics import MailboxMetrics
from aiomailbox.memory.local_pool import PoolStatistics
from aiomailbox.metrics.catalogue import MetricValue
from aiomailbox.task.environment import TaskPlan


def time_metrics(metrics: MailboxMetrics) -> dict[str, MetricValue]:
    """Return how a task has spent its time: in all, and per second lately.

    The four shares of a second sum to 1000 while the task runs; ``backpressured`` is
    soft and hard together.

    Concept:
        Flink, ``busyTimeMsPerSecond``, ``idleTimeMsPerSecond``,
        ``softBackPressuredTimeMsPerSecond``, ``hardBackPressuredTimeMsPerSecond``.
    """
    shares = metrics.time_shares()
    soft_ms = metrics.backpressured.total_ms()
    hard_ms = metrics.hard_backpressured.total_ms()
    return {
        "idle_ms": metrics.idle.total_ms(),
        "backpressured_ms": soft_ms + hard_ms,
        "busy_time_ms_per_second": shares.busy,
        "idle_time_ms_per_second": shares.idle,
        "soft_backpressured_time_ms_per_second": shares.soft_backpressured,
        "hard_backpressured_time_ms_per_second": shares.hard_backpressured,
        "backpressured_time_ms_per_second": shares.backpressured,
    }


def latency_metrics(metrics: MailboxMetrics) -> dict[str, MetricValue]:
    """Return how long ordinary mail waits; nothing unless it is measured.

    Concept:
        Flink, ``mailboxLatencyMs``.
    """
    probe = metrics.latency
    return {} if probe is None else {"mailbox_latency_ms": probe.waited_ms.value()}


def buffer_metrics(plan: TaskPlan) -> dict[str, MetricValue]:
    """Return how full the buffers before and behind a task are.

    A usage is a fraction of the pool: 1 means that nothing more is lent, above 1 is
    overdraft, and None that there is no pool. Sizes of objects are estimates.

    Concept:
        Flink, ``outPoolUsage``, ``inPoolUsage``, ``exclusiveBuffersUsage``,
        ``floatingBuffersUsage``, ``inputQueueLength``, ``outputQueueLength``,
        ``debloatedBufferSize``.
    """
    pools = [pool.statistics() for pool in plan.pools]
    values: dict[str, MetricValue] = {
        "out_pool_usage": _fill(pools).usage,
        "overdraft_buffers": sum(pool.overdraft + pool.elastic for pool in pools),
        **_input_usage(
            [credit for gate in plan.gates for credit in gate.credits()],
            [pool for gate in plan.gates for pool in gate.pools()],
        ),
    }
    waiting = [channel for gate in plan.gates for channel in gate.statistics()]
    values["num_bytes_in"] = sum(each.bytes_total for each in waiting)
    written = [
        channel for writer in plan.writers for channel in writer.partition.statistics()
    ]
    values["num_bytes_out"] = sum(each.bytes_total for each in written) + sum(
        each.queued_bytes for each in written
    )
    for side, channels in (("input", waiting), ("output", written)):
        values[f"{side}_queue_length"] = sum(each.queued_buffers for each in channels)
        values[f"{side}_queue_records"] = _records(channels)
        values[f"{side}_queue_size_bytes"] = sum(each.queued_bytes for each in channels)
    sizes = [
        size
        for gate in plan.gates
        if (size := gate.debloated_buffer_size_bytes) is not None
    ]
    if sizes:
        values["debloated_buffer_size_bytes"] = min(sizes)
    return values


class _Fill(NamedTuple):
    used: int
    size: int

    @property
    def usage(self) -> float | None:
        return self.used / self.size if self.size else None


def _fill(pools: Iterable[PoolStatistics]) -> _Fill:
    lent = [(pool.used + pool.elastic, pool.size) for pool in pools]
    return _Fill(sum(used for used, _ in lent), sum(size for _, size in lent))


def _records(channels: Iterable[ChannelStatistics]) -> int:
    return sum(channel.queued_records for channel in channels)


def _input_usage(
    credits_by_channel: Sequence[ChannelCredit | None], pools: Sequence[PoolStatistics]
) -> dict[str, MetricValue]:
    """Return the usage of what gates have of their own."""
    known = [credit for credit in credits_by_channel if credit is not None]
    size = sum(credit.exclusive for credit in known)
    exclusive = _Fill(size - sum(credit.exclusive_free for credit in known), size)
    floating = _fill(pools)
    whole = _Fill(exclusive.used + floating.used, exclusive.size + floating.size)
    values: dict[str, MetricValue] = {"in_pool_usage": whole.usage}
    if known:
        values["exclusive_buffers_usage"] = exclusive.usage
        values["floating_buffers_usage"] = floating.usage
    return values


# What a task waits for, in words; computed on request.


_LINES_MAX: Final = 16


def waits_of(metrics: MailboxMetrics, plan: TaskPlan) -> list[str]:
    """Return what a task waits for and for how long, then each pool or channel.

    Returns:
        Nothing while the task works, or waits for an operator.
    """
    full_s = metrics.hard_backpressured.running_s
    if full_s is None:
        full_s = metrics.backpressured.running_s
    if full_s is not None:
        return [f"waits {full_s:.1f} s for room in its outputs", *_outputs(plan)]
    idle_s = metrics.idle.running_s
    if idle_s is None:
        return []
    what = "input or mail" if plan.gates else "its source or mail"
    return [f"waits {idle_s:.1f} s for {what}", *_inputs(plan)]


def _outputs(plan: TaskPlan) -> list[str]:
    lines = [
        f"pool of {pool.owner}: {pool.used} of {pool.size} buffers used"
        + ("" if pool.available else ", none to be had")
        for pool in (pool.statistics() for pool in plan.pools)
    ]
    return _cut(lines)


def _inputs(plan: TaskPlan) -> list[str]:
    lines = []
    for number, gate in enumerate(plan.gates):
        for channel, credit in enumerate(gate.credits()):
            line = f"input {number} channel {channel}"
            if credit is not None:
                line += f": {credit.available} credits, backlog {credit.backlog}"
            lines.append(line)
    return _cut(lines)


def _cut(lines: list[str]) -> list[str]:
    more = len(lines) - _LINES_MAX
    return lines if more <= 0 else [*lines[:_LINES_MAX], f"and {more} more"]


# Room in the outputs, with the time measured that operators wait for it.


class MeasuredAvailability(Availability):
    """Another availability; waiting for it in the middle of work is measured.

    Flink's task blocks in a request for a buffer then, which is what it calls hard
    backpressure. While there is room nothing is measured, and no clock is read.

    Args:
        source: The availability.
        timer: Measures how long `wait` suspends, and how long a `waiter` is waited for.
    """

    __slots__ = ("_source", "_timer")

    def __init__(self, source: Availability, timer: PeriodTimer) -> None:
        self._source = source
        self._timer = timer
        # The base class's own; callbacks are kept by the source.
        self._callbacks = []

    @property
    def available(self) -> bool:  # type: ignore[override]
        """Whether the source is available now."""
        return self._source.available

    def on_available(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once, when the source is available."""
        self._source.on_available(callback)

    def discard(self, callback: Callable[[], None]) -> None:
        self._source.discard(callback)

    def waiter(self) -> asyncio.Future[None]:
        """Return a fresh future of the source, and measure until it is done."""
        waiter = self._source.waiter()
        if not waiter.done():
            self._timer.mark_start()
            waiter.add_done_callback(self._on_waited)
        return waiter

    async def wait(self) -> None:
        """Suspend until available, and measure that; returns at once if it is."""
        source = self._source
        if source.available:
            return
        self._timer.mark_start()
        try:
            await source.wait()
        finally:
            self._timer.mark_end()

    def _on_waited(self, waiter: asyncio.Future[None]) -> None:
        self._timer.mark_end()
