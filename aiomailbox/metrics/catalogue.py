"""All metrics that aiomailbox has by itself: one table, which docs/metrics.md shows."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import Final

import msgspec

from aiomailbox.signatures import with_other_names

# How observations are spread: in buckets that can be added up, of bounded number.
#
# Theory of operation: a bucket holds what lies within 4.4 % of each other, so that a
# quantile is right within 2.2 %, and a million-fold range has 320 buckets. Two
# histograms are merged by adding their buckets, which no list of samples allows. What
# is shown is recent: there are two generations of buckets, and when the newer one is
# full it replaces the older one.


_STEPS_PER_OCTAVE: Final = 16


# All that is no more than 0, and what is too small to have a logarithm.
_ZERO: Final = -(1 << 20)


_GENERATION: Final = 1024


class HistogramValue(msgspec.Struct, frozen=True):
    """The observations of a histogram.

    Attributes:
        count: Observations, all there ever were.
        total: Their sum.
        maximum: The largest of them, None before the first.
        buckets: How many of the recent ones are in each bucket.

    Example:
        >>> latency = Histogram()
        >>> for ms in range(1, 101):
        ...     latency.observe(ms)
        >>> value = latency.value()
        >>> value.count, value.maximum, round(value.mean, 1)
        (100, 100, 50.5)
    """

    count: int = 0
    total: float = 0.0
    maximum: float | None = None
    buckets: dict[int, int] = {}

    @property
    def mean(self) -> float | None:
        """The mean of all observations, None before the first."""
        return self.total / self.count if self.count else None

    def quantile(self, fraction: float) -> float | None:
        """Return a quantile of the recent observations, right within 2.2 %.

        Args:
            fraction: From 0 to 1: 0.5 for the median.

        Returns:
            None before the first observation.
        """
        rank = math.ceil(fraction * sum(self.buckets.values()))
        for bucket in sorted(self.buckets):
            rank -= self.buckets[bucket]
            if rank <= 0:
                return self._middle(bucket)
        return None

    @property
    def p50(self) -> float | None:
        """The median."""
        return self.quantile(0.5)

    @property
    def p95(self) -> float | None:
        """The value that 95 % of the observations do not exceed."""
        return self.quantile(0.95)

    @property
    def p99(self) -> float | None:
        """The value that 99 % of the observations do not exceed."""
        return self.quantile(0.99)

    def _middle(self, bucket: int) -> float:
        if bucket == _ZERO:
            return 0.0
        middle = math.exp2((bucket + 0.5) / _STEPS_PER_OCTAVE)
        return middle if self.maximum is None else min(middle, self.maximum)

    @staticmethod
    def sum_of(values: Iterable[HistogramValue]) -> HistogramValue:
        """Return one histogram of all their observations."""
        count, total, maximum = 0, 0.0, None
        buckets: dict[int, int] = {}
        for value in values:
            count += value.count
            total += value.total
            if value.maximum is not None:
                maximum = max(value.maximum, maximum or value.maximum)
            for bucket, number in value.buckets.items():
                buckets[bucket] = buckets.get(bucket, 0) + number
        return HistogramValue(count, total, maximum, buckets)


@with_other_names(
    "the histogram", dict.fromkeys(("update", "record", "add"), "observe(value)")
)
class Histogram:
    """Takes observations of a quantity; what it keeps is bounded.

    Example:
        >>> latency = Histogram()
        >>> for ms in range(1, 101):
        ...     latency.observe(ms)
        >>> round(latency.quantile(0.5)), latency.count
        (50, 100)
    """

    __slots__ = ("_newer", "_newer_count", "_older", "count", "maximum", "total")

    def __init__(self) -> None:
        self._newer: dict[int, int] = {}
        self._newer_count = 0
        self._older: dict[int, int] = {}
        self.count: int = 0
        self.total: float = 0.0
        self.maximum: float | None = None

    def observe(self, value: float) -> None:
        """Add an observation."""
        if self._newer_count == _GENERATION:
            self._older, self._newer = self._newer, {}
            self._newer_count = 0
        bucket = _bucket(value)
        self._newer[bucket] = self._newer.get(bucket, 0) + 1
        self._newer_count += 1
        self.count += 1
        self.total += value
        if self.maximum is None or value > self.maximum:
            self.maximum = value

    def quantile(self, fraction: float) -> float | None:
        """Return a quantile of the recent observations, or None before the first."""
        return self.value().quantile(fraction)

    def value(self) -> HistogramValue:
        """Return what it has observed."""
        buckets = dict(self._older)
        # Others may look from another thread.
        for bucket, number in list(self._newer.items()):
            buckets[bucket] = buckets.get(bucket, 0) + number
        return HistogramValue(self.count, self.total, self.maximum, buckets)


def _bucket(value: float) -> int:
    if not 0 < value < math.inf:
        return _ZERO
    return math.floor(math.log2(value) * _STEPS_PER_OCTAVE)


# What a metric is: its kind, its unit, and how the values of two subtasks are merged.


MetricValue = int | float | str | HistogramValue | None


class MetricKind(enum.Enum):
    """How a metric changes.

    Attributes:
        COUNTER: It only grows, and begins at 0 again when its task does.
        GAUGE: A value of the moment.
        HISTOGRAM: How observations are spread: a `HistogramValue`.
    """

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricScope(enum.Enum):
    """The kinds of objects that have metrics."""

    OPERATOR = "operator"
    TASK = "task"
    JOB = "job"


class Merge(enum.Enum):
    """How the values of two subtasks become one; None counts as no value.

    Attributes:
        SUM: They are added; histograms, too.
        MIN: The smaller one.
        MAX: The larger one.
        MEAN: The mean of all subtasks.
        LAST: The one of the later subtask, for texts.
    """

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    LAST = "last"


class Metric(msgspec.Struct, frozen=True):
    """The declaration of a metric.

    Attributes:
        name: Its name: Flink's in snake_case where Flink has it.
        kind: How it changes.
        unit: The unit: ``"records"``, ``"ms"``, ``"bytes"``; ``"1"`` for a fraction or
            a plain number.
        merge: How the values of subtasks become one.
        text: Its meaning.
        scope: Its scope.
        flink: Flink's name, "" if Flink has no such metric.
    """

    name: str
    kind: MetricKind
    unit: str
    merge: Merge
    text: str
    scope: MetricScope = MetricScope.OPERATOR
    flink: str = ""


def merged(metric: Metric, values: list[MetricValue]) -> MetricValue:
    """Return one value for those of all subtasks.

    Args:
        metric: Says how.
        values: One of each subtask, None where it has none.

    Example:
        >>> lag = Metric("lag", MetricKind.GAUGE, "ms", Merge.MAX, "How late it is.")
        >>> merged(lag, [3, None, 7])
        7
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return known[0] if known else None
    histograms = [value for value in known if isinstance(value, HistogramValue)]
    if histograms:
        return HistogramValue.sum_of(histograms)
    numbers = [value for value in known if isinstance(value, int | float)]
    if len(numbers) < len(known) or metric.merge is Merge.LAST:
        return known[-1]
    match metric.merge:
        case Merge.SUM:
            return sum(numbers)
        case Merge.MEAN:
            return sum(numbers) / len(numbers)
        case Merge.MIN:
            return min(numbers)
        case Merge.MAX:
            return max(numbers)


