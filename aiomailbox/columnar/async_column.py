"""Calls of asynchronous functions for some columns; their results are a new one.

Theory of operation: a row is called with what the function needs of it, and remembers
the run that has the rest. Results are put beside that rest when they are emitted, so that
columns stay columns, and rows become rows with a field more.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.encode import ResultColumn, encoded_column, warmed
from aiomailbox.columnar.evaluator import record_groups
from aiomailbox.columnar.expressions import (
    Plan,
    Projection,
    Projector,
    Select,
    WithColumns,
)
from aiomailbox.columnar.forms import (
    ClassForm,
    DictForm,
    RecordForm,
    canonical_values,
    class_fields,
    form_of_class,
    is_record_type,
    is_typed_dict,
    record_shape,
)
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordTypeError,
    add_note,
    named_operator,
)
from aiomailbox.operators.async_io.calls import CallEntry
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.async_io.ordering import Emitter, ReadyRows
from aiomailbox.operators.async_io.rows import RowFlow
from aiomailbox.operators.core.failures import USER_ERRORS
from aiomailbox.operators.core.fields import FieldSelector, FieldsSelector, RecordFields
from aiomailbox.operators.core.operator import Pending, in_turn
from aiomailbox.operators.core.user_code import describe
from aiomailbox.records.events import MIN_TIMESTAMP
from aiomailbox.records.run import ListRun, Run, take_records
from aiomailbox.signatures import check_names
from aiomailbox.state.operator_state import OperatorStateSnapshot, RedistributionMode

# Which fields an asynchronous function is called with.


class Declared(NamedTuple):
    """The types in a function's hints.

    Attributes:
        record_type: The class of records that it takes, or a TypedDict; None if there
            is none.
        returned: What it returns; Any if that is not said.

    Example:
        >>> async def measure(day: str) -> float: ...
        >>> Declared.by(measure, batched=False)
        Declared(record_type=None, returned=<class 'float'>)
    """

    record_type: type | None
    returned: Any

    @classmethod
    def by(cls, function: Any, *, batched: bool) -> Declared:
        """Return what a function declares.

        Args:
            function: A function, or an object that can be called.
            batched: Whether it takes and returns lists.
        """
        target = inspect.unwrap(function)
        if not (inspect.isfunction(target) or inspect.ismethod(target)):
            target = getattr(target, "__call__", target)  # noqa: B004 -- its annotations
        try:
            hints = typing.get_type_hints(target)
            parameters = list(inspect.signature(target).parameters)
        except (NameError, TypeError, ValueError):
            return cls(None, Any)
        returned = hints.pop("return", Any)
        if parameters and inspect.isclass(function):
            parameters = parameters[1:]
        hint = hints.get(parameters[0]) if parameters else None
        if batched:
            hint, returned = _element(hint), _element(returned) or Any
        names_fields = is_record_type(hint) or is_typed_dict(hint)
        return cls(hint if names_fields else None, returned)

    @property
    def form(self) -> RecordForm | None:
        """How the records for it are made; None if it takes any."""
        if self.record_type is None:
            return None
        if is_typed_dict(self.record_type):
            return DictForm()
        return ClassForm(self.record_type)

    def projection(self, names: tuple[str, ...]) -> Projection:
        """Return which fields it gets of records.

        Args:
            names: Those that it is called with.
        """
        if self.record_type is None:
            return Select(names=names, parameter="columns")
        fields = class_fields(self.record_type)
        kind = self.record_type.__qualname__
        return _ClassFields(fields={name: fields[name] for name in names}, kind=kind)


def _element(hint: Any) -> Any:
    """Return what a list has, by its type hint; None if that does not say it."""
    inner = typing.get_args(hint)
    return inner[0] if len(inner) == 1 else None


@dataclass(frozen=True)
class _ClassFields(Projection):
    """The fields of a class; those with defaults may be missing."""

    fields: dict[str, bool] = field(default_factory=dict)
    kind: str = ""

    def plan(self, names: Sequence[str]) -> Plan:
        needed = [one for one in self.fields if self.fields[one] or one in names]
        for name in needed:
            if name not in names:
                raise RecordTypeError(
                    "function",
                    f"it takes records of {self.kind}, and there is no field {name!r} "
                    "for them",
                    f"The fields are: {', '.join(names)}.",
                )
        return Select(names=tuple(needed)).plan(names)


def called_with(
    function: Any, declared: Declared, columns: Sequence[str] | None
) -> tuple[str, ...] | None:
    """Return the fields that a function is called with, None for all.

    Args:
        function: The function, for messages.
        declared: What it declares.
        columns: What the user named; None for what the function declares.

    Raises:
        InvalidArgumentError: If they are not those of the class that it declares.
        WrongTypeError: If they are no names.
    """
    record_type = declared.record_type
    if columns is None:
        return None if record_type is None else tuple(class_fields(record_type))
    names = check_names(columns, "columns")
    if record_type is not None:
        _check_class(function, record_type, names)
    if not names:
        raise InvalidArgumentError(
            "columns", "it is empty", "Name one, or leave it out."
        )
    return names


def _check_class(function: Any, record_type: type, columns: Sequence[str]) -> None:
    """Refuse columns of which no records of a class can be made.

    Raises:
        InvalidArgumentError: If there are others, or one is missing.
    """
    fields = class_fields(record_type)
    unknown = [name for name in columns if name not in fields]
    missing = [name for name in fields if fields[name] and name not in columns]
    if unknown or missing:
        raise InvalidArgumentError(
            "columns",
            f"{describe(function)} takes records of {record_type.__qualname__}, which "
            + (f"have no field {unknown[0]!r}" if unknown else f"need {missing[0]!r}"),
            "Leave columns= out, or name the fields of the class.",
        )


def read_no_others(readers: Iterable[Any], names: Sequence[str]) -> bool:
    """Say whether these read no other fields than those with these names.

    Args:
        readers: Names, selectors, numbers, or None; functions may read any field.
        names: The fields.
    """
    return all(set(_fields_of(reader)) <= set(names) for reader in readers)


def _fields_of(reader: Any) -> tuple[str, ...]:
    """Return the fields that something reads; of a function a name that no field has."""
    if reader is None or isinstance(reader, int | float):
        return ()
    if isinstance(reader, str):
        return (reader,)
    if isinstance(reader, FieldSelector | FieldsSelector):
        return tuple(reader.fields)
    return ("",)


_SCHEMA: Final = "held-schema"


class AsyncColumnOperator(AsyncMapOperator):
    """Calls an async function for some fields of each record, and adds what it returns.

    What does not fit into a column (results of several types, of classes, integers of
    more than 64 bits) lets its records go on as rows.

    Args:
        function: As in `AsyncMapOperator`; called with a record of the named fields, or
            of the class that it declares.
        into: The name of the new field.
        columns: The fields that the function needs; None for those of the class that it
            declares, or else for all.
        **calls: The other arguments of `AsyncMapOperator`.

    Raises:
        InvalidArgumentError: If ``columns`` are not the fields of the declared class, or
            another argument has a value that cannot work.
        WrongTypeError: If an argument has the wrong type.

    Attributes:
        into: What was given.

    Example:
        >>> import asyncio
        >>> from aiomailbox.columnar.forms import NamedTupleForm
        >>> from aiomailbox.testing import OneInputHarness
        >>> async def measure(day):
        ...     return 20.5 if day.city == "Rome" else None
        >>> async def main():
        ...     batch = pa.record_batch({"city": ["Oslo", "Rome"], "n": [1, 2]})
        ...     run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
        ...     operator = AsyncColumnOperator(
        ...         measure, into="temp", columns=["city"], concurrency=10
        ...     )
        ...     async with OneInputHarness(operator) as harness:
        ...         await harness.run(harness.operator.process_run, run)
        ...         await harness.run(harness.end_input)
        ...         return harness.values
        >>> asyncio.run(main())
        [Record(city='Oslo', n=1, temp=None), Record(city='Rome', n=2, temp=20.5)]
    """

    takes_columns = True

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        into: str,
        columns: Sequence[str] | None = None,
        **calls: Any,
    ) -> None:
        super().__init__(function, **calls)
        batched = self.settings.batch is not None
        declared = Declared.by(function, batched=batched)
        names = called_with(function, declared, columns)
        self.into: str = into
        self._projection = None if names is None else declared.projection(names)
        self._narrow = (
            None
            if self._projection is None
            else Projector(self._projection, declared.form)
        )
        cache = calls.get("cache")
        readers = (
            self._read_key,
            self.settings.read_id,
            calls.get("weight"),
            None if cache is None else cache.key,
        )
        # What reads a field that the function is not called with gets whole records.
        self._calls_whole = names is not None and not read_no_others(readers, names)
        # A dict that was returned stays one, whatever the records are.
        self._added = Projector(
            WithColumns({into: pc.scalar(None)}), computed=DictForm()
        )
        self._column = ResultColumn(declared.returned)
        self._returned = declared.returned
        self._schema: pa.Schema | None = None

    def warm_up(self) -> Pending:
        return warmed()

    def result_fields(self, *fields: RecordFields | None) -> RecordFields | None:
        """Return the fields of records that get one more.

        Raises:
            RecordTypeError: If one is missing, or the new one is there.
        """
        (known,) = fields
        if known is None:
            return None
        check_into(self.into, known.names)
        if self._projection is not None:
            self._projection.plan(known.names)
        types = {**known.types, self.into: self._returned}
        return known.renewed((*known.names, self.into), "into", types)

    def _prepare(self) -> Pending:
        if self._calls_whole:
            self.function.call = self._narrowed(self.function.call)
        return super()._prepare()

    def process_run(self, run: Run) -> Pending:
        if not len(run):
            return None
        if isinstance(run, ArrowRun):
            self._schema = None if run.row_maker.special else run.schema
            self._check_into(run.schema.names)
            # Kept until the last of its calls is done.
            run.compact()
        else:
            for start, _ in record_groups(run.values):
                self._check_into(self._names_of(run.values[start]))
        self._whole = run
        return super().process_run(ListRun(self._values(run), run.timestamps))

    def _values(self, run: Run) -> list[Any]:
        """Return what the function is called with, or what says why it cannot be."""
        narrow = self._narrow
        if narrow is None or self._calls_whole:
            return run.values
        if isinstance(run, ArrowRun):
            try:
                return narrow.columns(run, []).values
            except RecordTypeError as error:
                return [_Unreadable(error)] * len(run)
        values: list[Any] = []
        for start, stop in record_groups(run.values):
            try:
                values += narrow.rows(run.slice(start, stop), []).values
            except RecordTypeError as error:
                values += [_Unreadable(error)] * (stop - start)
        return values

    def _narrowed(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that is called with whole records."""
        narrow = self._narrow
        assert narrow is not None, "only what is not whole is narrowed"

        def one(record: Any) -> Any:
            return function(narrow.rows(ListRun([record]), []).values[0])

        def several(records: list[Any]) -> Any:
            return function(
                [narrow.rows(ListRun([each]), []).values[0] for each in records]
            )

        return one if self.settings.batch is None else several

    def _row_flow(self, *parts: Any) -> RowFlow:
        return _ColumnFlow(*parts)

    def _new_emitter(self, *parts: Any) -> Emitter:
        return _ColumnEmitter(*parts, results=self._results)

    def _results(self, ready: ReadyRows) -> Iterator[Run]:
        """Yield the records of rows that are done, with the field more."""
        for _, group in groupby(ready.entries, lambda entry: id(entry.run)):
            entries = list(group)
            run = entries[0].run
            assert run is not None, "each row knows its run"
            places = [entry.place for entry in entries]
            if places[-1] - places[0] == len(places) - 1 and places == sorted(places):
                part = run.slice(places[0], places[-1] + 1)
            else:
                part = take_records(run, places)
            yield from self._with_results(part, [entry.result for entry in entries])

    def _with_results(self, part: Run, results: list[Any]) -> Iterator[Run]:
        results = self._column.as_declared(results)
        if isinstance(part, ArrowRun):
            column = self._column.of(results)
            if column is not None:
                yield self._added.columns(part, [column])
                return
        for start, stop in record_groups(part.values):
            yield self._added.rows(part.slice(start, stop), [results[start:stop]])

    def _check_into(self, names: Sequence[str]) -> None:
        """Refuse to replace a field.

        Raises:
            RecordTypeError: If there is one of that name.
        """
        try:
            check_into(self.into, names)
        except RecordTypeError as error:
            self._raise(error)

    def _names_of(self, record: Any) -> tuple[str, ...]:
        try:
            return record_shape(record).names
        except RecordTypeError as error:
            self._raise(error)

    def _raise(self, error: RecordTypeError) -> NoReturn:
        """Raise an error that names the operator."""
        context, function = self.context, describe(self.function.given)
        where = f"{named_operator(context.operator_name, context.uid)}"
        add_note(error, f"in {where}, for {function}")
        raise error

    def _records_of(self, entries: list[CallEntry]) -> list[Any]:
        """Return the whole records of rows, those of a run at once."""
        records: list[Any] = []
        for _, group in groupby(entries, lambda entry: id(entry.run)):
            mine = list(group)
            run = mine[0].run
            assert run is not None, "each row knows its run"
            records += take_records(run, [entry.place for entry in mine]).values
        return records

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the rows that have not been emitted, and which columns they have."""
        own = super().snapshot_own()
        if self._schema is None:
            return own
        schema = self._schema.serialize().to_pybytes()
        return own.with_list(_SCHEMA, [schema], RedistributionMode.MERGE)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Take over rows, as columns if they were columns."""
        super().restore_own(own)
        for schema in own.elements(_SCHEMA)[:1]:
            self._schema = pa.ipc.read_schema(pa.py_buffer(schema))

    def _entries_of(self, held: list[Any]) -> list[CallEntry]:
        if not held:
            return []
        stamps = [record[1] for record in held]
        times: list[int] | None = None
        if any(stamp is not None for stamp in stamps):
            times = [MIN_TIMESTAMP if stamp is None else stamp for stamp in stamps]
        run = _restored([record[0] for record in held], times, self._schema)
        values = self._values(run)
        entries = []
        for place, (value, record) in enumerate(zip(values, held, strict=True)):
            entry = CallEntry(value, *record[1:])
            entry.run, entry.place = run, place
            entries.append(entry)
        return entries


