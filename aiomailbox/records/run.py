"""Runs: consecutive records that travel and are processed together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from aiomailbox.records.byte_reader import ByteReader

RUN_LENGTH_MAX: Final = 1024


# Of records that stay columns, more are processed at once: a call into a kernel costs
# some microseconds however few they are.
COLUMN_RUN_LENGTH_MAX: Final = 16 * RUN_LENGTH_MAX


class Run(Protocol):
    """Consecutive records between two control elements.

    A run is immutable once emitted: its lists are not changed, so they may be shared.

    Attributes:
        values: The records' values, shape ``(n,)``; a form that is not a list of
            rows (Arrow) makes them when asked.
        timestamps: Event times in milliseconds, shape ``(n,)``, or None when no
            record of the run has one. Within a list `MIN_TIMESTAMP` means "none".
        length_max: How many records of this form are handed on at once at most.
    """

    @property
    def length_max(self) -> int:
        """How many records of this form are handed on at once at most."""

    @property
    def values(self) -> list[Any]:
        """The values, one a record."""

    @property
    def timestamps(self) -> list[int] | None:
        """The event times, one a record, or None."""

    def __len__(self) -> int: ...

    def slice(self, start: int, stop: int) -> Run:
        """Return records ``start`` to ``stop - 1`` as a run."""

    def with_timestamps(self, timestamps: list[int] | None) -> Run:
        """Return the same values with other event times."""

    def size_bytes(self) -> int:
        """Return an estimate of the memory that the run keeps alive."""


@runtime_checkable
class SelectableRun(Protocol):
    """A run that can pick records and keep its form; others are made into rows."""

    def take(self, indices: list[int]) -> Run:
        """Return the records at these places, in this order."""


class ListRun:
    """The row form of a run: a list of values and, in parallel, their timestamps.

    Example:
        >>> run = ListRun(["a", "b", "c"], [1, 2, 3])
        >>> len(run), run.slice(1, 3).values
        (3, ['b', 'c'])
    """

    __slots__ = ("timestamps", "values")

    # An average measured for small tuples; only a bound in bytes depends on it.
    RECORD_BYTES_ESTIMATE: Final = 128
    length_max: int = RUN_LENGTH_MAX

    def __init__(self, values: list[Any], timestamps: list[int] | None = None) -> None:
        self.values: list[Any] = values
        self.timestamps: list[int] | None = timestamps

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"ListRun({self.values!r}, {self.timestamps!r})"

    def slice(self, start: int, stop: int) -> ListRun:
        """Return records ``start`` to ``stop - 1`` as a run."""
        timestamps = self.timestamps
        return ListRun(
            self.values[start:stop],
            None if timestamps is None else timestamps[start:stop],
        )

    def with_timestamps(self, timestamps: list[int] | None) -> ListRun:
        """Return the same values with other event times."""
        return ListRun(self.values, timestamps)

    def size_bytes(self) -> int:
        """Return an estimate of the memory that the run keeps alive."""
        return len(self.values) * self.RECORD_BYTES_ESTIMATE


def take_records(run: Run, indices: list[int]) -> Run:
    """Return the records of a run at these places, in this order; columns stay columns.

    Example:
        >>> take_records(ListRun(["a", "b", "c"], [1, 2, 3]), [0, 2])
        ListRun(['a', 'c'], [1, 3])
    """
    if type(run) is not ListRun and isinstance(run, SelectableRun):
        return run.take(indices)
    if len(indices) == 1:
        return run.slice(indices[0], indices[0] + 1)
    if not indices:
        return run.slice(0, 0)
    pick = itemgetter(*indices)
    timestamps = run.timestamps
    return ListRun(
        list(pick(run.values)), None if timestamps is None else list(pick(timestamps))
    )


# Applies a function to many values, and takes no error of it for their end.


def map_all(function: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
    """Return what ``function`` gives for each value, or each row of several columns.

    For functions that are not Python's, such as ``operator.attrgetter`` and classes:
    with these ``map`` is faster than a comprehension. Yet behind them may be code of
    the user's, a property or a ``__post_init__``, and a ``StopIteration`` out of it
    ends a ``map`` as if there were no more values. Then the rest is done one by one,
    which raises it.

    Args:
        function: Called with a value of each column.
        columns: At least one; all of shape ``(n,)``.

    Example:
        >>> map_all(max, [1, 5], [3, 4])
        [3, 5]
        >>> len(map_all(next, [iter("a"), iter("")]))
        Traceback (most recent call last):
        ...
        StopIteration
    """
    results = list(map(function, *columns))
    if len(results) < len(columns[0]):
        rest = zip(*[column[len(results) :] for column in columns], strict=True)
        results += [function(*row) for row in rest]
    return results


# What a form of runs has to bring along to travel as bytes.


R = TypeVar("R", bound=Run)


class RunForm(Protocol[R]):
    """Writes and reads the runs of one class.

    Attributes:
        tag: The byte that announces it, 64 to 127; 64 is the list of rows.
        kind: The class of its runs.
    """

    @property
    def tag(self) -> int:
        """The byte that announces it."""

    @property
    def kind(self) -> type[R]:
        """The class of its runs."""

    def write(self, run: R, output: bytearray) -> None:
        """Append a run, without its tag."""

    def read(self, source: ByteReader) -> R:
        """Read a run whose tag was read already.

        Raises:
            CorruptStreamError: If the bytes are none.
        """
