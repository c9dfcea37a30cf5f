"""Collections and iterators of this process as sources."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

from aiomailbox.errors import (
    InvalidArgumentError,
    SourceChangedError,
    StateError,
    UsageError,
    WrongTypeError,
)
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.sources.source import (
    Boundedness,
    EnumeratorContext,
    InputStatus,
    ReaderContext,
    ReaderOutput,
    SourceReader,
    SplitReader,
    StaticEnumerator,
)
from aiomailbox.records.run import ListRun
from aiomailbox.state.serializers import kept_in_state


@kept_in_state("RangeSplit")
@dataclass(frozen=True, slots=True)
class RangeSplit:
    """Consecutive elements of a collection, or all elements of an iterator.

    Attributes:
        split_id: The split's name.
        position: The element to go on with.
        stop: The element to stop before; None for the end of an iterator.
    """

    split_id: str
    position: int
    stop: int | None = None


def end_of(split: RangeSplit) -> int:
    """Return where a range ends.

    Raises:
        StateError: If it was restored, and is what was left of an iterator.
    """
    if split.stop is None:
        raise StateError(
            "the source was an iterator when the snapshot was taken, and its records "
            "are a list now, or rows. Restore into an iterator; or give the source "
            "another uid, so that it begins anew, and pass allow_unmatched_state=True"
        )
    return split.stop


def check_has(count: int, end: int) -> None:
    """Raise if data have fewer records than when a snapshot recorded a range of them.

    Raises:
        SourceChangedError: If they end before the range does.
    """
    if end > count:
        raise SourceChangedError(
            f"the source has {count} records, and had at least {end} when the snapshot "
            "was taken, so a position in it means nothing now. Give it the records that "
            "it had; or give it another uid, so that it begins anew, and pass "
            "allow_unmatched_state=True"
        )


class CollectionSource:
    """Reads the elements of a sequence, in its order, or of any iterable.

    With several readers, each reads a consecutive part of a sequence; any other
    iterable is read lazily by one, see `IteratorSource`. A sequence resumes exactly
    where a snapshot was taken.

    Args:
        values: The elements; a sequence is copied, except for a ``range``.
        timestamps: Their event times in milliseconds, one per element; only for a
            sequence.

    Raises:
        WrongTypeError: If ``values`` is not iterable, a string, a mapping or a table.
        InvalidArgumentError: If there is not one timestamp per element.

    Attributes:
        parallelism_max: 1 for an iterable that is not a sequence, else None.
        replayable: False for an iterator, which gives each element once, and for a set,
            whose order differs in each program.

    Concept:
        Flink, ``fromData``.

    Example:
        >>> CollectionSource(["a", "b"], timestamps=[1, 2])
        <CollectionSource of 2 records>
    """

    position_types: ClassVar[tuple[type[Any], ...]] = (RangeSplit,)

    def __init__(
        self, values: Iterable[Any], timestamps: Sequence[int] | None = None
    ) -> None:
        if not _is_collection(values):
            raise WrongTypeError(
                "values",
                f"{type(values).__name__} is not a collection of records",
                _remedy(values),
            )
        self.boundedness = Boundedness.BOUNDED
        self.parallelism_max: int | None = None
        self._iterator: IteratorSource | None = None
        self._values: Sequence[Any] = []
        if isinstance(values, Sequence):
            # A copy: the program may change its list while it is read.
            self._values = values if isinstance(values, range) else list(values)
        else:
            self.parallelism_max = 1
            self._iterator = IteratorSource(values)
        self._timestamps = None if timestamps is None else list(timestamps)
        if timestamps is not None and len(timestamps) != len(self._values):
            raise InvalidArgumentError(
                "timestamps",
                f"{len(timestamps)} timestamps for {len(self._values)} values",
                "Give one timestamp per value, and the values as a list.",
            )

    @property
    def record_count(self) -> int | None:
        """How many elements there are, None for an iterator."""
        return len(self._values) if self._iterator is None else None

    @property
    def stays_in_parent(self) -> bool:
        """Whether it reads an iterable of this process that is no sequence."""
        return self._iterator is not None and self._iterator.stays_in_parent

    @property
    def replayable(self) -> bool:
        """Whether it can be read again."""
        return self._iterator is None or self._iterator.replayable

    @property
    def record_fields(self) -> RecordFields | None:
        """The fields of the records, if the collection is short and they are known."""
        return RecordFields.of_records(self._values)

    def create_enumerator(
        self, context: EnumeratorContext[RangeSplit], state: list[Any] | None = None
    ) -> StaticEnumerator[RangeSplit]:
        """Create the enumerator: as many splits as readers."""
        if self._iterator is not None:
            return self._iterator.create_enumerator(context, state)
        if state is None:
            state = equal_ranges("range", len(self._values), context.parallelism)
        return StaticEnumerator(context, state)

    def create_reader(self, context: ReaderContext) -> SourceReader[RangeSplit]:
        """Create a reader."""
        if self._iterator is not None:
            return self._iterator.create_reader(context)
        return _RangeReader(self._values, self._timestamps)

    def __repr__(self) -> str:
        if self._iterator is not None:
            return "<CollectionSource of an iterable>"
        return f"<CollectionSource of {len(self._values)} records>"


def _is_collection(values: object) -> bool:
    kind = type(values)
    # Of a mapping only the keys would come, which is hardly ever meant.
    if isinstance(values, str | bytes | Mapping) or _is_frame(kind):
        return False
    return hasattr(kind, "__iter__") and not hasattr(kind, "__aiter__")


def _is_frame(kind: type) -> bool:
    """Say whether it is a table of pyspark, pandas or another library."""
    return any(each.__name__ in ("DataFrame", "LazyFrame") for each in kind.__mro__)


def _remedy(values: object) -> str:
    kind = type(values)
    root = kind.__module__.partition(".")[0]
    if _is_frame(kind):
        if root == "pyspark":
            return "Use env.from_source(am.SparkSource(df))."
        if not hasattr(kind, "__arrow_c_stream__"):
            return "Use its rows, e.g. df.itertuples(index=False)."
    if hasattr(kind, "__arrow_c_stream__") or root == "pyarrow":
        return "Use env.from_arrow(data), which keeps its columns."
    if isinstance(values, Mapping):
        return "Use [record] for one record, mapping.items() for pairs."
    if hasattr(kind, "__aiter__"):
        return "It is asynchronous: use env.from_async_iterable(...)."
    if inspect.isasyncgenfunction(values):
        return "It yields asynchronously: use env.from_async_iterable(function)."
    if callable(values):
        return "Call it: env.from_collection(function())."
    if isinstance(values, str | bytes):
        return "Use a list, e.g. text.splitlines()."
    return "Use a list."


class IteratorSource:
    """The elements of an iterator or iterable, read lazily by one reader.

    A snapshot says how many elements were emitted; going on from it needs a factory,
    whose new iterator is advanced by as many. A bare iterator cannot be started again
    and can run once only.

    Args:
        iterable: An iterable (a generator), or a function without arguments that
            returns one.
        bounded: Whether it ends by itself.

    Attributes:
        stays_in_parent: True for an iterable: what it gives is made in this process.
        replayable: False for an iterator, which gives each element once, and for a set,
            whose order is another one in each program. An iterable or a
            function must give the same elements again.

    Raises:
        WrongTypeError: If it is neither.

    Example:
        >>> import itertools
        >>> source = IteratorSource(lambda: iter(range(3)))
        >>> forever = IteratorSource(itertools.count, bounded=False)
    """

    # An iterator has one place in it where to go on: there is one reader.
    position_types: ClassVar[tuple[type[Any], ...]] = (RangeSplit,)
    parallelism_max = 1

    def __init__(
        self,
        iterable: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        bounded: bool = True,
    ) -> None:
        self._iterable = Reopenable(iterable, "__iter__", "__next__", "an iterable")
        self.stays_in_parent: bool = not self._iterable.is_factory
        # The order of a set goes by hashes, which are salted in each program.
        self.replayable: bool = not self._iterable.is_once and not isinstance(
            iterable, set | frozenset
        )
        self.boundedness = Boundedness.BOUNDED if bounded else Boundedness.UNBOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[RangeSplit], state: list[Any] | None = None
    ) -> StaticEnumerator[RangeSplit]:
        """Create the enumerator: one split."""
        splits = [RangeSplit("all", 0)] if state is None else state
        return StaticEnumerator(context, splits)

    def create_reader(self, context: ReaderContext) -> _IteratorReader:
        """Create a reader."""
        return _IteratorReader(self._open)

    def _open(self, position: int) -> Iterator[Any]:
        values: Iterator[Any] = iter(self._iterable.open(position))
        # As far as it was read: an iterable knows no places, so elements are skipped.
        check_has(sum(1 for _ in islice(values, position)), position)
        return values


class Reopenable:
    """An iterable of either kind, or a function that makes one: what can be read again.

    Args:
        iterable: What the user gave.
        iterates: The method that an iterable of the kind has.
        advances: The method that an iterator of the kind has: it is its own iterator,
            and what it gave once is gone.
        kind: What people call an iterable of the kind.

    Raises:
        WrongTypeError: If it is neither such an iterable nor a function.

    Attributes:
        is_factory: Whether it is a function.
        is_once: Whether it gives each element once.
    """

    def __init__(self, iterable: Any, iterates: str, advances: str, kind: str) -> None:
        # Of its type, as iter() looks: a class of iterables is a function that makes one.
        self.is_factory: bool = not hasattr(type(iterable), iterates)
        if self.is_factory and not callable(iterable):
            raise WrongTypeError(
                "iterable",
                f"{type(iterable).__name__} is neither {kind} nor a function",
                "Use env.from_collection(...) for it."
                if hasattr(type(iterable), "__iter__")
                else "Pass e.g. a generator function.",
            )
        self._iterable = iterable
        self.is_once: bool = not self.is_factory and hasattr(type(iterable), advances)
        self._is_used = False

    def open(self, position: int) -> Any:
        """Return the iterable, to be read from a position on.

        Raises:
            UsageError: If it can be read once, and was, or not from its beginning.
        """
        # In the middle as well: what was read of an iterator is gone.
        if self.is_once and (self._is_used or position):
            raise UsageError(
                "an iterator can be read only once: give the source a function "
                "that returns a new one, so that it can be read again."
            )
        self._is_used = True
        return self._iterable() if self.is_factory else self._iterable

    def open_after(self, offset: Any) -> Any:
        """Return the iterable that a function makes of an offset."""
        return self._iterable(offset)


class _RangeReader(SplitReader[RangeSplit]):
    """Reads ranges of a sequence, one split after the other."""

    def __init__(self, values: Sequence[Any], timestamps: list[int] | None) -> None:
        super().__init__(available=True)
        self._values = values
        self._timestamps = timestamps

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit the next run of the first split."""
        if not self._splits:
            return self._nothing()
        split = self._splits[0]
        end = end_of(split)
        check_has(len(self._values), end)
        start, stop = split.position, min(end, split.position + output.records_max)
        if start < stop:
            timestamps = self._timestamps
            values = self._values[start:stop]
            run = ListRun(
                values if isinstance(values, list) else list(values),
                None if timestamps is None else timestamps[start:stop],
            )
            output.for_split(split.split_id).emit_run(run)
            self._splits[0] = replace(split, position=stop)
        if stop < end:
            return InputStatus.MORE_AVAILABLE
        return self._finish_split(output)


