"""Functions of whole batches: Arrow, Polars, pandas or numpy in and out."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.encode import BatchMaker, is_one_batch, warmed
from aiomailbox.columnar.forms import DictForm, NamedTupleForm, RecordForm
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.types import (
    cast_plain,
    promoted,
    unified_schema,
    without_views,
)
from aiomailbox.errors import (
    AioMailboxError,
    MissingExtraError,
    RecordTypeError,
    WrongTypeError,
    add_note,
    named_operator,
)
from aiomailbox.operators.core.failures import USER_ERRORS, raise_as
from aiomailbox.operators.core.operator import Operator, Pending, finished, in_turn
from aiomailbox.operators.core.user_code import (
    check_function,
    check_run_in,
    describe,
    is_async_callable,
    refuse_generator,
)
from aiomailbox.records.run import Run
from aiomailbox.signatures import check_choice
from aiomailbox.supervision import run_in_thread

_Arrays = dict[str, np.ndarray]


class MapBatchesOperator(Operator):
    """Replaces each batch of records by what a function makes of it.

    Batches are as they come: their borders mean nothing. A batch is done before the
    next one, and before the watermark, barrier or end that follows it.

    Args:
        function: ``function(batch)`` → a batch, sync or ``async def``.
        form: What the function gets and returns: ``"arrow"`` (a RecordBatch; a Table
            may be returned), ``"polars"`` or ``"pandas"`` (a DataFrame), ``"numpy"`` (a
            dict of arrays). An array that is returned as it was given is the column that
            it was, null and all.
        run_in: ``"thread"`` for a sync function that blocks.
        timestamps: A column of the result with event times; None to keep those that the
            records have, one by one.

    Attributes:
        form: What was given.

    Raises:
        InvalidArgumentError: If there is no such form, ``run_in`` is not known, an
            ``async def`` function is to run in a thread, or it is a generator.
        MissingExtraError: If the form's library is not installed.
        WrongTypeError: If the function cannot be called with a batch, or ``timestamps``
            is no name.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> def double(batch):
        ...     return pa.record_batch({"n": pa.compute.multiply(batch["n"], 2)})
        >>> with OneInputHarness(MapBatchesOperator(double)) as harness:
        ...     harness.process_run([{"n": 1}, {"n": 2}])
        ...     harness.values
        [{'n': 2}, {'n': 4}]
    """

    takes_columns = True

    def __init__(
        self,
        function: Callable[[Any], Any],
        form: str = "arrow",
        *,
        run_in: str = "loop",
        timestamps: str | None = None,
    ) -> None:
        self.function: Callable[[Any], Any] = check_function(
            function, "function", arity=1
        )
        refuse_generator(function, "function", "Return one batch.")
        if not isinstance(timestamps, str | None):
            raise WrongTypeError(
                "timestamps",
                f"{timestamps!r} is not the name of a column",
                'Write timestamps="ms".',
            )
        check_choice(form, "form", *_FORMS)
        library = _LIBRARIES.get(form)
        if library and importlib.util.find_spec(library) is None:
            raise MissingExtraError(f'form="{form}"', library)
        self._is_async = is_async_callable(function)
        check_run_in(run_in, function)
        self.form: str = form
        self._to, self._from = _FORMS[form]
        self._thread = run_in == "thread"
        self._timestamps = timestamps
        self._batch_maker = BatchMaker()
        self._makers: dict[bool, RowMaker] = {}
        self._count = 0
        self._schema: pa.Schema | None = None

    def warm_up(self) -> Pending:
        return warmed()

    def process_run(self, run: Run) -> Pending:
        """Emit what the function makes of the records."""
        if isinstance(run, ArrowRun):
            return self._process(run, run.batch) if len(run) else None
        if not len(run):
            return None
        return in_turn(self._process_rows, ((part,) for part in _parts(run)))

    def _process_rows(self, run: Run) -> Pending:
        batches = self._batch_maker.batches(run)
        return in_turn(self._process, ((run, batch) for batch in batches))

    def _process(self, run: Run, batch: pa.RecordBatch) -> Pending:
        self._count += 1
        given = self._given(run, batch)
        # The function may well put other arrays into its dict.
        arrays = dict(given) if isinstance(given, dict) else {}
        if self._thread or self._is_async:
            return self._process_later(run, batch, given, arrays)
        try:
            result = self.function(given)
        except USER_ERRORS as error:
            raise_as(self.user_error(error), error)
        return self.output.emit_run(self._made(run, batch, arrays, result))

    async def _process_later(
        self, run: Run, batch: pa.RecordBatch, given: Any, arrays: _Arrays
    ) -> None:
        try:
            if self._thread:
                result = await run_in_thread(self.function, given)
            else:
                result = await self.function(given)
        except USER_ERRORS as error:
            raise_as(self.user_error(error), error)
        await finished(self.output.emit_run(self._made(run, batch, arrays, result)))

    def _given(self, run: Run, batch: pa.RecordBatch) -> Any:
        """Return what the function is called with.

        Raises:
            RecordTypeError: If the form has nothing for a column.
        """
        try:
            return self._to(batch)
        except USER_ERRORS as error:
            refused = RecordTypeError(
                "form",
                f"a batch cannot be given as {self.form}: {error}",
                'Leave such columns out before, or take form="arrow".',
            )
            raise self._placed(refused, run) from error

    def _made(
        self, run: Run, batch: pa.RecordBatch, arrays: _Arrays, result: Any
    ) -> Run:
        """Return what the function returned as a run.

        Args:
            run: What it was called for.
            batch: The columns of that.
            arrays: The arrays of these columns that it was given, by their names.
            result: What it returned.

        Raises:
            RecordTypeError: If it is no batch, or its records have no event times.
        """
        try:
            made = self._from(result, arrays, batch)
        except USER_ERRORS as error:
            refused = RecordTypeError(
                "function",
                f"its result has a column that Arrow cannot hold: {error}",
                "Return values of one type in each column.",
            )
            raise self._placed(refused, run) from error
        try:
            if made is None:
                raise RecordTypeError(
                    "function",
                    f"it returned {type(result).__name__}, which is not a batch of "
                    "its form",
                    f"Return {_RETURNED[self.form]}, or choose another form=.",
                )
            return self._timed(run, self._unified(made))
        except AioMailboxError as error:
            raise self._placed(error, run) from error.__cause__

    def _placed(self, error: AioMailboxError, run: Run) -> AioMailboxError:
        """Return an error that names the operator, the batch and the function."""
        context = self.context
        add_note(
            error,
            f"in {named_operator(context.operator_name, context.uid)}, for batch "
            f"{self._count} of {len(run)} records, by {describe(self.function)}",
        )
        return error

    def _unified(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with all columns that there were before, in types for all.

        Raises:
            RecordTypeError: If there are no such types.
        """
        schema, batch = self._schema, without_views(batch)
        if schema is not None and not batch.schema.equals(schema):
            try:
                schema = unified_schema(schema, batch.schema)
                batch = promoted(batch, schema)
            except pa.ArrowException as error:
                raise RecordTypeError(
                    "function",
                    "the columns that it returned differ from those of earlier "
                    f"batches: {error}",
                    "Return columns of the same types for each batch.",
                ) from error
        self._schema = batch.schema
        return batch

    def _timed(self, run: Run, batch: pa.RecordBatch) -> Run:
        maker = self._maker_for(run, batch.schema)
        if self._timestamps is not None:
            made = ArrowRun(batch, maker)
            return made.timed_by(self._timestamps) if len(made) else made
        times = run.event_times if isinstance(run, ArrowRun) else run.timestamps
        made = ArrowRun(batch, maker, times)
        if times is None:
            return made
        if len(made) != len(run):
            raise RecordTypeError(
                "function",
                f"it returned {len(made)} records for {len(run)}, so that their "
                "event times are unknown",
                'Return as many, or name a column of event times: timestamps="ms".',
            )
        return made

    def _maker_for(self, run: Run, schema: pa.Schema) -> RowMaker:
        if isinstance(run, ArrowRun):
            are_dicts = isinstance(run.row_maker.form, DictForm)
        else:
            are_dicts = isinstance(run.values[0], dict)
        maker = self._makers.get(are_dicts)
        if maker is None or not maker.schema.equals(schema):
            form: RecordForm = DictForm() if are_dicts else NamedTupleForm()
            maker = self._makers[are_dicts] = RowMaker(schema, form)
        return maker


