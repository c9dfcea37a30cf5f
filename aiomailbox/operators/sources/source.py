"""Sources: an enumerator that finds splits, readers that read them, positions.

Concept:
    Flink, FLIP-27: ``Source``, ``SplitEnumerator``, ``SourceReader``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from aiomailbox.availability import Availability
from aiomailbox.clock import Clock
from aiomailbox.errors import StateError, named_operator
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.core.mutations import MutationCheck
from aiomailbox.operators.core.operator import Pending
from aiomailbox.records.run import Run


class Split(Protocol):
    """A part of a source that one reader reads, with the position reached in it."""

    @property
    def split_id(self) -> str:
        """The split's name, unique within the source."""


SplitT = TypeVar("SplitT", bound=Split)


class InputStatus(Enum):
    """The result of a poll of the input."""

    MORE_AVAILABLE = "more_available"
    NOTHING_AVAILABLE = "nothing_available"
    END_OF_RECOVERY = "end_of_recovery"
    STOPPED = "stopped"
    END_OF_DATA = "end_of_data"
    END_OF_INPUT = "end_of_input"


class Boundedness(Enum):
    """Whether a source ends by itself."""

    BOUNDED = "bounded"
    UNBOUNDED = "unbounded"


class SplitOutput(Protocol):
    """Where a reader puts the records of one split (or of no split in particular)."""

    def emit_run(self, run: Run) -> None:
        """Emit records; they get their timestamps and watermarks from the strategy."""

    def mark_idle(self) -> None:
        """Say that the split will be quiet: it stops holding event time back."""


class ReaderOutput(SplitOutput, Protocol):
    """Where a reader puts its records.

    Attributes:
        records_max: The longest run the task wants from one poll, so that its slices
            stay short.
    """

    records_max: int

    def for_split(self, split_id: str) -> SplitOutput:
        """Return the output of a split: it has a watermark of its own, from MIN on."""

    def release_split(self, split_id: str) -> None:
        """Say that the split ended: its watermark is MAX from now on."""


@dataclass(slots=True)
class ReaderContext:
    """The parts of its task that a reader may use.

    Attributes:
        operator_name: The source's name.
        uid: The source's uid as the user gave it, or None.
        subtask_index: From 0.
        parallelism: Readers of this source.
        request_split: Asks the enumerator for another split.
        spawn: ``spawn(coroutine, name=...)`` starts a coroutine that belongs to the
            reader's task. It is cancelled and awaited when the task ends; if it fails
            the task fails.
        takes_checkpoints: Whether the job does.
        cancel_timeout_s: How long something may take to end once asked to, seconds.
        mutations: Watches over the source's records, or None; see
            ``JobConfig.check_mutations``. For readers that read ahead.
    """

    operator_name: str
    uid: str | None
    subtask_index: int
    parallelism: int
    clock: Clock
    metrics: MetricGroup
    log: Any
    request_split: Callable[[], None]
    spawn: Callable[..., asyncio.Task[None]]
    takes_checkpoints: bool = False
    cancel_timeout_s: float = 30.0
    mutations: MutationCheck | None = None


class EnumeratorContext(Protocol[SplitT]):
    """The parts of its job that an enumerator may use."""

    parallelism: int

    def assign_splits(self, subtask_index: int, splits: list[SplitT]) -> None:
        """Give splits to a reader."""

    def signal_no_more_splits(self, subtask_index: int) -> None:
        """Tell a reader that it has all the splits it will get."""


class SplitEnumerator(Protocol[SplitT]):
    """Finds the splits of a source and hands them out; one per job."""

    def start(self) -> None:
        """Begin; called once."""

    def add_reader(self, subtask_index: int, /) -> None:
        """Be notified that a reader is there: also one that has failed and begins again.

        It is notified again that there are no more splits when this, or its next request,
        says so.
        """

    def handle_split_request(self, subtask_index: int, /) -> None:
        """Answer a reader that wants another split."""

    def add_splits_back(self, splits: list[SplitT], subtask_index: int, /) -> None:
        """Take back splits that a failed reader had got since its checkpoint.

        `add_reader` follows for the reader that takes its place.
        """

    def snapshot(self) -> list[Any]:
        """Return what a new enumerator needs, as elements: splits not assigned, progress.

        Splits that were assigned are with their readers.
        """

    def close(self) -> None:
        """Release resources."""


