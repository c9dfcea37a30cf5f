"""The head of a source task: polls a reader, makes event time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from enum import Enum
from typing import Any, Final

from aiomailbox.availability import Availability, when_all_available
from aiomailbox.errors import (
    AioMailboxError,
    IllegalStateError,
    OverdraftCeilingError,
    add_note,
)
from aiomailbox.eventtime.alignment import AlignedReader, AlignmentGroup
from aiomailbox.eventtime.generators import (
    OutputGuard,
    RelativeClock,
    WatermarkGenerator,
    WatermarkOutput,
    follow_run,
)
from aiomailbox.eventtime.processing_time import TimerHandle
from aiomailbox.eventtime.strategy import AlignmentConfig, WatermarkStrategy
from aiomailbox.eventtime.valve import WatermarkOutputMultiplexer
from aiomailbox.operators.core.collector import RESULTS_MAX
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.event_progress import (
    WATERMARK_INTERVAL_MS,
    WatermarkTicks,
    assign_timestamps,
    emit_progress,
)
from aiomailbox.operators.core.failures import naming_hook
from aiomailbox.operators.core.operator import Input, Operator, Pending, in_turn, then
from aiomailbox.operators.sources.source import (
    InputStatus,
    ReaderContext,
    Source,
    SourceReader,
    check_positions,
    is_replayable,
)
from aiomailbox.records.events import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    LatencyMarker,
    StopMode,
)
from aiomailbox.records.run import COLUMN_RUN_LENGTH_MAX, RUN_LENGTH_MAX, Run
from aiomailbox.state.operator_state import OperatorStateSnapshot, RedistributionMode

# How a source operator keeps to the pace of its alignment group.


# How long the first run is, which tells how fast event time moves.
_FIRST_RUN: Final = 64


class SourceAlignment:
    """Reports a reader's watermark to its group, and holds the reader to the limit.

    The first watermark is reported at once, later ones every update interval. A
    reader counts as idle while all its splits are and it emitted nothing since the
    report before; it then holds none back. The limit is looked at after each run, so
    runs are kept as short as the limit seems to be near.

    Args:
        config: The group, the drift and the interval.
        context: The source operator's context.
        clock: The idleness clock; stands still while the reader waits.
        on_tick: Called every update interval; is to call `report`.

    Attributes:
        availability: True while the reader need not wait.

    Concept:
        Flink, the alignment part of ``SourceOperator``.
    """

    def __init__(
        self,
        config: AlignmentConfig,
        context: RuntimeContext,
        clock: RelativeClock,
        on_tick: Callable[[], None],
    ) -> None:
        self._name = f"{context.task_name}/{context.operator_name}"
        self._group: AlignmentGroup = context.alignment(config)
        # A predecessor whose process was killed could not say that it has ended.
        self._group.report(self._name, MAX_TIMESTAMP)
        self._reader = AlignedReader(clock)
        self._on_tick = on_tick
        self._saw_run = False
        self._has_reported = False
        self._ms_per_record: float | None = None
        self._paused: set[str] = set()
        self.availability: Availability = self._reader.availability
        interval_ms = config.update_interval_ms
        self._handle: TimerHandle | None = (
            context.processing_time.schedule_at_fixed_rate(
                self._tick, interval_ms, interval_ms
            )
        )

    @property
    def must_wait(self) -> bool:
        """Whether the reader is beyond the limit."""
        return not self.availability.available

    def room(self, records_max: int) -> int:
        """Return how many records, of at most so many, may be read in one run."""
        if self._ms_per_record is None:
            return min(records_max, _FIRST_RUN)
        # Cut so that one run does not leap over the limit; at least one record, or it
        # never would.
        left_ms = self._reader.limit - self._reader.watermark
        needed_ms = self._ms_per_record * records_max
        if needed_ms <= left_ms:
            return records_max
        return max(int(left_ms / self._ms_per_record), 1)

    def on_run(self, records: int, watermark_ms: int) -> None:
        """Be notified of the length of a run and of the watermark after it."""
        before = self._reader.watermark
        if before != MIN_TIMESTAMP:
            self._ms_per_record = max(watermark_ms - before, 0) / records
        self._saw_run = True
        self._reader.mark_active()
        self._reader.on_watermark(watermark_ms)
        # At once the first time: until then the group does not know of it.
        if not self._has_reported and self._reader.report() is not None:
            self._has_reported = True
            self._exchange()

    def report(self, watermark_ms: int, *, is_idle: bool) -> None:
        """Tell the group where the reader is, and take its limit.

        Args:
            watermark_ms: The reader's watermark.
            is_idle: Whether all its splits are idle.
        """
        self._reader.on_watermark(watermark_ms)
        # Idle only if nothing was read since the last look: a pause is no idleness.
        if is_idle and not self._saw_run:
            self._reader.mark_idle()
        else:
            self._reader.mark_active()
        self._saw_run = False
        self._exchange()

    def pause_splits(self, reader: Any, watermarks: Mapping[str, int]) -> None:
        """Let the reader pause splits that are beyond the limit, and resume others.

        Args:
            reader: The reader; with several splits it needs the method
                ``pause_or_resume_splits(to_pause, to_resume)``.
            watermarks: The watermark of each split, milliseconds.

        Raises:
            IllegalStateError: If a split is to pause and the reader cannot do that.
        """
        limit = self._group.limit()
        ahead = {split for split, reached in watermarks.items() if reached > limit}
        # A single split is held back by the reader itself, as in Flink (FLIP-217).
        if len(watermarks) < 2:
            ahead.clear()
        pause, resume = ahead - self._paused, (self._paused - ahead) & set(watermarks)
        self._paused = ahead
        if not pause and not resume:
            return
        change = getattr(reader, "pause_or_resume_splits", None)
        if change is None:
            raise IllegalStateError(
                f"{type(reader).__name__} cannot pause single splits, and of its "
                f"{len(watermarks)} splits {sorted(pause)} ran ahead of the watermark "
                "alignment: give each reader one split (a higher parallelism), define "
                "pause_or_resume_splits(to_pause, to_resume), or leave "
                "with_watermark_alignment(...) out"
            )
        change(sorted(pause), sorted(resume))

    def end(self) -> None:
        """Wait no more, and hold no other reader back."""
        if self._handle is None:
            return
        self._handle.cancel()
        self._handle = None
        self._reader.end()
        self._group.report(self._name, self._reader.report())

    def _tick(self, _: int) -> None:
        if self._handle is not None:
            self._on_tick()

    def _exchange(self) -> None:
        self._group.report(self._name, self._reader.report())
        self._reader.on_limit(self._group.limit())


# The availability of a source, from before it has a reader to after its end.
class SourceAvailability(Availability):
    """Follows a reader's availability, and a gate's, until it is set permanently.

    The gate is what else the source may have to wait for.

    Example:
        >>> source, reader = SourceAvailability(), Availability()
        >>> source.on_available(lambda: print("look"))
        >>> source.follow(reader)
        >>> reader.set_available()
        look
    """

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self._reader: Availability | None = None
        self._gate = Availability(available=True)
        self._is_set = False
        self._is_armed = False

    @property
    def available(self) -> bool:  # type: ignore[override]
        """Whether a poll may find something."""
        if self._reader is None:
            return self._is_set
        return self._is_set or (self._reader.available and self._gate.available)

    def follow(self, reader: Availability, gate: Availability | None = None) -> None:
        """Be available when ``reader`` is, and ``gate`` if there is one."""
        self._reader = reader
        self._gate = gate or self._gate
        if self._callbacks:
            self._arm()

    def set_available(self) -> None:
        """Be available from now on, whatever the reader says."""
        self._is_set = True
        self._run_callbacks()

    def on_available(self, callback: Callable[[], None]) -> None:
        if self.available:
            callback()
            return
        self._callbacks.append(callback)
        self._arm()

    def _arm(self) -> None:
        # One callback at a time, or a quiet reader would collect them.
        if self._reader is not None and not self._is_armed:
            self._is_armed = True
            when_all_available([self._gate, self._reader], self._fired)

    def _fired(self) -> None:
        self._is_armed = False
        if self.available:
            self._run_callbacks()
        elif self._callbacks:
            self._arm()

    def _run_callbacks(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


# Where a reader puts its records, each split with a watermark of its own.
_NO_SPLIT: Final = ""


# A split's name, its watermark, and whether it is idle.
SplitFacts = tuple[str, int, bool]


# The watermark emitted last, whether all is idle, and the watermark and idleness of
# records of no split in particular, if the reader does not tell its splits apart.
ProgressFacts = tuple[int, bool, tuple[int, bool] | None]


class SplitProgress:
    """One split's output: keeps the runs and follows their event times.

    Args:
        split_id: The split, or empty for records of no split in particular.
        generator: Makes the split's watermarks.
        output: Combines them with those of the other splits.
        emitted: Where runs wait to be passed on.
    """

    def __init__(
        self,
        split_id: str,
        generator: WatermarkGenerator,
        output: WatermarkOutput,
        emitted: list[tuple[SplitProgress, Run]],
    ) -> None:
        self.split_id: str = split_id
        self.is_used: bool = False
        self._generator = generator
        self._output = output
        self._emitted = emitted

    def emit_run(self, run: Run) -> None:
        """Keep a run until the poll is over.

        Raises:
            OverdraftCeilingError: If one poll has emitted more than may be kept.
        """
        if len(run):
            if len(self._emitted) >= RESULTS_MAX:
                raise OverdraftCeilingError(
                    f"one poll has emitted {len(self._emitted)} runs, which are kept "
                    "until it has returned; more may not be. Emit one run of up to "
                    "records_max records, and return MORE_AVAILABLE."
                )
            self._emitted.append((self, run))

    def mark_idle(self) -> None:
        """Stop holding event time back."""
        self._output.mark_idle()

    def follow(self, run: Run) -> None:
        """Be notified of the event times of a run, and advance the watermark."""
        follow_run(self._generator, run, self._output)
        self._generator.on_periodic_emit(self._output)

    def tick(self) -> None:
        """Let the generator look at the time."""
        self._generator.on_periodic_emit(self._output)


class SplitOutputs:
    """The `ReaderOutput` of a source operator.

    A split holds event time back from the moment it is assigned until it is released;
    a reader that does not tell its splits apart has one watermark for all.

    Args:
        strategy: Makes a generator for each split.
        clock: Measures quiet time.
        records_max: The longest run that is wanted from one poll.

    Attributes:
        emitted: The runs of the last poll, each with its split.
        guard: The watermark emitted last, and what is to be emitted next.
        combined: The watermarks of the splits.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        clock: RelativeClock,
        records_max: int = RUN_LENGTH_MAX,
    ) -> None:
        self.records_max = records_max
        self.emitted: list[tuple[SplitProgress, Run]] = []
        self._strategy = strategy
        self._clock = clock
        self.guard: OutputGuard = OutputGuard()
        self.combined: WatermarkOutputMultiplexer = WatermarkOutputMultiplexer(
            self.guard
        )
        self._splits: dict[str, SplitProgress] = {}

    def assign(self, split_id: str) -> None:
        """Be notified of a split that the reader has got."""
        # With records of no split, nothing would ever advance a split's own watermark.
        if split_id not in self._splits and _NO_SPLIT not in self._splits:
            self._register(split_id)

    def for_split(self, split_id: str) -> SplitProgress:
        """Return the output of a split."""
        split = self._splits.get(split_id) or self._register(split_id)
        split.is_used = True
        return split

    def release_split(self, split_id: str) -> None:
        """Let a split that ended no longer hold event time back."""
        self._splits.pop(split_id, None)
        self.combined.release_split(split_id)

    def emit_run(self, run: Run) -> None:
        """Take records of no split in particular."""
        self._main().emit_run(run)

    def mark_idle(self) -> None:
        """Let records of no split in particular hold event time back no more."""
        self._main().mark_idle()

    def tick(self) -> None:
        """Let all generators look at the time."""
        for split in self._splits.values():
            split.tick()

    def snapshot(self) -> tuple[list[SplitFacts], ProgressFacts]:
        """Return how far the splits are, and how far all of them together are."""
        parts = self.combined.snapshot()
        main = parts.pop(_NO_SPLIT, None)
        splits = [(split_id, *facts) for split_id, facts in parts.items()]
        return splits, (self.guard.watermark, self.guard.is_idle, main)

    def restore(self, splits: list[SplitFacts], progress: list[ProgressFacts]) -> None:
        """Take over what `snapshot` returned, here or in several subtasks.

        Args:
            splits: How far splits are; those that are not here are passed over.
            progress: Per subtask how far all together were; one that was behind counts.
        """
        for split_id, watermark, is_idle in splits:
            # Others went to other subtasks, with their watermarks.
            if split_id in self._splits:
                self.combined.restore_split(split_id, watermark, is_idle=is_idle)
        mains = [main for _, _, main in progress if main is not None]
        if mains:
            self._main()
            behind, _ = min(mains)
            is_idle = all(is_idle for _, is_idle in mains)
            self.combined.restore_split(_NO_SPLIT, behind, is_idle=is_idle)
        if progress:
            self.guard.watermark = min(watermark for watermark, _, _ in progress)
            self.guard.is_idle = all(is_idle for _, is_idle, _ in progress)
            # None of them may be behind what has been emitted already.
            self.combined.restore(self.guard.watermark)

    def _main(self) -> SplitProgress:
        main = self._splits.get(_NO_SPLIT)
        if main is None:
            # The reader does not tell splits apart: those it has must not hold back.
            for split in [s for s in self._splits.values() if not s.is_used]:
                self.release_split(split.split_id)
            main = self.for_split(_NO_SPLIT)
        return main

    def _register(self, split_id: str) -> SplitProgress:
        output = self.combined.register_split(split_id)
        generator = self._strategy.create_generator(self._clock)
        split = SplitProgress(split_id, generator, output, self.emitted)
        self._splits[split_id] = split
        return split