def _parts(run: Run) -> Iterator[Run]:
    """Yield records together, but batches that are records one by one."""
    stop = 0
    for is_batch, group in groupby(run.values, is_one_batch):
        start, stop = stop, stop + len(list(group))
        ends = range(start + 1, stop + 1) if is_batch else (stop,)
        for end in ends:
            yield run.slice(start, end)
            start = end


def _as_it_is(batch: pa.RecordBatch) -> Any:
    return batch


def _of_arrow(
    result: Any, arrays: Any = None, batch: Any = None
) -> pa.RecordBatch | None:
    if isinstance(result, pa.RecordBatch):
        return result
    if not isinstance(result, pa.Table):
        return None
    try:
        combined = result.combine_chunks()
    except pa.ArrowInvalid:
        # Not all dictionaries can become one.
        combined = _without_dictionaries(result).combine_chunks()
    batches = combined.to_batches()
    if len(batches) > 1:
        raise ValueError("it does not fit into one batch")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], result.schema)


def _without_dictionaries(table: pa.Table) -> pa.Table:
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            plain = table.column(place).cast(field.type.value_type)
            table = table.set_column(place, field.name, plain)
    return table


def _to_polars(batch: pa.RecordBatch) -> Any:
    return importlib.import_module("polars").from_arrow(_with_days(batch))