_COUNTER, _GAUGE, _HISTOGRAM = (
    MetricKind.COUNTER,
    MetricKind.GAUGE,
    MetricKind.HISTOGRAM,
)


_SUM, _MIN, _MAX, _MEAN = Merge.SUM, Merge.MIN, Merge.MAX, Merge.MEAN


_TASK, _JOB = MetricScope.TASK, MetricScope.JOB


_OPERATOR_METRICS: Final = (
    Metric(
        "num_records_in",
        _COUNTER,
        "records",
        _SUM,
        "Records that it was given.",
        flink="numRecordsIn",
    ),
    Metric(
        "num_records_out",
        _COUNTER,
        "records",
        _SUM,
        "Records that it emitted, side outputs included.",
        flink="numRecordsOut",
    ),
    Metric(
        "current_input_watermark",
        _GAUGE,
        "ms",
        _MIN,
        "The smallest watermark of its inputs, in milliseconds since the epoch.",
        flink="currentInputWatermark",
    ),
    Metric(
        "current_output_watermark",
        _GAUGE,
        "ms",
        _MIN,
        "The watermark that a source has emitted, in milliseconds since the epoch.",
        flink="currentOutputWatermark",
    ),
    Metric(
        "watermark_lag",
        _GAUGE,
        "ms",
        _MAX,
        "How far its watermark is behind the clock of the machine; None before the first "
        "one and after the last one.",
        flink="watermarkLag",
    ),
    Metric(
        "is_idle",
        _GAUGE,
        "1",
        _MIN,
        "1 if none of its inputs has a stream that flows: event time goes on without it.",
    ),
    Metric(
        "num_late_records_dropped",
        _COUNTER,
        "records",
        _SUM,
        "Records that came too late for their windows.",
        flink="numLateRecordsDropped",
    ),
    Metric(
        "skipped",
        _COUNTER,
        "records",
        _SUM,
        "Records left out because their function raised and on_error= said to skip.",
    ),
    Metric(
        "dead_letters",
        _COUNTER,
        "records",
        _SUM,
        "Records that went to a dead letter because their function raised.",
    ),
    Metric("calls", _COUNTER, "calls", _SUM, "Attempts of asynchronous calls."),
    Metric("retries", _COUNTER, "calls", _SUM, "Attempts that were not the first."),
    Metric("timeouts", _COUNTER, "calls", _SUM, "Calls that took longer than allowed."),
    Metric(
        "unwanted_results",
        _COUNTER,
        "records",
        _SUM,
        "Results that retry_if wants again after the last attempt: they are used.",
    ),
    Metric(
        "calls_found",
        _COUNTER,
        "calls",
        _SUM,
        "Calls whose result was in the journal, so that they were not made again.",
    ),
    Metric("cache_hits", _COUNTER, "records", _SUM, "Records answered by the cache."),
    Metric(
        "units_used",
        _GAUGE,
        "units",
        _SUM,
        "Units of the limit that its calls have used since its task began: weights, such "
        "as tokens or money.",
    ),
    Metric("in_flight", _GAUGE, "calls", _SUM, "Attempts that are being made."),
    Metric(
        "buffered",
        _GAUGE,
        "records",
        _SUM,
        "Records held: for their calls, or between two tasks that do not wait.",
    ),
    Metric("buffer_max", _GAUGE, "records", _SUM, "How many may be held."),
    Metric(
        "waiting_for_slot",
        _GAUGE,
        "calls",
        _SUM,
        "Calls that wait until fewer are being made.",
    ),
    Metric(
        "waiting_for_limit", _GAUGE, "calls", _SUM, "Calls that wait for their limit."
    ),
    Metric(
        "waiting_for_retry",
        _GAUGE,
        "calls",
        _SUM,
        "Calls that wait for their next attempt.",
    ),
    Metric(
        "waiting_for_key",
        _GAUGE,
        "records",
        _SUM,
        "Records that wait for another one of their key.",
    ),
    Metric(
        "waiting_for_journal",
        _GAUGE,
        "calls",
        _SUM,
        "Calls whose result is being written to the journal.",
    ),
    Metric("journalled", _GAUGE, "calls", _SUM, "Results that the journal has."),
    Metric(
        "records_dropped",
        _COUNTER,
        "records",
        _SUM,
        "Records that a full buffer dropped.",
    ),
    Metric("duplicates_dropped", _COUNTER, "records", _SUM, "Records seen before."),
    Metric(
        "records_without_latest",
        _COUNTER,
        "records",
        _SUM,
        "Records that came before there was anything to combine them with.",
    ),
    Metric(
        "records_without_partner",
        _COUNTER,
        "records",
        _SUM,
        "Records for which a lookup or as-of join has found nothing, and which it drops.",
    ),
    Metric(
        "answers_dropped",
        _COUNTER,
        "records",
        _SUM,
        "Answers that nobody waits for: the question has timed out, or has an answer.",
    ),
    Metric(
        "partial_matches_dropped",
        _COUNTER,
        "matches",
        _SUM,
        "Partial matches given up because there were too many.",
    ),
    Metric(
        "stalls",
        _COUNTER,
        "stalls",
        _SUM,
        "How often its code held the event loop for longer than the threshold.",
    ),
    Metric("stalled_ms", _COUNTER, "ms", _SUM, "How long, in all."),
    Metric(
        "gc_stalls",
        _COUNTER,
        "stalls",
        _SUM,
        "How often the garbage collector did, while its code ran.",
    ),
    Metric("state_keys", _GAUGE, "keys", _SUM, "Keys that have state, estimated."),
    Metric("state_bytes", _GAUGE, "bytes", _SUM, "The size of the state, if known."),
    Metric(
        "rows_read", _GAUGE, "rows", _SUM, "Rows that a source of batches has read."
    ),
    Metric("partitions", _GAUGE, "partitions", _SUM, "Partitions to read."),
    Metric("partitions_done", _GAUGE, "partitions", _SUM, "Partitions that were read."),
    Metric("eta_s", _GAUGE, "s", _MAX, "How long reading goes on, estimated."),
)