class SourceMode(Enum):
    """How far a source operator is.

    ``WAITING`` is ``READING`` for a source that is ahead of those that it is aligned
    with. ``READING`` ends by the reader or by `SourceOperator.stop`; the next poll says so
    and leads to ``DATA_FINISHED``, which lasts.
    """

    READING = "reading"
    WAITING = "waiting"
    STOPPED = "stopped"
    DRAINED = "drained"
    DATA_FINISHED = "data_finished"


# What a poll says when it does not ask the reader.
_STATUS_WHEN: dict[SourceMode, InputStatus] = {
    SourceMode.WAITING: InputStatus.NOTHING_AVAILABLE,
    SourceMode.STOPPED: InputStatus.STOPPED,
    SourceMode.DRAINED: InputStatus.END_OF_DATA,
    SourceMode.DATA_FINISHED: InputStatus.END_OF_INPUT,
}


class SourceOperator(Operator):
    """Reads a source's splits and emits their records with event time.

    Each `poll` emits at most one run, followed by the watermark if it advanced. A
    split that is assigned holds event time back until it has a watermark of its own,
    ends, or is idle.

    Args:
        source: The source; this operator makes its reader.
        strategy: Where event times come from; None for no event time.
        records_max: The longest run that is wanted from one poll.
        interval_ms: How often generators look at the time; only with a strategy that
            has an idle timeout, or generators of the user's.

    Attributes:
        request_split: Asks the source's enumerator for a split; set by the task
            before `open`.
        mode: How far the source is.
        availability: True when `poll` may find something.

    Concept:
        Flink, ``SourceOperator``.
    """

    def __init__(
        self,
        source: Source[Any],
        strategy: WatermarkStrategy | None = None,
        *,
        records_max: int = RUN_LENGTH_MAX,
        interval_ms: int = WATERMARK_INTERVAL_MS,
    ) -> None:
        self.source = source
        self._mode = SourceMode.READING
        self._end_status = InputStatus.END_OF_DATA
        self.request_split: Callable[[], None] = _no_coordinator
        self._strategy = strategy or WatermarkStrategy.no_watermarks()
        self._assigner = self._strategy.create_assigner()
        self._records_max = records_max
        self.takes_columns = (
            getattr(source, "gives_columns", False)
            and not callable(self._strategy.assigner)
            # Aligned sources know how far a run of a thousand records goes.
            and self._strategy.alignment is None
        )
        if self.takes_columns:
            self._records_max = max(records_max, COLUMN_RUN_LENGTH_MAX)
        self._interval_ms = interval_ms
        self.availability: SourceAvailability = SourceAvailability()
        self._reader: SourceReader[Any] | None = None
        self._ticks: WatermarkTicks | None = None
        self._alignment: SourceAlignment | None = None
        self._early_splits: list[Any] = []
        self._restored = OperatorStateSnapshot()
        self._early_end = False
        # Where its splits were when it was closed.
        self.last_splits: list[Any] = []

    @property
    def inputs(self) -> list[Input]:
        """None: a source has no input."""
        return []

    @property
    def mode(self) -> SourceMode:
        """How far the source is."""
        if self._mode is SourceMode.READING and self._must_wait:
            return SourceMode.WAITING
        return self._mode

    @property
    def reader(self) -> SourceReader[Any]:
        """The reader.

        Raises:
            IllegalStateError: Before `open`.
        """
        if self._reader is None:
            raise IllegalStateError("a source has no reader before open()")
        return self._reader

    @property
    def watermark(self) -> int:
        """The watermark emitted last, milliseconds; `MIN_TIMESTAMP` before the first."""
        return MIN_TIMESTAMP if self._reader is None else self._outputs.guard.watermark

    @property
    def is_idle(self) -> bool:
        """Whether all splits are idle."""
        return self._reader is not None and self._outputs.combined.is_idle

    def split_watermarks(self) -> dict[str, int]:
        """Return the watermark of each split, milliseconds."""
        return {} if self._reader is None else self._outputs.combined.split_watermarks()

    def limit_runs(self, records_max: int) -> None:
        """Ask the reader for runs of at most so many records from now on.

        Args:
            records_max: From 1 to ``records_max`` of the operator.
        """
        records_max = min(records_max, self._records_max)
        if self._alignment is not None:
            records_max = self._alignment.room(records_max)
        self._outputs.records_max = records_max

    def open(self) -> Pending:
        """Make the reader, give it its splits and start it."""
        context = self.context
        self._ticks = WatermarkTicks(
            self._strategy, self._interval_ms, context, self.output, self._tick
        )
        self._outputs = SplitOutputs(
            self._strategy, self._ticks.clock, self._records_max
        )
        for_reader = ReaderContext(
            context.operator_name,
            context.uid,
            context.subtask_index,
            context.parallelism,
            context.clock,
            context.metrics,
            context.log,
            self._request_split,
            context.spawn,
            context.commits_at_checkpoints,
            context.cancel_timeout_s,
            context.mutations,
        )
        with self._naming("create_reader"):
            self._reader = self.source.create_reader(for_reader)
        gate = None
        if self._strategy.alignment is not None:
            self._alignment = SourceAlignment(
                self._strategy.alignment, context, self._ticks.clock, self._align
            )
            gate = self._alignment.availability
        self.availability.follow(self._reader.availability, gate)
        if self._early_splits:
            self.add_splits(self._early_splits)
        restored, self._restored = self._restored, OperatorStateSnapshot()
        self._outputs.restore(
            restored.elements("split-progress"), restored.elements("progress")
        )
        with self._naming("start"):
            self._reader.start()
        if self._early_end:
            self.notify_no_more_splits()
        interval_ms = context.latency_interval_ms
        if interval_ms is not None:
            context.processing_time.schedule_with_fixed_delay(
                self._mark_time, interval_ms, interval_ms
            )
        return None

    def _mark_time(self, now_ms: int) -> Pending:
        """Send a mark of the time behind the records that were read."""
        context = self.context
        if self._mode is not SourceMode.READING:
            return None
        return self.output.emit_latency_marker(
            LatencyMarker(
                context.clock.now_ms(), context.operator_name, context.subtask_index
            )
        )

    def poll(self) -> tuple[InputStatus, Pending]:
        """Read and emit at most one run.

        Returns:
            What was found out, and what to finish before the next call, as after all
            emitting. ``END_OF_DATA`` (or ``STOPPED``) comes once and
            ``END_OF_INPUT`` from then on.
        """
        mode = self.mode
        if mode is not SourceMode.READING:
            if mode is not SourceMode.WAITING:
                self._mode = SourceMode.DATA_FINISHED
            return _STATUS_WHEN[mode], None
        try:
            status = self.reader.poll_next(self._outputs)
        except (AioMailboxError, KeyboardInterrupt, SystemExit):
            # Errors of ours name their operator already, and exits belong to none.
            raise
        except BaseException as error:
            # Nothing is awaited here: a cancellation is what the reader met before.
            raise self.user_error(error) from error
        if status is InputStatus.END_OF_INPUT:
            self._mode = SourceMode.DATA_FINISHED
            # Available forever, so that the task polls once more and sees the end.
            self.availability.set_available()
            status = self._end_status
        pending = self._emit()
        # There is more to read, but this source is ahead of its group.
        if status is InputStatus.MORE_AVAILABLE and self._must_wait:
            status = InputStatus.NOTHING_AVAILABLE
        return status, pending

    def stop(self, mode: StopMode) -> None:
        """Read no more; the next poll says that the data ended.

        A reader that has a method ``stop`` is asked to: it emits what it has taken and
        cannot be read again, then says that its input has ended. Where it can be read
        again, that is not waited for unless the job is drained.
        """
        if self._mode is not SourceMode.READING:
            return
        drain = mode is StopMode.DRAIN
        stop = getattr(self._reader, "stop", None)
        # It is simply asked no more: what it has read ahead comes again after a
        # restore.
        if stop is None or (not drain and is_replayable(self.source)):
            self._mode = SourceMode.DRAINED if drain else SourceMode.STOPPED
            self.availability.set_available()
        else:
            self._end_status = InputStatus.END_OF_DATA if drain else InputStatus.STOPPED
            with self._naming("stop"):
                stop()
        self._end_alignment()

    def add_splits(self, splits: list[Any]) -> None:
        """Give the reader splits; they hold event time back from now on."""
        if self._reader is None:
            self._early_splits += splits
            return
        # Before the reader has them, which may emit at once.
        for split in splits:
            self._outputs.assign(split.split_id)
        with self._naming("add_splits"):
            self._reader.add_splits(splits)

    def notify_no_more_splits(self) -> None:
        """Tell the reader that it has all the splits it will get."""
        if self._reader is None:
            self._early_end = True
        else:
            with self._naming("notify_no_more_splits"):
                self._reader.notify_no_more_splits()

    def repeat_progress(self) -> Pending:
        """Emit once more how far event time had come, and which status it has."""
        self._outputs.guard.repeat()
        return self._emit_progress()

    def emit_max_watermark(self) -> Pending:
        """End event time: ACTIVE if the source is idle, then the last watermark."""
        self._stop_timers()
        self._outputs.guard.emit_watermark(MAX_TIMESTAMP)
        return self._emit_progress()

    @property
    def acts_at_checkpoints(self) -> bool:
        """Whether the reader wants to know of them; it moves by polls only."""
        hooks = ("prepare_snapshot", "notify_checkpoint_complete")
        return any(hasattr(self._reader, hook) for hook in hooks)

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Pending:
        """Tell the reader, if it wants to know, which checkpoint `snapshot` is for."""
        return self._tell("prepare_snapshot", checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> Pending:
        """Tell the reader, if it wants to know."""
        return self._tell("notify_checkpoint_complete", checkpoint_id)

    def _tell(self, hook: str, checkpoint_id: int) -> Pending:
        tell = getattr(self._reader, hook, None)
        if tell is not None:
            with self._naming(hook):
                tell(checkpoint_id)
        return None

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the unfinished splits at their positions, and how far event time is."""
        own = super().snapshot_own()
        # Not open yet: what was restored is all there is.
        if self._reader is None:
            return OperatorStateSnapshot({**own.states, **self._restored.states})
        splits, progress = self._outputs.snapshot()
        own = own.with_list("splits", self._reader.snapshot())
        # A reader that gets a split looks for it here.
        own = own.with_list("split-progress", splits, RedistributionMode.UNION)
        return own.with_list("progress", [progress], RedistributionMode.MERGE)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Keep the splits for the reader."""
        splits, context = own.elements("splits"), self.context
        check_positions(self.source, splits, context.operator_name, context.uid)
        self._early_splits += splits
        self._restored = own

    def close(self) -> Pending:
        """Close the reader."""
        self._stop_timers()
        if self._reader is not None:
            # For people only: a reader that has failed need not know.
            with suppress(Exception):
                self.last_splits = list(self._reader.snapshot())
        return None if self._reader is None else self._reader.close()

    def _naming(self, hook: str) -> AbstractContextManager[None]:
        return naming_hook(hook, self.context.operator_name, self.context.uid)

    def _request_split(self) -> None:
        # Looked up late: the task may set it, or replace it, after the reader is made.
        self.request_split()

    def _emit(self) -> Pending:
        emitted = self._outputs.emitted
        if not emitted:
            return self._emit_progress()
        runs = list(emitted)
        emitted.clear()
        return in_turn(self._emit_run, runs)

    def _emit_run(self, split: SplitProgress, run: Run) -> Pending:
        try:
            run = assign_timestamps(self, self._assigner, run)
            pending = self.output.emit_run(run)
        except Exception as error:
            describe_split = getattr(self._reader, "describe_split", None)
            if describe_split is not None:
                add_note(error, describe_split(split.split_id))
            raise
        # After the records: their watermark must not overtake them.
        split.follow(run)
        if self._alignment is not None:
            self._alignment.on_run(len(run), self._outputs.guard.watermark)
            self._alignment.pause_splits(
                self.reader, self._outputs.combined.split_watermarks()
            )
        if pending is None:
            return self._emit_progress()
        return then(pending, self._emit_progress)

    def _emit_progress(self) -> Pending:
        progress = self._outputs.guard.take()
        return emit_progress(self.output, progress) if progress else None

    @property
    def _must_wait(self) -> bool:
        return self._alignment is not None and self._alignment.must_wait

    def _align(self) -> None:
        assert self._alignment is not None, "only an aligned source reports"
        outputs = self._outputs
        self._alignment.report(
            outputs.guard.watermark, is_idle=outputs.combined.is_idle
        )
        self._alignment.pause_splits(self.reader, outputs.combined.split_watermarks())

    def _end_alignment(self) -> None:
        if self._alignment is not None:
            self._alignment.end()

    def _stop_timers(self) -> None:
        self._end_alignment()
        if self._ticks is not None:
            self._ticks.stop()

    def _tick(self) -> Pending:
        self._outputs.tick()
        return self._emit_progress()


def _no_coordinator() -> None:
    raise IllegalStateError(
        "the reader asked for a split, but nothing answers: set request_split first"
    )
