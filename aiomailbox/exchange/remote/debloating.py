"""Keeps what is in flight towards a gate as small as its task is slow.

Theory of operation: the gate says when it has something to read and when it has nothing,
so that idle time does not count. Once a period the bytes that were read meanwhile make a
throughput, and that a size of buffers, which the producers get if it has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiomailbox.clock import Clock, clock_of
from aiomailbox.exchange.input.gate import InputChannel, InputGate
from aiomailbox.exchange.remote.channel import RemoteInputChannel
from aiomailbox.memory.debloat import BufferDebloater, DebloatOptions, ThroughputMeter

__all__ = ["DebloatingGate", "GateDebloating"]

_MS_PER_S = 1_000


class GateDebloating:
    """Announces buffer sizes to the remote producers of a gate, once a period.

    Args:
        gate: Its channels on this loop are left alone: they hold objects.
        options: How sizes follow the throughput.
        clock: Says how long reading took; None for the loop's.

    Attributes:
        debloater: What was announced last, and how long what is in flight takes.

    Concept:
        Flink, ``StreamTask.debloat`` and ``SingleInputGate.triggerDebloating``.
    """

    def __init__(
        self,
        gate: InputGate,
        options: DebloatOptions | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.debloater: BufferDebloater = BufferDebloater(options or DebloatOptions())
        self._gate = gate
        self._channels = [
            channel
            for channel in gate.channels
            if isinstance(channel, RemoteInputChannel)
        ]
        self._clock = clock
        self._meter = ThroughputMeter()
        self._bytes_counted = 0
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<GateDebloating of {self._gate.name!r}: {self.debloater.size_bytes} bytes>"

    def start(self) -> None:
        """Begin to measure; ends by itself when all channels are released. Idempotent."""
        if self._timer is not None:
            return
        if self._clock is None:
            self._clock = clock_of(asyncio.get_running_loop())
        self._gate.activity = self
        self._gate.debloated_buffer_size_bytes = self.debloater.size_bytes
        if self._gate.availability.available:
            self.on_data()
        self._arm()

    def stop(self) -> None:
        """Announce nothing more. Idempotent."""
        self._gate.activity = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_data(self) -> None:
        """Be notified that there is something to read now."""
        self._meter.resume(self._now_ms())

    def on_idle(self) -> None:
        """Be notified that there is nothing to read any more."""
        self._meter.pause(self._now_ms())

    def recalculate(self) -> int | None:
        """Look at what was read since the last time.

        Returns:
            The size that was announced, in bytes, or None if it is no news.
        """
        read_bytes = sum(channel.bytes_total for channel in self._channels)
        self._meter.add(read_bytes - self._bytes_counted)
        self._bytes_counted = read_bytes
        open_channels = [each for each in self._channels if not each.is_released]
        size_bytes = self.debloater.recalculate(
            self._meter.calculate(self._now_ms()),
            sum(channel.buffers_in_use for channel in open_channels),
        )
        if size_bytes is not None:
            self._gate.debloated_buffer_size_bytes = size_bytes
            for channel in open_channels:
                channel.announce_buffer_size(size_bytes)
        return size_bytes

    def _on_period(self) -> None:
        self._timer = None
        if all(channel.is_released for channel in self._channels):
            self.stop()
            return
        self.recalculate()
        self._arm()

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        period_s = self.debloater.options.period_ms / _MS_PER_S
        self._timer = loop.call_later(period_s, self._on_period)

    def _now_ms(self) -> int:
        assert self._clock is not None, "start() was not called"
        return int(self._clock.monotonic() * _MS_PER_S)


class DebloatingGate(InputGate):
    """A gate that says how large its buffers should be while it is open.

    Args:
        channels: At least one; those on this loop are left alone.
        options: How sizes follow the throughput.
        name: Used in messages.
        clock: Says how long reading took; None for the loop's.
    """

    def __init__(
        self,
        channels: Sequence[InputChannel],
        options: DebloatOptions,
        *,
        name: str = "gate",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(channels, name=name)
        self._debloating = GateDebloating(self, options, clock=clock)

    def request_partitions(self) -> None:
        """Connect every channel to its producer, and begin to measure."""
        super().request_partitions()
        if not self.is_closed:
            self._debloating.start()

    def close(self) -> None:
        """Release every channel, and announce nothing more. Idempotent."""
        super().close()
        self._debloating.stop()