class _IteratorReader(SplitReader[RangeSplit]):
    """Reads an iterator, as many elements a poll as the task wants."""

    def __init__(self, open_at: Callable[[int], Iterator[Any]]) -> None:
        super().__init__(available=True)
        self._open_at = open_at
        self._values: Iterator[Any] | None = None
        self._position = 0

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit the iterator's next elements."""
        if not self._splits:
            return self._nothing()
        split = self._splits[0]
        if self._values is None:
            self._position = split.position
            self._values = self._open_at(split.position)
        values = list(islice(self._values, output.records_max))
        if values:
            self._position += len(values)
            output.for_split(split.split_id).emit_run(ListRun(values))
        if len(values) == output.records_max:
            return InputStatus.MORE_AVAILABLE
        # Fewer than were asked for: the iterator has ended.
        self._values = None
        return self._finish_split(output)

    def snapshot(self) -> list[RangeSplit]:
        """Return the split at the element after the last emitted one."""
        if self._values is None:
            return list(self._splits)
        return [replace(self._splits[0], position=self._position)]

    def close(self) -> Pending:
        """Close the iterator, if it can be."""
        values, self._values = self._values, None
        close = getattr(values, "close", None)
        if close is not None:
            close()
        return super().close()


def equal_ranges(name: str, count: int, parts: int) -> list[RangeSplit]:
    """Return so many consecutive ranges of records, called by a name and a number."""
    bounds = [count * part // parts for part in range(parts + 1)]
    return [
        RangeSplit(f"{name}-{part}", bounds[part], bounds[part + 1])
        for part in range(parts)
    ]
