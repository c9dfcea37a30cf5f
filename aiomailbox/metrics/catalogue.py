"""All metrics that aiomailbox has by itself: one table, which docs/metrics.md shows."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable
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
    """Takes observations of a quantity, in bounded memory.

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


def _of_kind(kind: MetricKind) -> Callable[..., Metric]:
    """Return what declares metrics of a kind: added up, if nothing else is said."""

    def declare(
        name: str, unit: str, text: str, *, flink: str = "", merge: Merge = Merge.SUM
    ) -> Metric:
        return Metric(name, kind, unit, merge, text, flink=flink)

    return declare


_counter, _gauge, _histogram = map(_of_kind, MetricKind)
_MIN, _MAX = Merge.MIN, Merge.MAX
_OPERATOR_METRICS: Final = (
    _counter(
        "num_records_in", "records", "Records that it was given.", flink="numRecordsIn"
    ),
    _counter(
        "num_records_out",
        "records",
        "Records that it emitted, side outputs included.",
        flink="numRecordsOut",
    ),
    _gauge(
        "current_input_watermark",
        "ms",
        "The smallest watermark of its inputs, in milliseconds since the epoch.",
        flink="currentInputWatermark",
        merge=_MIN,
    ),
    _gauge(
        "current_output_watermark",
        "ms",
        "The watermark that a source has emitted, in milliseconds since the epoch.",
        flink="currentOutputWatermark",
        merge=_MIN,
    ),
    _gauge(
        "watermark_lag",
        "ms",
        "How far its watermark is behind the clock of the machine; None before the first "
        "one, after the last one and after the job's end.",
        flink="watermarkLag",
        merge=_MAX,
    ),
    _gauge(
        "is_idle",
        "1",
        "1 if none of its inputs has a stream that flows: event time goes on without it.",
        merge=_MIN,
    ),
    _counter(
        "num_late_records_dropped",
        "records",
        "Records that came too late for their windows.",
        flink="numLateRecordsDropped",
    ),
    _counter(
        "skipped",
        "records",
        "Records left out because their function raised and on_error= said to skip.",
    ),
    _counter(
        "dead_letters",
        "records",
        "Records that went to a dead letter because their function raised.",
    ),
    _counter("calls", "calls", "Attempts of asynchronous calls."),
    _counter("retries", "calls", "Attempts that were not the first."),
    _counter("timeouts", "calls", "Calls that took longer than allowed."),
    _counter(
        "unwanted_results",
        "records",
        "Results that retry_if wants again after the last attempt: they are used.",
    ),
    _counter(
        "calls_found",
        "calls",
        "Calls whose result was in the journal, so that they were not made again.",
    ),
    _counter("cache_hits", "records", "Records answered by the cache."),
    _gauge(
        "units_used",
        "units",
        "Units of the limit that its calls have used since its task began: weights, such "
        "as tokens or money.",
    ),
    _gauge("in_flight", "calls", "Attempts that are being made."),
    _gauge(
        "buffered",
        "records",
        "Records held: for their calls, or between two tasks that do not wait.",
    ),
    _gauge("buffer_max", "records", "How many may be held."),
    _gauge("waiting_for_slot", "calls", "Calls that wait until fewer are being made."),
    _gauge("waiting_for_limit", "calls", "Calls that wait for their limit."),
    _gauge("waiting_for_retry", "calls", "Calls that wait for their next attempt."),
    _gauge(
        "waiting_for_key", "records", "Records that wait for another one of their key."
    ),
    _gauge(
        "waiting_for_journal",
        "calls",
        "Calls whose result is being written to the journal.",
    ),
    _gauge("journalled", "calls", "Results that the journal has."),
    _counter("records_dropped", "records", "Records that a full buffer dropped."),
    _counter("duplicates_dropped", "records", "Records seen before."),
    _counter(
        "records_without_latest",
        "records",
        "Records that came before there was anything to combine them with.",
    ),
    _counter(
        "records_without_partner",
        "records",
        "Records for which a lookup or as-of join has found nothing, and which it drops.",
    ),
    _counter(
        "answers_dropped",
        "records",
        "Answers that nobody waits for: the question has timed out, or has an answer.",
    ),
    _counter(
        "partial_matches_dropped",
        "matches",
        "Partial matches given up because there were too many.",
    ),
    _counter(
        "stalls",
        "stalls",
        "How often its code held the event loop for longer than the threshold.",
    ),
    _counter("stalled_ms", "ms", "How long, in all."),
    _counter(
        "gc_stalls",
        "stalls",
        "How often the garbage collector did, while its code ran.",
    ),
    _gauge("state_keys", "keys", "Keys that have state, estimated."),
    _gauge("state_bytes", "bytes", "The size of the state, if known."),
    _gauge("rows_read", "rows", "Rows that a source of batches has read."),
    _gauge("partitions", "partitions", "Partitions to read."),
    _gauge("partitions_done", "partitions", "Partitions that were read."),
    _gauge(
        "eta_s",
        "s",
        "How long reading goes on, estimated; None if reading was ended before the end.",
        merge=_MAX,
    ),
)
_TASK_METRICS: Final = (
    _gauge("state", "", "Where it is in its life.", merge=Merge.LAST),
    _counter(
        "num_task_restarts",
        "restarts",
        "How often it was started again, alone or with others.",
    ),
    _counter("mails", "mails", "Mails that were run."),
    _gauge("mailbox_queue_size", "mails", "Mails that wait.", flink="mailboxQueueSize"),
    _histogram(
        "mailbox_latency_ms",
        "ms",
        "How long ordinary mail waits, by one that is sent now and then; with "
        "latency_interval.",
        flink="mailboxLatencyMs",
    ),
    _counter(
        "num_bytes_in",
        "bytes",
        "Bytes read from other tasks; estimated where objects are handed over.",
        flink="numBytesIn",
    ),
    _counter(
        "num_bytes_out",
        "bytes",
        "Bytes written to other tasks; estimated where objects are handed over.",
        flink="numBytesOut",
    ),
    _counter("idle_ms", "ms", "Waiting for input, in all."),
    _counter("backpressured_ms", "ms", "Waiting for room, in all."),
    _gauge(
        "busy_time_ms_per_second",
        "ms/s",
        "Processing, or awaiting something inside of it.",
        flink="busyTimeMsPerSecond",
        merge=_MAX,
    ),
    _gauge(
        "idle_time_ms_per_second",
        "ms/s",
        "Waiting for input.",
        flink="idleTimeMsPerSecond",
        merge=_MIN,
    ),
    _gauge(
        "soft_backpressured_time_ms_per_second",
        "ms/s",
        "Waiting for room, between two pieces of input.",
        flink="softBackPressuredTimeMsPerSecond",
        merge=_MAX,
    ),
    _gauge(
        "hard_backpressured_time_ms_per_second",
        "ms/s",
        "Waiting for room, in the middle of one.",
        flink="hardBackPressuredTimeMsPerSecond",
        merge=_MAX,
    ),
    _gauge(
        "backpressured_time_ms_per_second",
        "ms/s",
        "The last two together.",
        flink="backPressuredTimeMsPerSecond",
        merge=_MAX,
    ),
    _gauge(
        "out_pool_usage",
        "1",
        "Permits lent, as a fraction of the pools of all outputs: at 1 the task waits, "
        "above 1 is overdraft; None without an output.",
        flink="outPoolUsage",
        merge=_MAX,
    ),
    _gauge("overdraft_buffers", "buffers", "Buffers lent beyond the pools."),
    _gauge(
        "in_pool_usage",
        "1",
        "Buffers of the reader's own that are in use, as a fraction; None on one loop, "
        "where a gate has no pool.",
        flink="inPoolUsage",
        merge=_MAX,
    ),
    _gauge(
        "exclusive_buffers_usage",
        "1",
        "Of channels from other processes: the buffers that each has for itself.",
        flink="exclusiveBuffersUsage",
        merge=_MAX,
    ),
    _gauge(
        "floating_buffers_usage",
        "1",
        "Of channels from other processes: the buffers that they share.",
        flink="floatingBuffersUsage",
        merge=_MAX,
    ),
    _gauge(
        "input_queue_length",
        "buffers",
        "Buffers in the queue before it.",
        flink="inputQueueLength",
    ),
    _gauge("input_queue_records", "records", "The same in records."),
    _gauge(
        "input_queue_size_bytes",
        "bytes",
        "The same in bytes, estimated.",
        flink="inputQueueSize",
    ),
    _gauge(
        "output_queue_length",
        "buffers",
        "Buffers in the queues of its outputs.",
        flink="outputQueueLength",
    ),
    _gauge("output_queue_records", "records", "The same in records."),
    _gauge(
        "output_queue_size_bytes",
        "bytes",
        "The same in bytes, estimated.",
        flink="outputQueueSize",
    ),
    _gauge(
        "debloated_buffer_size_bytes",
        "bytes",
        "The size of buffers that producers were asked for, where they were.",
        flink="debloatedBufferSize",
        merge=_MIN,
    ),
)
_JOB_METRICS: Final = (
    _counter(
        "num_restarts",
        "restarts",
        "How often the job was started again.",
        flink="numRestarts",
    ),
    _counter(
        "total_number_of_checkpoints",
        "checkpoints",
        "Checkpoints that were begun.",
        flink="totalNumberOfCheckpoints",
    ),
    _counter(
        "number_of_completed_checkpoints",
        "checkpoints",
        "Checkpoints that are complete.",
        flink="numberOfCompletedCheckpoints",
    ),
    _gauge(
        "number_of_in_progress_checkpoints",
        "checkpoints",
        "Checkpoints that are being taken.",
        flink="numberOfInProgressCheckpoints",
    ),
    _counter(
        "number_of_unchanged_checkpoints",
        "checkpoints",
        "Completed checkpoints for which nothing was written: nothing had happened since "
        "the one before.",
    ),
    _counter(
        "number_of_failed_checkpoints",
        "checkpoints",
        "Checkpoints that did not complete.",
        flink="numberOfFailedCheckpoints",
    ),
    _gauge(
        "last_completed_checkpoint_id",
        "1",
        "The number of the last complete one.",
        flink="lastCompletedCheckpointId",
        merge=_MAX,
    ),
    _gauge(
        "last_checkpoint_duration_ms",
        "ms",
        "How long it took.",
        flink="lastCheckpointDuration",
        merge=_MAX,
    ),
    _gauge(
        "last_checkpoint_size_bytes",
        "bytes",
        "The size of its files.",
        flink="lastCheckpointSize",
    ),
)
METRICS: Final[tuple[Metric, ...]] = tuple(
    msgspec.structs.replace(metric, scope=scope)
    for scope, metrics in (
        (MetricScope.OPERATOR, _OPERATOR_METRICS),
        (MetricScope.TASK, _TASK_METRICS),
        (MetricScope.JOB, _JOB_METRICS),
    )
    for metric in metrics
)
DECLARED: Final[dict[str, Metric]] = {metric.name: metric for metric in METRICS}
# An operator has one for each source whose markers it sees; exporters have a label.
LATENCY_FROM: Final = "latency_ms_from_"
LATENCY: Final = _histogram(
    "latency_ms",
    "ms",
    "How long records wait on their way from a source to the operator.",
    flink="latency",
)
