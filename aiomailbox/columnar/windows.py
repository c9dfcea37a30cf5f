"""The common parts of windows over columns: keys, results and late records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from types import NoneType
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.cell_grid import DetachedRow, KeptRow
from aiomailbox.columnar.declared import DECIMAL_DIGITS
from aiomailbox.columnar.encode import warmed
from aiomailbox.columnar.forms import RecordForm, ResultForm, TupleForm, ValueForm
from aiomailbox.columnar.keys import KEYS_OF_ROWS, KeySlots, KnownKeys
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.types import KeyTypes, RowsNeededError
from aiomailbox.operators.core.operator import (
    ForwardingOutput,
    Output,
    Pending,
    RowsNote,
    then,
)
from aiomailbox.operators.core.slices import done_after, in_slices
from aiomailbox.operators.keyed.operators import StatefulOperator
from aiomailbox.records.run import COLUMN_RUN_LENGTH_MAX, ListRun, Run
from aiomailbox.state.backends import HeapStateStore
from aiomailbox.windowing.aggregate import AggregateWindowsOperator
from aiomailbox.windowing.spec import WindowSpec, key_function

# What operators on columns have in common: restored state, and the way back to rows.


# Beyond it, the arithmetic of times might leave 64 bits.
_TIME_MAX: Final = 2**61


class ColumnarOperator(StatefulOperator):
    """Lets an operator of rows work on columns as long as it gets any.

    With the first run of rows, or the first value for which only Python has the right
    result, all becomes rows, for good: to go back and forth would cost more than either.
    It stands before the operator of rows among the bases of a class.

    Attributes:
        rows_note: Why it works on rows since it was opened last.
    """

    takes_columns = True

    # The keys that have a place in its arrays.
    _slots: KeySlots

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.rows_note: RowsNote = RowsNote()

    def warm_up(self) -> Pending:
        return warmed()

    def open(self) -> Pending:
        """Bind the state, and take over what a restore has put into rows."""
        return then(super().open(), self._open_columns)

    def _open_columns(self) -> Pending:
        # What another backend keeps is there because it does not fit into memory.
        self._is_columnar = isinstance(self.context.keyed_state, HeapStateStore)
        self.context.metrics.gauge("columnar", lambda: int(self._is_columnar))
        if not self._is_columnar:
            self.rows_note.reason = "its state is not kept on the heap"
            return None
        self.rows_note.reason = ""
        return then(in_slices(self._load_some), self._loaded)

    def _load_next(self, count: int) -> int:
        """Take about so much out of the state of rows; return how much it was.

        Raises:
            RowsNeededError: If it has to stay rows.
        """
        raise TypeError(f"{type(self).__name__} defines no _load_next")

    def _loaded(self) -> None:
        """Be notified that all that a restore had put into rows is in columns, or rows."""

    def _give_back(self) -> int:
        """Give all that is kept to the state of rows; return how much it was."""
        raise TypeError(f"{type(self).__name__} defines no _give_back")

    def _load_some(self, count: int) -> bool:
        while count > 0:
            try:
                loaded = self._load_next(count)
            except RowsNeededError as reason:
                self._go_to_rows(str(reason))
                return True
            if not loaded:
                return True
            count -= loaded
        return False

    def _go_to_rows(self, reason: str) -> None:
        """Give all to the state of rows, and leave columns alone from now on."""
        self._is_columnar = False
        self.rows_note.take(reason)
        had = self._give_back()
        self._slots.clear()
        if had:
            self.context.log.info("works on rows from now on", reason=reason)

    @staticmethod
    def _timed(run: Run) -> tuple[ArrowRun, np.ndarray]:
        """Return a run of columns, and its event times.

        Raises:
            RowsNeededError: If it is none, or has no event times that fit.
        """
        times = run.event_times if type(run) is ArrowRun else None
        if times is None or type(run) is not ArrowRun:
            raise RowsNeededError("records came as rows, or without event times")
        lowest, highest = run.span_ms()
        if lowest < -_TIME_MAX or highest > _TIME_MAX:
            raise RowsNeededError("an event time is at the limits of 64 bits")
        return run, times

    def _slots_by(self, selector: Any, run: ArrowRun) -> np.ndarray:
        """Return the places of the keys of a run, int64 of shape ``(n,)``.

        Args:
            selector: Reads the keys; a selector of fields.
            run: The records.

        Raises:
            RowsNeededError: If only rows say which keys these are.
        """
        slots = self._slots.of_run(run, selector.fields, selector.is_alone)
        if slots is None:
            raise RowsNeededError(KEYS_OF_ROWS)
        return slots


# An operator's output that gets other runs than the operator emits.


# Results of aggregates as columns, and the records that they stand for.


# Types whose values are the same after they have been a column.
_EXACT: Final = {bool, bytes, float, int, str}


# What says that values are no column: too large, of several types, with surrogates.
_NO_COLUMN: Final = (pa.ArrowException, OverflowError, UnicodeEncodeError)


class ResultMaker:
    """Makes runs of results, all with the same fields.

    Args:
        names: The fields; None for results that are single values.
        key_fields: The fields of a key that is a tuple; its column is a struct of them.
        are_tuples: Whether results are tuples without names; the columns have them.

    Example:
        >>> import numpy as np
        >>> maker = ResultMaker(("key", "n"))
        >>> run = maker.run([pa.array(["a"]), pa.array([2])], np.array([7]))
        >>> run.values, run.timestamps
        ([Result(key='a', n=2)], [7])
    """

    def __init__(
        self,
        names: tuple[str, ...] | None,
        key_fields: tuple[str, ...] = (),
        *,
        are_tuples: bool = False,
    ) -> None:
        self._names = ("value",) if names is None else names
        self._form: RecordForm
        if names is None:
            self._form = ValueForm()
        elif are_tuples:
            self._form = TupleForm(has_tuples=bool(key_fields))
        else:
            self._form = ResultForm(names, bool(key_fields))
        self._key_fields = key_fields
        self._are_tuples = are_tuples
        self._maker: RowMaker | None = None

    def run(self, columns: list[pa.Array], times: Any) -> ArrowRun:
        """Return results as a run.

        Args:
            columns: One a field, each of shape ``(n,)``.
            times: Event times in milliseconds, shape ``(n,)``, or None.
        """
        batch = pa.RecordBatch.from_arrays(columns, names=list(self._names))
        if self._maker is None or not self._maker.schema.equals(batch.schema):
            self._maker = RowMaker(batch.schema, self._form)
        return ArrowRun(batch, self._maker, times)

    @property
    def rows_lack_names(self) -> bool:
        """Whether rows are tuples, or have one for a key of several fields."""
        has_key = "key" in self._names
        return has_key and (self._are_tuples or bool(self._key_fields))

    def run_of_rows(self, run: ListRun) -> ArrowRun | None:
        """Return results that are rows as columns, None if rows of these were others."""
        known = None if self._maker is None else self._maker.schema
        columns: list[pa.Array] = []
        for index, values in enumerate(zip(*run.values, strict=True)):
            if self._names[index] == "key" and self._key_fields:
                try:
                    columns.append(self.key_column(list(values), None))
                except _NO_COLUMN:
                    return None
                continue
            kind = None if known is None else known.field(index).type
            column = _column(list(values), kind)
            if column is None:
                return None
            columns.append(column)
        return self.run(columns, run.timestamps)

    def key_column(self, keys: list[Any], kinds: list[pa.DataType] | None) -> pa.Array:
        """Return keys as a column.

        Args:
            keys: Of the one type that they have.
            kinds: The type of each of their fields; None to go by the keys.
        """
        if not self._key_fields:
            return pa.array(keys, None if kinds is None else kinds[0])
        parts = [
            pa.array(part, None if kinds is None else kinds[place])
            for place, part in enumerate(zip(*keys, strict=True))
        ]
        return pa.StructArray.from_arrays(parts, list(self._key_fields))


def naming_output(output: Output, maker: ResultMaker) -> Output:
    """Return an operator's output that makes columns of results whose rows lack names.

    Of a tuple, or of one that is a key, expressions and sinks would not know the fields.

    Args:
        output: The output.
        maker: Makes the columns; where it cannot, rows go on.
    """
    if not maker.rows_lack_names:
        return output

    def emit_run(run: Run) -> Pending:
        if type(run) is ListRun and len(run):
            run = maker.run_of_rows(run) or run
        return output.emit_run(run)

    return ForwardingOutput(output, emit_run)


def _column(values: list[Any], known: pa.DataType | None) -> pa.Array | None:
    """Return values as a column, None if the values of that were others."""
    kinds = set(map(type, values)) - {NoneType}
    if not kinds:
        # Without a type until there is a value.
        return pa.nulls(len(values), known or pa.null())
    if len(kinds) > 1:
        return None
    try:
        if kinds == {datetime}:
            zones = {value.tzinfo for value in values if value is not None}
            if zones not in ({UTC}, {None}):
                return None
            return pa.array(values, pa.timestamp("us", "UTC" if UTC in zones else None))
        column = pa.array(values)
        if kinds == {Decimal}:
            # Later values may have more digits before the point.
            column = column.cast(pa.decimal128(DECIMAL_DIGITS, column.type.scale))
    except _NO_COLUMN:
        return None
    same = kinds <= _EXACT or repr(column.to_pylist()) == repr(values)
    return column if same else None


# The years 1 to 9999, which datetimes have.
_DATE_MIN: Final = -62_135_596_800_000


_DATE_MAX: Final = 253_402_300_799_999


# Keys without a window are forgotten when they are so many more than the others.
_IDLE_KEYS: Final = 4096


# To look whether a cell is used takes this part of what it takes to add a record.
_LOOKED_AT: Final = 16


_WINDOW_FIELDS: Final = ("window_start", "window_end")


class Fired(NamedTuple):
    """Windows that are to be emitted, one a key.

    Attributes:
        starts: Where they begin, milliseconds, shape ``(n,)`` like all that follows.
        ends: Where they end.
        slots: The places of the keys.
        results: A column for each piece of the aggregate.
    """

    starts: np.ndarray
    ends: np.ndarray
    slots: np.ndarray
    results: list[pa.Array]

    def firing(self) -> Firing:
        """Return the same, as made already."""
        return Firing(self.ends - 1, lambda: self)


class Firing(NamedTuple):
    """Windows that are to be emitted; their results are computed when they are read.

    Attributes:
        times: The event times of the results, milliseconds, shape ``(n,)``.
        make: Returns the windows; called on demand, in any thread, maybe twice.
    """

    times: np.ndarray
    make: Callable[[], Fired]


class ColumnarWindows(ColumnarOperator, AggregateWindowsOperator):
    """Lets an operator of windows work on columns; see `ColumnarOperator`.

    Args:
        spec: Key (a selector of fields, or none), windows, lateness and errors.
        aggregate: One for which `needs_rows` returns nothing.
    """

    # Whether results of several aggregates say when their windows begin and end.
    _says_bounds: ClassVar[bool] = True
    # The key of all records, if they have none.
    _only_key: int = 0

    def __init__(self, spec: WindowSpec, aggregate: Any) -> None:
        super().__init__(spec, aggregate)
        selector: Any = None if spec.key is None else key_function(spec.key)
        self._selector = selector
        names = aggregate.names
        self._has_bounds = self._says_bounds and names is not None
        are_pairs = spec.include_key and names is None
        # Whether results have a key.
        self._is_keyed = selector is not None and (names is not None or are_pairs)
        if are_pairs:
            names = ("key", "value")
        elif names is not None:
            bounds = _WINDOW_FIELDS if self._says_bounds else ()
            names = (*(("key",) if self._is_keyed else ()), *bounds, *names)
        several = selector is not None and not selector.is_alone
        self._maker = ResultMaker(
            names, selector.fields if several else (), are_tuples=are_pairs
        )
        self._slots = KeySlots(self._begin_keys)
        self._key_types = KeyTypes()
        # Whether the columns of any results have been read.
        self._are_read = False
        # How many records have come since all cells were looked at.
        self._since_look = 0

    def setup(self, context: Any, output: Output) -> None:
        """Take the context, and an output that keeps the names of fields."""
        super().setup(context, naming_output(output, self._maker))

    def process_run(self, run: Run) -> Pending:
        if self._is_columnar and len(run):
            self._since_look += len(run)
            self.begin_run(run)
            try:
                return self._add_columns(*self._timed(run))
            except RowsNeededError as reason:
                self._go_to_rows(str(reason))
        return super().process_run(run)

    def fire(self, timestamp_ms: int) -> Pending:
        if not self._is_columnar:
            return super().fire(timestamp_ms)
        pending = self._slices.run(self._emit_some)
        return then(then(pending, self._tidy), super().fire, timestamp_ms)

    def _add_columns(self, run: ArrowRun, times: np.ndarray) -> Pending:
        """Add the records of a run of columns.

        Raises:
            RowsNeededError: If the rows have to be asked; nothing has been changed.
        """
        raise TypeError(f"{type(self).__name__} defines no _add_columns")

    def _fire_some(self, count: int) -> Firing | None:
        """Return about so many results of what the watermark has ended; None for none.

        Raises:
            RowsNeededError: If the rows have to be asked; nothing has been changed.
        """
        raise TypeError(f"{type(self).__name__} defines no _fire_some")

    def _forget_idle(self) -> None:
        """Forget what is over, which a watermark has said."""

    def _kept_cells(self) -> int:
        """Return how many cells there are, used or not."""
        raise TypeError(f"{type(self).__name__} defines no _kept_cells")

    def _used_slots(self) -> np.ndarray:
        """Return the places of keys that there is something of, ascending."""
        raise TypeError(f"{type(self).__name__} defines no _used_slots")

    def _keep_slots(self, slots: np.ndarray) -> None:
        """Keep the places of these keys only; they get new ones, in their order."""
        raise TypeError(f"{type(self).__name__} defines no _keep_slots")

    def _slots_of(self, run: ArrowRun) -> np.ndarray:
        if self._selector is None:
            (place,) = self._slots.place([self._only_key]).tolist()
            return np.full(len(run), place, np.int64)
        slots = self._slots_by(self._selector, run)
        kinds = [run.schema.field(field).type for field in self._selector.fields]
        alone = self._selector.is_alone
        self._key_types.add(kinds, self._slots.keys, alone=alone)
        return slots

    def _place_restored(self, keys: list[Any]) -> np.ndarray:
        """Return the places of keys that a restore has brought.

        Raises:
            RowsNeededError: If no column has them together with the others.
        """
        if self._selector is not None:
            self._key_types.hold(keys, alone=self._selector.is_alone)
        return self._slots.place(keys)

    def _begin_keys(self, new: list[Any]) -> None:
        self._keys.check(new)

    def _emit_some(self, count: int) -> bool | Awaitable[bool]:
        """Emit results of windows that have ended, as many as a run may have."""
        try:
            firing = self._fire_some(COLUMN_RUN_LENGTH_MAX)
        except RowsNeededError as reason:
            self._go_to_rows(str(reason))
            return True
        if firing is None:
            return True
        pending = self._emit_firing(firing)
        return done_after(pending, done=False)

    def _emit_results(self, fired: Fired) -> Pending:
        """Emit results with their windows, at the end of each."""
        return self._emit_firing(fired.firing())

    def _emit_firing(self, firing: Firing) -> Pending:
        # Keys may have other places later.
        make = partial(self._made_of, firing, self._slots.known_keys())
        if self._are_read:
            return self.output.emit_run(make())
        times = firing.times
        return self.output.emit_run(ArrowRun.deferred(len(times), make, times))

    def _made_of(self, firing: Firing, known: KnownKeys) -> ArrowRun:
        """Return results, those of several aggregates with windows. In any thread."""
        # From now on they are made at once.
        self._are_read = True
        times = firing.times
        starts, ends, slots, results = firing.make()
        columns = results
        if self._has_bounds:
            columns = [moments(starts), moments(ends), *results]
        if self._is_keyed:
            column = known.column(slots)
            if column is None:
                named = [known.keys[slot] for slot in slots.tolist()]
                column = self._maker.key_column(named, self._key_types.types)
            columns = [column, *columns]
        return self._maker.run(columns, times)

    def _emit_too_late(self, run: ArrowRun, over: np.ndarray) -> Pending:
        """Drop records whose windows are over, or pass them on aside."""
        if not len(over):
            return None
        tag = self._spec.late_tag
        if tag is None:
            times: Any = run.event_times
            oldest = int(times[over].min())
            self._dropped.drop(oldest, self.watermark_ms, len(over))
            return None
        return self.output.emit_side(tag, run.take(over))

    def _tidy(self) -> None:
        """Forget what is over, and keys that no window has."""
        if not self._is_columnar:
            return
        self._forget_idle()
        places = self._slots.places
        # Few keys cost little, and none is looked at for them.
        if len(places) < _IDLE_KEYS:
            return
        # Not at each of many watermarks: it would take longer than the records do.
        if self._since_look * _LOOKED_AT < self._kept_cells():
            return
        self._since_look = 0
        used = self._used_slots()
        # Only if most are idle: moving the others costs as much as they are.
        if len(places) < _IDLE_KEYS + 2 * len(used):
            return
        keys = self._slots.keys
        self._keep_slots(used)
        self._slots.clear()
        self._slots.place([keys[slot] for slot in used.tolist()])


def moments(times: np.ndarray) -> pa.Array:
    """Return milliseconds as moments; null where a datetime has no year for them."""
    kind = pa.timestamp("ms", "UTC")
    if not len(times) or (
        int(times.min()) >= _DATE_MIN and int(times.max()) <= _DATE_MAX
    ):
        return pa.array(times).view(kind)
    beyond = (times < _DATE_MIN) | (times > _DATE_MAX)
    return pa.array(np.where(beyond, 0, times), mask=beyond).cast(kind)


def rows_firing(rows: Sequence[DetachedRow | KeptRow], size: int) -> Firing:
    """Return the windows whose contents rows are.

    Args:
        rows: At least one.
        size: How long the windows are, milliseconds.
    """
    starts: np.ndarray = np.repeat(
        np.array([row.start for row in rows], np.int64), [row.keys for row in rows]
    )
    return Firing(starts + (size - 1), partial(_fired_of, rows, starts, size))


def _fired_of(
    rows: Sequence[DetachedRow | KeptRow], starts: np.ndarray, size: int
) -> Fired:
    slots, columns = zip(*[row.results() for row in rows], strict=True)
    results = [pa.concat_arrays(parts) for parts in zip(*columns, strict=True)]
    return Fired(starts, starts + size, np.concatenate(slots), results)
