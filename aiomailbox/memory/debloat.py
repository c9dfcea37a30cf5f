"""How large buffers should be, so that what is in flight takes a wished time.

Theory of operation: at the measured throughput, the wished time is so many bytes, and
these are shared by the buffers in use. The answer follows with a moving average and
never more than doubles at once, which makes growing and shrinking mirror each other.
Small changes are kept to oneself, since each one is a message upstream.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.memory.buffer import DEFAULT_SEGMENT_SIZE_BYTES

_MS_PER_S = 1_000
# Growth is capped at the double, so that it mirrors the fastest shrinking.
_GROWTH_MAX = 2


@dataclass(frozen=True, slots=True)
class DebloatOptions:
    """How buffer sizes follow the throughput.

    Attributes:
        target_ms: How long what is in flight should take.
        period_ms: How often to recalculate.
        samples: Over how many calculations to average.
        threshold_percent: Smaller changes are not announced.
        size_bytes_min: No buffer should be smaller.
        size_bytes_max: No buffer can be larger: a segment.
    """

    target_ms: int = 1_000
    period_ms: int = 200
    samples: int = 20
    threshold_percent: int = 25
    size_bytes_min: int = 256
    size_bytes_max: int = DEFAULT_SEGMENT_SIZE_BYTES

    def __post_init__(self) -> None:
        for name in ("target_ms", "period_ms", "samples", "size_bytes_min"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(
                    name, f"{getattr(self, name)} is less than 1"
                )
        if self.size_bytes_max < self.size_bytes_min:
            raise InvalidArgumentError(
                "size_bytes_max",
                f"{self.size_bytes_max} is less than size_bytes_min, "
                f"{self.size_bytes_min}",
            )
        if not 0 <= self.threshold_percent <= 100:
            raise InvalidArgumentError(
                "threshold_percent", f"{self.threshold_percent} is not within 0 .. 100"
            )


class BufferSizeEma:
    """The moving average of the size a buffer should have.

    Args:
        size_bytes: To begin with.
        size_bytes_min: Never less.
        size_bytes_max: Never more.
        samples: Over how many calculations.

    Concept:
        Flink, ``BufferSizeEMA``.

    Example:
        >>> ema = BufferSizeEma(200, 10, 200, samples=3)
        >>> ema.calculate(111, 13), ema.calculate(107, 7)
        (104, 60)
    """

    def __init__(
        self, size_bytes: float, size_bytes_min: int, size_bytes_max: int, samples: int
    ) -> None:
        self._alpha = 2.0 / (samples + 1)
        self._last = float(size_bytes)
        self._size_bytes_min = size_bytes_min
        self._size_bytes_max = size_bytes_max

    def calculate(self, total_bytes: int, buffers_in_use: int) -> int:
        """Return the next size.

        Args:
            total_bytes: The bytes that should be in flight.
            buffers_in_use: How many buffers share it; none count as one.
        """
        # One at least: with no buffer in use the whole sum would be one buffer's.
        wished = min(total_bytes / max(1, buffers_in_use), _GROWTH_MAX * self._last)
        following = self._last + self._alpha * (wished - self._last)
        self._last = max(self._size_bytes_min, min(following, self._size_bytes_max))
        # Half up: round() would take halves to the even neighbour.
        return int(self._last + 0.5)


class BufferDebloater:
    """Decides which buffer size to announce upstream, for one gate.

    Args:
        options: How sizes follow the throughput.

    Attributes:
        size_bytes: The size that was announced last; at the start the largest one.

    Concept:
        Flink, ``BufferDebloater``.

    Example:
        >>> debloater = BufferDebloater(DebloatOptions(samples=1, size_bytes_min=1))
        >>> debloater.recalculate(1_200, buffers_in_use=0)
        1200
        >>> debloater.recalculate(1_201, buffers_in_use=0) is None
        True
    """

    def __init__(self, options: DebloatOptions) -> None:
        self.options: DebloatOptions = options
        self.size_bytes: int = options.size_bytes_max
        self._ema = BufferSizeEma(
            options.size_bytes_max,
            options.size_bytes_min,
            options.size_bytes_max,
            options.samples,
        )

    def recalculate(self, bytes_per_s: int, buffers_in_use: int) -> int | None:
        """Take a measurement.

        Args:
            bytes_per_s: Throughput while there was something to read.
            buffers_in_use: Of all the gate's channels.

        Returns:
            The size to announce, in bytes, or None to leave it as it is.

        Raises:
            InvalidArgumentError: If the throughput is negative.
        """
        if bytes_per_s < 0:
            raise InvalidArgumentError("bytes_per_s", f"{bytes_per_s} is negative")
        total_bytes = bytes_per_s * self.options.target_ms // _MS_PER_S
        size_bytes = self._ema.calculate(total_bytes, buffers_in_use)
        if not self._is_news(size_bytes):
            return None
        self.size_bytes = size_bytes
        return size_bytes

    def _is_news(self, size_bytes: int) -> bool:
        if size_bytes == self.size_bytes:
            return False
        options = self.options
        # A bound is announced however small the step to it: otherwise the last one is
        # lost in the threshold and the size never gets there.
        if size_bytes in {options.size_bytes_min, options.size_bytes_max}:
            return True
        threshold = self.size_bytes * options.threshold_percent // 100
        return abs(size_bytes - self.size_bytes) >= threshold


class ThroughputMeter:
    """Bytes per second while there was something to read; time is an argument.

    Concept:
        Flink, ``ThroughputCalculator``.

    Example:
        >>> meter = ThroughputMeter()
        >>> meter.resume(0)
        >>> meter.add(500)
        >>> meter.pause(100)  # nothing to read for 900 ms
        >>> meter.resume(1_000)
        >>> meter.calculate(1_400)
        1000
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._active_ms = 0
        self._since_ms: int | None = None
        self._last = 0

    def add(self, size_bytes: int) -> None:
        """Count bytes that were read."""
        self._bytes += size_bytes

    def resume(self, now_ms: int) -> None:
        """Be notified that there is something to read. Idempotent."""
        if self._since_ms is None:
            self._since_ms = now_ms

    def pause(self, now_ms: int) -> None:
        """Be notified that there is nothing to read. Idempotent."""
        if self._since_ms is not None:
            self._active_ms += now_ms - self._since_ms
            self._since_ms = None

    def calculate(self, now_ms: int) -> int:
        """Return bytes per second since the last call.

        Without any time in it, the last result again.
        """
        if self._since_ms is not None:
            self._active_ms += now_ms - self._since_ms
            self._since_ms = now_ms
        # Nothing was read since: nothing has become slow, so the last figure holds.
        if self._active_ms > 0:
            self._last = self._bytes * _MS_PER_S // self._active_ms
            self._bytes = 0
            self._active_ms = 0
        return self._last