_TASK_METRICS: Final = (
    Metric("state", _GAUGE, "", Merge.LAST, "Where it is in its life.", _TASK),
    Metric(
        "num_task_restarts",
        _COUNTER,
        "restarts",
        _SUM,
        "How often it was started again, alone or with others.",
        _TASK,
    ),
    Metric("mails", _COUNTER, "mails", _SUM, "Mails that were run.", _TASK),
    Metric(
        "mailbox_queue_size",
        _GAUGE,
        "mails",
        _SUM,
        "Mails that wait.",
        _TASK,
        "mailboxQueueSize",
    ),
    Metric(
        "mailbox_latency_ms",
        _HISTOGRAM,
        "ms",
        _SUM,
        "How long ordinary mail waits, by one that is sent now and then; with "
        "latency_interval.",
        _TASK,
        "mailboxLatencyMs",
    ),
    Metric(
        "num_bytes_in",
        _COUNTER,
        "bytes",
        _SUM,
        "Bytes read from other tasks; estimated where objects are handed over.",
        _TASK,
        "numBytesIn",
    ),
    Metric(
        "num_bytes_out",
        _COUNTER,
        "bytes",
        _SUM,
        "Bytes written to other tasks; estimated where objects are handed over.",
        _TASK,
        "numBytesOut",
    ),
    Metric("idle_ms", _COUNTER, "ms", _SUM, "Waiting for input, in all.", _TASK),
    Metric(
        "backpressured_ms",
        _COUNTER,
        "ms",
        _SUM,
        "Waiting for room, in all.",
        _TASK,
    ),
    Metric(
        "busy_time_ms_per_second",
        _GAUGE,
        "ms/s",
        _MAX,
        "Processing, or awaiting something inside of it.",
        _TASK,
        "busyTimeMsPerSecond",
    ),
    Metric(
        "idle_time_ms_per_second",
        _GAUGE,
        "ms/s",
        _MIN,
        "Waiting for input.",
        _TASK,
        "idleTimeMsPerSecond",
    ),
    Metric(
        "soft_backpressured_time_ms_per_second",
        _GAUGE,
        "ms/s",
        _MAX,
        "Waiting for room, between two pieces of input.",
        _TASK,
        "softBackPressuredTimeMsPerSecond",
    ),
    Metric(
        "hard_backpressured_time_ms_per_second",
        _GAUGE,
        "ms/s",
        _MAX,
        "Waiting for room, in the middle of one.",
        _TASK,
        "hardBackPressuredTimeMsPerSecond",
    ),
    Metric(
        "backpressured_time_ms_per_second",
        _GAUGE,
        "ms/s",
        _MAX,
        "The last two together.",
        _TASK,
        "backPressuredTimeMsPerSecond",
    ),
    Metric(
        "out_pool_usage",
        _GAUGE,
        "1",
        _MAX,
        "Permits lent, as a fraction of the pools of all outputs: at 1 the task waits, "
        "above 1 is overdraft; None without an output.",
        _TASK,
        "outPoolUsage",
    ),
    Metric(
        "overdraft_buffers",
        _GAUGE,
        "buffers",
        _SUM,
        "Buffers lent beyond the pools.",
        _TASK,
    ),
    Metric(
        "in_pool_usage",
        _GAUGE,
        "1",
        _MAX,
        "Buffers of the reader's own that are in use, as a fraction; None on one loop, "
        "where a gate has no pool.",
        _TASK,
        "inPoolUsage",
    ),
    Metric(
        "exclusive_buffers_usage",
        _GAUGE,
        "1",
        _MAX,
        "Of channels from other processes: the buffers that each has for itself.",
        _TASK,
        "exclusiveBuffersUsage",
    ),
    Metric(
        "floating_buffers_usage",
        _GAUGE,
        "1",
        _MAX,
        "Of channels from other processes: the buffers that they share.",
        _TASK,
        "floatingBuffersUsage",
    ),
    Metric(
        "input_queue_length",
        _GAUGE,
        "buffers",
        _SUM,
        "Buffers in the queue before it.",
        _TASK,
        "inputQueueLength",
    ),
    Metric(
        "input_queue_records", _GAUGE, "records", _SUM, "The same in records.", _TASK
    ),
    Metric(
        "input_queue_size_bytes",
        _GAUGE,
        "bytes",
        _SUM,
        "The same in bytes, estimated.",
        _TASK,
        "inputQueueSize",
    ),
    Metric(
        "output_queue_length",
        _GAUGE,
        "buffers",
        _SUM,
        "Buffers in the queues of its outputs.",
        _TASK,
        "outputQueueLength",
    ),
    Metric(
        "output_queue_records", _GAUGE, "records", _SUM, "The same in records.", _TASK
    ),
    Metric(
        "output_queue_size_bytes",
        _GAUGE,
        "bytes",
        _SUM,
        "The same in bytes, estimated.",
        _TASK,
        "outputQueueSize",
    ),
    Metric(
        "debloated_buffer_size_bytes",
        _GAUGE,
        "bytes",
        _MIN,
        "The size of buffers that producers were asked for, where they were.",
        _TASK,
        "debloatedBufferSize",
    ),
)


