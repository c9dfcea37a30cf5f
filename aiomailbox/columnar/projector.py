"""Makes runs of other fields, from columns and from rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.fields import record_shape
from aiomailbox.columnar.forms import DictForm, NamedTupleForm, RecordForm
from aiomailbox.columnar.projection import Plan, Projection, form_for
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.records.run import ListRun, Run

__all__ = ["Projector", "row_form"]


class Projector:
    """Makes what a projection says of the runs of one stream.

    Args:
        projection: Which fields.
        form: What the records become; None for dicts of dicts, NamedTuples of others.
        computed: What structs inside of what is computed become; None for the same.

    Example:
        >>> from aiomailbox.columnar.projection import Select
        >>> run = ListRun([{"city": "Oslo", "visits": 3}])
        >>> Projector(Select(names=("city",))).rows(run, []).values
        [{'city': 'Oslo'}]
    """

    def __init__(
        self,
        projection: Projection,
        form: RecordForm | None = None,
        computed: RecordForm | None = None,
    ) -> None:
        self._projection = projection
        self._form = form
        self._computed = computed
        self._from: RowMaker | None = None
        self._maker: RowMaker | None = None

    def columns(self, run: ArrowRun, computed: list[pa.Array]) -> ArrowRun:
        """Return columns with the fields of the projection.

        Args:
            run: The records.
            computed: A column for each expression of the projection.

        Raises:
            RecordTypeError: If there is no field that is named.
        """
        plan = self._projection.plan(run.schema.names)
        batch = pa.RecordBatch.from_arrays(
            [
                run.column(origin) if isinstance(origin, str) else computed[origin]
                for _, origin in plan
            ],
            names=[name for name, _ in plan],
        )
        return ArrowRun(
            batch, self._maker_for(run, plan, batch.schema), run.event_times
        )

    def rows(self, run: Run, computed: list[list[Any]]) -> ListRun:
        """Return rows with the fields of the projection; those of a run of one kind.

        Raises:
            RecordTypeError: If there is no field that is named.
        """
        values = run.values
        form = self._form or row_form(run)
        shape = record_shape(values[0])
        plan = self._projection.plan(shape.names)
        build = form.builder(tuple(name for name, _ in plan))
        kept = shape.picked([each for _, each in plan if isinstance(each, str)], values)
        columns = [
            kept[origin] if isinstance(origin, str) else computed[origin]
            for _, origin in plan
        ]
        return ListRun(build(columns, len(values)), run.timestamps)

    def _maker_for(self, run: ArrowRun, plan: Plan, schema: pa.Schema) -> RowMaker:
        maker, source = self._maker, run.row_maker
        if maker is None or source is not self._from or maker.schema != schema:
            special: dict[tuple[str, ...], Any] = {}
            for name, origin in plan:
                if isinstance(origin, str):
                    special |= source.special_of(origin, name)
            form = self._form or form_for(source.form, plan, schema, self._computed)
            maker = RowMaker(schema, form, special)
            self._maker, self._from = maker, source
        return maker


def row_form(run: Run) -> RecordForm:
    """Return what rows become whose fields change: dicts of dicts, else NamedTuples."""
    return DictForm() if isinstance(run.values[0], dict) else NamedTupleForm()