def check_into(into: str, names: Sequence[str]) -> None:
    """Refuse a new field whose name is among those that there are.

    Raises:
        RecordTypeError: If it is.
    """
    if into in names:
        raise RecordTypeError(
            "into",
            f"there is a field {into!r} already",
            "Choose another name, or drop the field first.",
        )


class _Unreadable:
    """Stands for a record that a function cannot be called with."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _ColumnFlow(RowFlow):
    """Ends rows whose fields cannot be read without a call."""

    def take(self, entry: CallEntry) -> None:
        if type(entry.value) is _Unreadable:
            self.refuse(entry, entry.value.error)
        else:
            super().take(entry)


class _ColumnEmitter(Emitter):
    def __init__(
        self, *parts: Any, results: Callable[[ReadyRows], Iterator[Run]]
    ) -> None:
        super().__init__(*parts)
        self._results = results

    def _emit_results(self, ready: ReadyRows) -> Pending:
        runs = self._results(ready)
        return in_turn(self._output.emit_run, ((run,) for run in runs))


def _restored(
    records: list[Any], times: list[int] | None, schema: pa.Schema | None
) -> Run:
    """Return records as the columns that they were; as rows if that cannot be."""
    if schema is None:
        return ListRun(records, times)
    try:
        shape = record_shape(records[0])
        form = form_of_class(type(records[0]), tuple(schema.names))
        picked = shape.picked(schema.names, records)
        arrays = [
            encoded_column(canonical_values(picked[each.name]), each) for each in schema
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        run = ArrowRun(batch, RowMaker(schema, form), times)
        # Of a run that came before, columns may have had other types.
        found = shape.picked(schema.names, run.values)
    except USER_ERRORS:
        return ListRun(records, times)
    same = all(repr(found[name]) == repr(picked[name]) for name in schema.names)
    return run if same else ListRun(records, times)