def _with_days(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch without dates in milliseconds, which would become moments."""
    for place, field in enumerate(batch.schema):
        if pa.types.is_date64(field.type):
            days = cast_plain(batch.column(place), pa.date32())
            batch = batch.set_column(place, field.name, days)
    return batch


def _of_polars(
    result: Any, arrays: _Arrays, batch: pa.RecordBatch
) -> pa.RecordBatch | None:
    return _of_arrow(result.to_arrow()) if hasattr(result, "to_arrow") else None


def _to_pandas(batch: pa.RecordBatch) -> Any:
    return batch.to_pandas()


def _of_pandas(
    result: Any, arrays: _Arrays, batch: pa.RecordBatch
) -> pa.RecordBatch | None:
    if not hasattr(result, "iterrows"):
        return None
    # Arrow would share the memory, which the function may fill again.
    return pa.RecordBatch.from_pandas(result.copy(), preserve_index=False)


def _to_numpy(batch: pa.RecordBatch) -> _Arrays:
    columns: _Arrays = {}
    batch = _with_days(batch)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        columns[name] = column.to_numpy(zero_copy_only=False)
        # Many share the memory of the batch, and what is returned stands for its column.
        columns[name].flags.writeable = False
    return columns


def _of_numpy(
    result: Any, arrays: _Arrays, batch: pa.RecordBatch
) -> pa.RecordBatch | None:
    """Return arrays as a batch; those that were given are the columns that they were.

    An array has no null, no time zone and no decimals.
    """
    if not isinstance(result, dict):
        return None
    kept = {id(array): batch.column(name) for name, array in arrays.items()}
    return pa.RecordBatch.from_pydict(
        {
            name: kept[id(column)] if id(column) in kept else _column_of(column)
            for name, column in result.items()
        }
    )


def _column_of(array: Any) -> pa.Array:
    # The function may fill the same memory again while the batch is waiting, maybe
    # by another array than this one.
    return pa.array(array.copy() if isinstance(array, np.ndarray) else array)


# How a batch is given to the function, and made of what it returns.
_FORMS: Final[dict[str, tuple[Callable[[Any], Any], Callable[..., Any]]]] = {
    "arrow": (_as_it_is, _of_arrow),
    "polars": (_to_polars, _of_polars),
    "pandas": (_to_pandas, _of_pandas),
    "numpy": (_to_numpy, _of_numpy),
}
_LIBRARIES: Final = {"polars": "polars", "pandas": "pandas"}
_RETURNED: Final = {
    "arrow": "a pyarrow.RecordBatch or Table",
    "polars": "a polars.DataFrame",
    "pandas": "a pandas.DataFrame",
    "numpy": "a dict of arrays",
}
