"""Running results per key over columns: every record leads to an updated one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.accumulators import Values
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.cells import Cells
from aiomailbox.columnar.keys import Groups, KeySlots
from aiomailbox.columnar.types import KeyTypes, RowsNeededError
from aiomailbox.columnar.windows import (
    ColumnarOperator,
    ResultMaker,
    naming_output,
)
from aiomailbox.operators.core.operator import Output, Pending
from aiomailbox.operators.core.user_code import OnError, fail
from aiomailbox.operators.keyed.operators import KeyedAggregateOperator
from aiomailbox.records.run import Run
from aiomailbox.state.snapshot import KeyedStateSnapshot, SnapshotRows


class ColumnarAggregateOperator(ColumnarOperator, KeyedAggregateOperator):
    """Does what `KeyedAggregateOperator` does, on columns as long as it gets any.

    The accumulators of keys that columns came for are in arrays; a snapshot has them in
    the form of rows. With the first rows, or the first value for which only Python has
    the right result, all become rows, for good.

    Args:
        key: A selector of fields.
        aggregate: One for which `needs_rows` returns nothing.
        include_key: As in `KeyedAggregateOperator`.
        on_error: As in `KeyedAggregateOperator`.

    Example:
        >>> from aiomailbox.columnar.forms import NamedTupleForm
        >>> from aiomailbox.columnar.rows import RowMaker
        >>> from aiomailbox.operators.core.fields import field_or_function
        >>> from aiomailbox.operators.aggregates.functions import sum_
        >>> from aiomailbox.testing import OneInputHarness
        >>> batch = pa.record_batch({"user": ["a", "b", "a"], "amount": [2, 3, 4]})
        >>> run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
        >>> key = field_or_function("user", "key")
        >>> operator = ColumnarAggregateOperator(key, sum_("amount"))
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.operator.process_run(run)
        ...     harness.values
        [2, 3, 6]
    """

    def __init__(
        self,
        key: Any,
        aggregate: Any,
        *,
        include_key: bool = False,
        on_error: OnError = fail,
    ) -> None:
        super().__init__(key, aggregate, include_key=include_key, on_error=on_error)
        # It reads fields, which not every key function does.
        self._key_fields: Any = key
        names = None if aggregate.names is None else ("key", *aggregate.names)
        self._pairs = include_key and names is None
        key_fields = () if self._key_fields.is_alone else self._key_fields.fields
        if self._pairs:
            names = ("key", "value")
        self._maker = ResultMaker(names, key_fields, are_tuples=self._pairs)
        self._cells = Cells(aggregate)
        self._slots = KeySlots(self._begin)
        self._key_types = KeyTypes()
        # Whether the columns of any results have been read.
        self._are_read = False

    def setup(self, context: Any, output: Output) -> None:
        """Take the context, and an output that keeps the names of fields."""
        super().setup(context, naming_output(output, self._maker))
        store = context.keyed_state
        context.metrics.gauge(
            "state_keys",
            lambda: (
                len(self._slots.keys) if self._is_columnar else store.estimated_keys()
            ),
        )
        context.metrics.gauge(
            "state_bytes", lambda: None if self._is_columnar else store.size_bytes()
        )

    def process_run(self, run: Run) -> Pending:
        if self._is_columnar:
            if not len(run):
                return None
            self.begin_run(run)
            try:
                made = self._rolled(run)
            except RowsNeededError as reason:
                self._go_to_rows(str(reason))
            else:
                return self.output.emit_run(made)
        return super().process_run(run)

    def snapshot_apart(self) -> Iterable[KeyedStateSnapshot]:
        """Hold on to what the arrays have, for a thread to make rows of."""
        keys = self._slots.keys
        # More keys may be added.
        last = len(keys)
        cells = self._cells.frozen(last)

        def columns(count: int) -> Iterator[tuple[list[Any], ...]]:
            for start in range(0, last, count):
                mine = np.arange(start, min(start + count, last))
                yield keys[start : start + len(mine)], cells.accumulators(mine)

        rows = SnapshotRows(2, columns)
        return [self.snapshot_of([(self._state, rows)], namespaced=False)]

    def _rolled(self, run: Run) -> Run:
        """Return the results of a run of columns.

        Raises:
            RowsNeededError: If the rows have to be asked; nothing has been changed.
        """
        if type(run) is not ArrowRun:
            raise RowsNeededError("records came as rows")
        slots = self._slots_by(self._key_fields, run)
        if not self._key_fields.is_alone:
            kinds = [run.schema.field(each).type for each in self._key_fields.fields]
            self._key_types.add(kinds, self._slots.keys, alone=False)
        # After new keys: what a restore has brought of them has a type, too.
        values = self._cells.read(run)
        keys = len(self._slots.places)
        if not self._are_read and keys <= len(run):
            try:
                self._cells.check(values, np.arange(keys), len(run))
            except RowsNeededError:
                # It may have been too careful.
                pass
            else:
                return self._deferred(run, values, slots)
        groups = Groups(slots, keys)
        self._cells.check(values, groups.used, int(groups.lengths.max()))
        made = self._cells.roll(values, groups, groups.used)
        return self._results(self._key_column(run, slots), made, run.event_times)

    def _deferred(
        self, run: ArrowRun, values: list[Values], slots: np.ndarray
    ) -> ArrowRun:
        """Add the records, and make a column of what that led to when it is asked for.

        Where records are only counted, or few are kept, it never is.
        """
        keys = len(self._slots.places)
        before = self._cells.copied(slice(0, keys))
        self._cells.add(values, slots, keys)
        times = run.event_times
        key = self._key_column(run, slots)
        make = partial(self._made_of, before, values, slots, key, times)
        return ArrowRun.deferred(len(run), make, times)

    def _made_of(
        self,
        before: Cells,
        values: list[Values],
        slots: np.ndarray,
        key: pa.Array | None,
        times: np.ndarray | None,
    ) -> ArrowRun:
        """Return the results of records; see `roll`. In any thread."""
        # From now on they are made at once.
        self._are_read = True
        groups = Groups(slots, before.size)
        cells = before.copied(groups.used)
        made = cells.roll(values, groups, np.arange(len(groups.used)))
        return self._results(key, made, times)

    def _begin(self, new: list[Any]) -> None:
        """Prepare the cells of new keys, with what a restore has put into rows."""
        self._keys.check(new)
        cells, table = self._cells, self._table
        first = len(self._slots.places)
        cells.grow(first + len(new))
        kept = [place for place, key in enumerate(new) if table.get(key) is not None]
        if kept:
            accumulators = [table.get(new[place]) for place in kept]
            cells.load(np.array(kept) + first, accumulators)
            for place in kept:
                table.remove(new[place])

    def _results(
        self, key: pa.Array | None, made: list[pa.Array], times: np.ndarray | None
    ) -> ArrowRun:
        return self._maker.run(made if key is None else [key, *made], times)

    def _key_column(self, run: ArrowRun, slots: np.ndarray) -> pa.Array | None:
        """Return the column of keys that results have; None if they have none."""
        if not self._pairs and self._with_key is None:
            return None
        if self._key_fields.is_alone:
            return run.column(self._key_fields.fields[0])
        keys = self._slots.keys
        named = [keys[slot] for slot in slots.tolist()]
        return self._maker.key_column(named, self._key_types.types)

    def _load_next(self, count: int) -> int:
        # Accumulators are taken over with the first record of their key.
        return 0

    def _give_back(self) -> int:
        keys = self._slots.keys
        found = self._cells.accumulators(np.arange(len(keys)))
        for key, accumulator in zip(keys, found, strict=True):
            self._table.put(key, accumulator)
        return len(keys)
