"""Makes joined records of pairs, from columns and from rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.decode import column_decoder, decoded
from aiomailbox.columnar.evaluator import record_kind
from aiomailbox.columnar.expressions import ExpressionOperator
from aiomailbox.columnar.fields import class_hints, record_shape
from aiomailbox.columnar.forms import (
    DictForm,
    NamedTupleForm,
    RecordForm,
    StructBuilder,
    changed_form,
)
from aiomailbox.columnar.forwarding import ForwardingOutput
from aiomailbox.columnar.pair_run import PairRun
from aiomailbox.columnar.pairing import PairFields, PairPlan, Place
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.operators.core.contract import Operator, Output, Pending, then
from aiomailbox.operators.core.on_error import OnError, fail
from aiomailbox.records.run import ListRun, Run

__all__ = ["PairSelection", "selecting"]

# A plan is kept for so many kinds of pairs; dicts may have any keys.
_PLANS_MAX: Final = 64


class PairSelection(ExpressionOperator):
    """Makes joined records of runs of pairs.

    Pairs come as a `PairRun`, or as rows ``(left, right)``. Joined records are dicts
    where left records are, else NamedTuples.

    Args:
        fields: What the records get.
        on_error: What to do with a pair for which that fails.

    Example:
        >>> import pyarrow.compute as pc
        >>> from aiomailbox.columnar.pairing import pair_fields
        >>> from aiomailbox.testing import OneInputHarness
        >>> gain = pc.field("left.price") - pc.field("right.price")
        >>> fields = pair_fields(("id",), {"gain": gain}, {"id"})
        >>> with OneInputHarness(PairSelection(fields)) as harness:
        ...     pair = {"id": 7, "price": 5}, {"id": 7, "price": 3}
        ...     harness.process_run([pair])
        ...     harness.values
        [{'id': 7, 'gain': 2}]
    """

    def __init__(self, fields: PairFields, on_error: OnError = fail) -> None:
        super().__init__(fields.expressions, on_error)
        self._fields = fields
        self._plans: dict[Any, _Plan] = {}
        self._makers: tuple[RowMaker, RowMaker] | None = None
        self._maker: RowMaker | None = None

    def parts(self, run: Run) -> Iterator[Any]:
        """Yield parts of a run whose pairs are of one kind."""
        if isinstance(run, PairRun):
            yield run
            return
        stop = 0
        for _, group in groupby(run.values, _pair_kind):
            start, stop = stop, stop + len(list(group))
            yield run.slice(start, stop)

    def result(self, run: Run) -> Run:
        """Return the joined records of pairs of one kind."""
        if isinstance(run, PairRun):
            return self._of_columns(run)
        lefts, rights = map(list, zip(*run.values, strict=True))
        shapes = record_shape(lefts[0]), record_shape(rights[0])
        plan = self._plan(
            (shapes[0].names, shapes[1].names),
            tuple(shape.record_type for shape in shapes),
        )
        form: RecordForm
        form = DictForm() if isinstance(lefts[0], dict) else NamedTupleForm()
        picked = [
            shape.picked(plan.of_side(side), records)
            for side, (shape, records) in enumerate(
                zip(shapes, (lefts, rights), strict=True)
            )
        ]
        computed = self._computed_rows(plan, picked, len(lefts), form)
        columns = [
            computed[origin]
            if isinstance(origin, int)
            else picked[origin[0]][origin[1]]
            for _, origin in plan.outputs
        ]
        build = form.builder(self._fields.names)
        return ListRun(build(columns, len(lefts)), run.timestamps)

    def _computed_rows(
        self, plan: _Plan, picked: list[dict[str, list[Any]]], count: int, form: Any
    ) -> list[list[Any]]:
        if not self.evaluator.expressions:
            return []
        columns = [picked[side][name] for side, name in plan.read.values()]
        records = plan.form.builder(tuple(plan.read))(columns, count)
        computed = self.evaluator.evaluate(ListRun(records))
        names = [name for name, origin in plan.outputs if isinstance(origin, int)]
        return [
            decoded(column_decoder(column.type, form, (name,)), column, name)
            for name, column in zip(names, computed, strict=True)
        ]

    def _of_columns(self, run: PairRun) -> Run:
        sides = run.left, run.right
        makers = run.left.row_maker, run.right.row_maker
        classes = tuple(getattr(each.form, "record_type", None) for each in makers)
        names = run.left.schema.names, run.right.schema.names
        plan = self._plan((tuple(names[0]), tuple(names[1])), classes)
        computed: list[pa.Array] = []
        if self.evaluator.expressions:
            columns = [sides[side].column(name) for side, name in plan.read.values()]
            computed = self.evaluator.evaluate(
                self._read_run(plan, columns, makers, len(run))
            )
        batch = pa.RecordBatch.from_arrays(
            [
                computed[origin]
                if isinstance(origin, int)
                else sides[origin[0]].column(origin[1])
                for _, origin in plan.outputs
            ],
            names=list(self._fields.names),
        )
        maker = self._maker
        if maker is None or self._makers != makers or maker.schema != batch.schema:
            origins = {
                name: origin
                for name, origin in plan.outputs
                if not isinstance(origin, int)
            }
            form = _joined_form(makers, origins, batch.schema)
            maker = RowMaker(batch.schema, form, _special(makers, origins))
            self._maker, self._makers = maker, makers
        return ArrowRun(batch, maker, run.times)

    def _read_run(
        self,
        plan: _Plan,
        columns: list[pa.Array],
        makers: tuple[RowMaker, RowMaker],
        count: int,
    ) -> ArrowRun:
        """Return what expressions read as a run of its own."""
        if not columns:
            # A batch without columns would have no records.
            columns, names = [pa.nulls(count)], ["\0"]
            schema = pa.schema([("\0", pa.null())])
            return ArrowRun(
                pa.RecordBatch.from_arrays(columns, schema=schema),
                RowMaker(schema, DictForm()),
            )
        names = list(plan.read)
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        if plan.maker is None or plan.makers != makers:
            plan.makers = makers
            plan.maker = None
        if plan.maker is None or plan.maker.schema != batch.schema:
            special = _special(makers, plan.read)
            plan.maker = RowMaker(batch.schema, plan.form, special)
        return ArrowRun(batch, plan.maker)

    def _plan(
        self, names: tuple[tuple[str, ...], tuple[str, ...]], classes: tuple[Any, ...]
    ) -> _Plan:
        known = self._plans.get((names, classes))
        if known is None:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            known = _Plan(self._fields.plan(*names), classes)
            self._plans[names, classes] = known
        return known


class _Plan:
    """What becomes of pairs of one kind.

    Args:
        plan: The fields.
        classes: Those of the left and of the right records; None if there is none.
    """

    __slots__ = ("form", "maker", "makers", "outputs", "read")

    def __init__(self, plan: PairPlan, classes: tuple[Any, ...]) -> None:
        self.outputs = plan.outputs
        self.read = plan.read
        self.form = _ReadForm(plan.read, [class_hints(each) for each in classes])
        self.maker: RowMaker | None = None
        self.makers: tuple[RowMaker, RowMaker] | None = None

    def of_side(self, side: int) -> list[str]:
        """Return the fields of a side that are kept or read."""
        places = [place for _, place in self.outputs if not isinstance(place, int)]
        places += self.read.values()
        return list(dict.fromkeys(name for where, name in places if where == side))


class _ReadForm:
    """Records of what expressions read: dicts, as names have dots.

    Their class has the annotations of the fields, which decide what a column is that
    was a whole number so far.
    """

    def __init__(self, read: dict[str, Place], hints: Sequence[dict[str, Any]]) -> None:
        annotations = {
            name: hints[side][field]
            for name, (side, field) in read.items()
            if field in hints[side]
        }
        self.record_type: type[Any] = type(
            "Pair", (dict,), {"__annotations__": annotations}
        )

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        make: Any = self.record_type

        def build(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            if not columns:
                return [make() for _ in range(count)]
            return [
                make(zip(names, row, strict=True)) for row in zip(*columns, strict=True)
            ]

        return build

    def nested(self, name: str) -> RecordForm:
        return NamedTupleForm()


def _joined_form(
    makers: tuple[RowMaker, RowMaker], origins: dict[str, Place], schema: pa.Schema
) -> RecordForm:
    inner = {
        name: makers[side].form.nested(field)
        for name, (side, field) in origins.items()
        if pa.types.is_nested(schema.field(name).type)
    }
    return changed_form(makers[0].form, inner)


def _special(
    makers: tuple[RowMaker, RowMaker], origins: dict[str, Place]
) -> dict[tuple[str, ...], Any]:
    """Return the functions for columns whose plain values mean something else."""
    special: dict[tuple[str, ...], Any] = {}
    for name, (side, field) in origins.items():
        special |= makers[side].special_of(field, name)
    return special


class SelectedOutput(ForwardingOutput):
    """An operator's output to which pairs are given, and that gets joined records.

    Args:
        output: The output.
        selection: Makes joined records of pairs.
    """

    def __init__(self, output: Output, selection: PairSelection) -> None:
        super().__init__(output)
        self.emit_run: Callable[[Run], Pending] = selection.process_run


def selecting(
    make: Callable[..., Operator], fields: PairFields, on_error: OnError
) -> Operator:
    """Return an operator that emits joined records, made of one that emits pairs.

    Args:
        make: Makes the operator.
        fields: What the records get.
        on_error: What to do with a pair for which that fails.
    """
    operator = make()
    selection = PairSelection(fields, on_error)
    set_up, begin = operator.setup, operator.open

    def setup(context: Any, output: Output) -> None:
        selection.setup(context, output)
        set_up(context, SelectedOutput(output, selection))

    def open_both() -> Pending:
        return then(selection.open(), begin)

    # Of this one.
    operator.setup = setup  # type: ignore[method-assign]
    operator.open = open_both  # type: ignore[method-assign]
    return operator


def _pair_kind(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return record_kind(pair[0]), record_kind(pair[1])