class SourceReader(Protocol[SplitT]):
    """Reads splits; lives in a task and is called from its mailbox only.

    If a reader takes records in advance that it could not read again, it has a method
    ``stop()``: it then takes no more records, emits those that it has, and reports the
    end of its input. One whose origin waits until a checkpoint holds what it gave has
    ``prepare_snapshot(checkpoint_id)``, called before `snapshot`, and
    ``notify_checkpoint_complete(checkpoint_id)``. One whose splits users know has
    ``describe_split(split_id)``, as "in the file 'a.csv'": so errors say where the
    records are from.

    Attributes:
        availability: True when `poll_next` may find something.
    """

    availability: Availability

    def start(self) -> None:
        """Begin, e.g. ask for a split."""

    def poll_next(self, output: ReaderOutput, /) -> InputStatus:
        """Emit at most one run, of at most ``output.records_max``; never block."""

    def add_splits(self, splits: list[SplitT], /) -> None:
        """Take over splits, at the positions they carry."""

    def notify_no_more_splits(self) -> None:
        """Be notified that no further split comes."""

    def snapshot(self) -> list[SplitT]:
        """Return every unfinished split, at the position after the last emitted run."""

    def close(self) -> Pending:
        """Stop reading and release resources; also after a failure."""


class Source(Protocol[SplitT]):
    """A description of where records come from; picklable, nothing live in it.

    Set an attribute ``stays_in_parent`` to True if the source cannot be pickled, or
    reads objects of the process that starts the job: its readers then run in that
    process, wherever the rest of the job runs. If its records are objects of a class
    that no function names, it has an attribute ``record_types``. One that cannot give
    again what was read since a snapshot says so with an attribute ``replayable`` that
    is False: a job with it counts nothing exactly once. If that depends on something,
    an attribute ``replays`` says on what, in a few words. One that knows how many
    records it has in all says so with an attribute ``record_count``, None as long as it
    does not know; it is read for each job snapshot, and must not block. One that says
    in an attribute ``position_types`` of which classes its splits and the state of its
    enumerator are is never given those of a source of another kind.
    """

    @property
    def boundedness(self) -> Boundedness:
        """Whether the source ends by itself."""

    def create_enumerator(
        self, context: EnumeratorContext[SplitT], state: list[Any] | None = None, /
    ) -> SplitEnumerator[SplitT]:
        """Create the enumerator, new or from the result of its `snapshot`."""

    def create_reader(self, context: ReaderContext, /) -> SourceReader[SplitT]:
        """Create a reader. Restored splits come through `SourceReader.add_splits`."""


def is_replayable(source: Any) -> bool:
    """Say whether a source reads again, from a snapshot on, what it has read since.

    Example:
        >>> is_replayable(object())
        True
    """
    return bool(getattr(source, "replayable", True))


def check_positions(
    source: Any, positions: Iterable[Any], name: str, uid: str | None
) -> None:
    """Refuse to resume from the position of a source of another kind.

    Args:
        source: The source.
        positions: Restored splits, or the state of an enumerator.
        name: The operator's name.
        uid: Its uid.

    Raises:
        StateError: If one is of none of the classes that the source has said.
    """
    types: tuple[type, ...] = getattr(source, "position_types", (object,))
    for position in positions:
        if not isinstance(position, types):
            wanted = " or ".join(one.__name__ for one in types)
            raise StateError(
                f"{named_operator(name, uid)} was a source of another kind when the "
                f"snapshot was taken: its position is of type {type(position).__name__}, "
                f"and {type(source).__name__} goes on from {wanted}. Restore into a "
                "source of the same kind; or give the new one another uid, so that it "
                "begins anew, and pass allow_unmatched_state=True"
            )