_JOB_METRICS: Final = (
    Metric(
        "num_restarts",
        _COUNTER,
        "restarts",
        _SUM,
        "How often the job was started again.",
        _JOB,
        "numRestarts",
    ),
    Metric(
        "total_number_of_checkpoints",
        _COUNTER,
        "checkpoints",
        _SUM,
        "Checkpoints that were begun.",
        _JOB,
        "totalNumberOfCheckpoints",
    ),
    Metric(
        "number_of_completed_checkpoints",
        _COUNTER,
        "checkpoints",
        _SUM,
        "Checkpoints that are complete.",
        _JOB,
        "numberOfCompletedCheckpoints",
    ),
    Metric(
        "number_of_in_progress_checkpoints",
        _GAUGE,
        "checkpoints",
        _SUM,
        "Checkpoints that are being taken.",
        _JOB,
        "numberOfInProgressCheckpoints",
    ),
    Metric(
        "number_of_unchanged_checkpoints",
        _COUNTER,
        "checkpoints",
        _SUM,
        "Completed checkpoints for which nothing was written: nothing had happened since "
        "the one before.",
        _JOB,
    ),
    Metric(
        "number_of_failed_checkpoints",
        _COUNTER,
        "checkpoints",
        _SUM,
        "Checkpoints that did not complete.",
        _JOB,
        "numberOfFailedCheckpoints",
    ),
    Metric(
        "last_completed_checkpoint_id",
        _GAUGE,
        "1",
        _MAX,
        "The number of the last complete one.",
        _JOB,
        "lastCompletedCheckpointId",
    ),
    Metric(
        "last_checkpoint_duration_ms",
        _GAUGE,
        "ms",
        _MAX,
        "How long it took.",
        _JOB,
        "lastCheckpointDuration",
    ),
    Metric(
        "last_checkpoint_size_bytes",
        _GAUGE,
        "bytes",
        _SUM,
        "The size of its files.",
        _JOB,
        "lastCheckpointSize",
    ),
)


METRICS: Final[tuple[Metric, ...]] = _OPERATOR_METRICS + _TASK_METRICS + _JOB_METRICS


DECLARED: Final[dict[str, Metric]] = {metric.name: metric for metric in METRICS}


# An operator has one for each source whose markers it sees; exporters have a label.
LATENCY_FROM: Final = "latency_ms_from_"


LATENCY: Final = Metric(
    "latency_ms",
    _HISTOGRAM,
    "ms",
    _SUM,
    "How long records wait on their way from a source to the operator.",
    flink="latency",
)
