"""Where a reader puts its records, each split with a watermark of its own."""

from __future__ import annotations

from typing import Final

from aiomailbox.errors import OverdraftCeilingError
from aiomailbox.eventtime.generators import WatermarkGenerator, follow_run
from aiomailbox.eventtime.idleness import RelativeClock
from aiomailbox.eventtime.multiplexer import WatermarkOutputMultiplexer
from aiomailbox.eventtime.output import OutputGuard, WatermarkOutput
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.operators.core.collector import RESULTS_MAX
from aiomailbox.records.elements import MAX_TIMESTAMP, Watermark, WatermarkStatus
from aiomailbox.records.run import RUN_LENGTH_MAX, Run

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

    __slots__ = ("_emitted", "_generator", "_output", "is_used", "split_id")

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
        self._guard = OutputGuard()
        self._multiplexer = WatermarkOutputMultiplexer(self._guard)
        self._splits: dict[str, SplitProgress] = {}

    @property
    def watermark(self) -> int:
        """The watermark emitted last, milliseconds."""
        return self._guard.watermark

    @property
    def is_idle(self) -> bool:
        """Whether there are splits, and all of them are idle now."""
        return self._multiplexer.is_idle

    def split_watermarks(self) -> dict[str, int]:
        """Return the watermark of each split, milliseconds."""
        return self._multiplexer.split_watermarks()

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
        self._multiplexer.release_split(split_id)

    def emit_run(self, run: Run) -> None:
        """Take records of no split in particular."""
        self._main().emit_run(run)

    def mark_idle(self) -> None:
        """Let records of no split in particular hold event time back no more."""
        self._main().mark_idle()

    def repeat(self) -> None:
        """Say once more where event time is."""
        self._guard.repeat()

    def end(self) -> None:
        """Let event time end."""
        self._guard.emit_watermark(MAX_TIMESTAMP)

    def tick(self) -> None:
        """Let all generators look at the time."""
        for split in self._splits.values():
            split.tick()

    def take_progress(self) -> list[Watermark | WatermarkStatus]:
        """Return the watermarks and statuses since the last call, in order."""
        return self._guard.take()

    def snapshot(self) -> tuple[list[SplitFacts], ProgressFacts]:
        """Return how far the splits are, and how far all of them together are."""
        parts = self._multiplexer.snapshot()
        main = parts.pop(_NO_SPLIT, None)
        splits = [(split_id, *facts) for split_id, facts in parts.items()]
        return splits, (self._guard.watermark, self._guard.is_idle, main)

    def restore(self, splits: list[SplitFacts], progress: list[ProgressFacts]) -> None:
        """Take over what `snapshot` returned, here or in several subtasks.

        Args:
            splits: How far splits are; those that are not here are passed over.
            progress: Per subtask how far all together were; one that was behind counts.
        """
        for split_id, watermark, is_idle in splits:
            # Others went to other subtasks, with their watermarks.
            if split_id in self._splits:
                self._multiplexer.restore_split(split_id, watermark, is_idle=is_idle)
        mains = [main for _, _, main in progress if main is not None]
        if mains:
            self._main()
            behind, _ = min(mains)
            is_idle = all(is_idle for _, is_idle in mains)
            self._multiplexer.restore_split(_NO_SPLIT, behind, is_idle=is_idle)
        if progress:
            self._guard.watermark = min(watermark for watermark, _, _ in progress)
            self._guard.is_idle = all(is_idle for _, is_idle, _ in progress)
            # None of them may be behind what has been emitted already.
            self._multiplexer.restore(self._guard.watermark)

    def _main(self) -> SplitProgress:
        main = self._splits.get(_NO_SPLIT)
        if main is None:
            # The reader does not tell splits apart: those it has must not hold back.
            for split in [s for s in self._splits.values() if not s.is_used]:
                self.release_split(split.split_id)
            main = self.for_split(_NO_SPLIT)
        return main

    def _register(self, split_id: str) -> SplitProgress:
        self._multiplexer.register_split(split_id)
        output = self._multiplexer.immediate_output(split_id)
        generator = self._strategy.create_generator(self._clock)
        split = SplitProgress(split_id, generator, output, self.emitted)
        self._splits[split_id] = split
        return split