def record_count_of(source: Any) -> int | None:
    """Return how many records a source has in all; None if it does not know, or is none.

    Example:
        >>> from types import SimpleNamespace
        >>> record_count_of(SimpleNamespace(record_count=3)), record_count_of(object())
        (3, None)
    """
    count = getattr(source, "record_count", None)
    return count if isinstance(count, int) else None


def describe_replay(source: Any) -> str:
    """Say in a few words what comes of a source's records after a failure.

    Example:
        >>> describe_replay(object())
        'replays'
    """
    if not is_replayable(source):
        return "cannot replay: a failure loses its records since the last checkpoint"
    how = getattr(source, "replays", "")
    return f"replays {how}".rstrip()


class StaticEnumerator(Generic[SplitT]):
    """Hands out splits that are all known at the start.

    With ``on_request=False`` split i goes to reader ``i % parallelism`` when it
    registers, and `SourceReader.notify_no_more_splits` follows at once; with True each
    reader gets the next split when it asks for one, and that call when none is left.
    """

    def __init__(
        self,
        context: EnumeratorContext[SplitT],
        splits: list[SplitT],
        *,
        on_request: bool = False,
    ) -> None:
        self._context = context
        self._on_request = on_request
        self._unassigned = deque(enumerate(splits))

    def start(self) -> None:
        """Nothing to begin: readers get splits when they register or ask."""

    def add_reader(self, subtask_index: int) -> None:
        """Give a reader its share, unless readers are to ask."""
        if self._on_request:
            return
        parallelism = self._context.parallelism
        mine = [
            split
            for number, split in self._unassigned
            if number % parallelism == subtask_index
        ]
        self._unassigned = deque(
            (number, split)
            for number, split in self._unassigned
            if number % parallelism != subtask_index
        )
        if mine:
            self._context.assign_splits(subtask_index, mine)
        self._context.signal_no_more_splits(subtask_index)

    def handle_split_request(self, subtask_index: int) -> None:
        """Give the next split, or say that there is none."""
        if self._unassigned:
            _, split = self._unassigned.popleft()
            self._context.assign_splits(subtask_index, [split])
        else:
            self._context.signal_no_more_splits(subtask_index)

    def add_splits_back(self, splits: list[SplitT], subtask_index: int) -> None:
        """Keep the splits for the reader that comes next."""
        self._unassigned += [(subtask_index, split) for split in splits]

    def snapshot(self) -> list[Any]:
        """Return the splits that no reader has yet."""
        return [split for _, split in self._unassigned]

    def close(self) -> None:
        """Nothing to release."""


class SplitReader(Generic[SplitT]):
    """The base of our readers: the splits that they have, of which they read the first."""

    def __init__(self, *, available: bool = False) -> None:
        self.availability: Availability = Availability(available=available)
        self._splits: list[SplitT] = []
        self._no_more_splits = False

    def start(self) -> None:
        """Nothing to begin."""

    def add_splits(self, splits: list[SplitT]) -> None:
        """Take over splits, at their positions."""
        self._splits += splits
        self.availability.set_available()

    def notify_no_more_splits(self) -> None:
        """Be notified that no further split comes."""
        self._no_more_splits = True
        self.availability.set_available()

    def snapshot(self) -> list[SplitT]:
        """Return every unfinished split at its position."""
        return list(self._splits)

    def close(self) -> Pending:
        """Forget the splits."""
        self._splits.clear()
        return None

    def _nothing(self) -> InputStatus:
        """Say that nothing is there to read now, or nothing any more."""
        if self._no_more_splits and not self._splits:
            return InputStatus.END_OF_INPUT
        self.availability.reset()
        return InputStatus.NOTHING_AVAILABLE

    def _finish_split(self, output: ReaderOutput) -> InputStatus:
        output.release_split(self._splits.pop(0).split_id)
        return InputStatus.MORE_AVAILABLE
