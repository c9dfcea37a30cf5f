"""Operators written as Arrow expressions: columns in, columns out; rows in, rows out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiomailbox.columnar.arrow_run import ArrowRun, as_bools
from aiomailbox.columnar.decode import column_decoder, decoded
from aiomailbox.columnar.encode import warmed
from aiomailbox.columnar.evaluator import (
    EVALUATION_ERRORS,
    Evaluator,
    boolean,
    check_expression,
    check_reads,
    record_groups,
)
from aiomailbox.columnar.forms import (
    DictForm,
    NamedTupleForm,
    RecordForm,
    changed_form,
    record_shape,
)
from aiomailbox.columnar.rows import RowMaker, maker_of_fields
from aiomailbox.errors import RecordTypeError, UnsupportedColumnError
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.core.operator import Operator, Output, Pending, in_turn, then
from aiomailbox.operators.core.user_code import OnError, check_on_error, fail
from aiomailbox.records.run import ListRun, Run

# Which columns come out of select, with_columns, drop and rename.


# New names in order, each with the field that it is, or the number of an expression.
Plan = list[tuple[str, str | int]]


@dataclass(frozen=True)
class Projection:
    """Makes records of other fields from those of a stream.

    Attributes:
        expressions: What is computed.
    """

    expressions: dict[str, pc.Expression] = field(default_factory=dict)

    def plan(self, names: Sequence[str]) -> Plan:
        """Return what records with fields of these names become.

        Raises:
            RecordTypeError: If there is no field that is named.
        """
        raise TypeError(f"{type(self).__name__} defines no plan")

    def computed(self) -> Plan:
        """Return the fields that are computed."""
        return [(name, index) for index, name in enumerate(self.expressions)]


@dataclass(frozen=True)
class Select(Projection):
    """Keeps some fields, and renames or computes others.

    Attributes:
        names: The fields to keep.
        named: New names in order, each with the name of a field, or None for the next of
            what is computed; None for all that is computed.
        parameter: Where the fields to keep were named, for errors.
    """

    names: tuple[str, ...] = ()
    named: Mapping[str, str | None] | None = None
    parameter: str = "names"

    def plan(self, names: Sequence[str]) -> Plan:
        """Return the fields that are named, then those that are renamed or computed."""
        named = dict.fromkeys(self.expressions) if self.named is None else self.named
        renamed = [old for old in named.values() if old is not None]
        _check_names([*self.names, *renamed], names, self.parameter)
        numbers = dict(self.computed())
        kept: Plan = [(name, name) for name in self.names]
        return kept + [(name, old or numbers[name]) for name, old in named.items()]


@dataclass(frozen=True)
class WithColumns(Projection):
    """Keeps all fields, and computes some, which stand where they stood before."""

    def plan(self, names: Sequence[str]) -> Plan:
        """Return all fields, and behind them those that are new."""
        numbers = dict(self.computed())
        kept: Plan = [(name, numbers.pop(name, name)) for name in names]
        return kept + list(numbers.items())


@dataclass(frozen=True)
class Drop(Projection):
    """Keeps all fields but some."""

    names: tuple[str, ...] = ()

    def plan(self, names: Sequence[str]) -> Plan:
        """Return the other fields."""
        _check_names(self.names, names)
        left: Plan = [(name, name) for name in names if name not in self.names]
        if not left:
            raise RecordTypeError("names", "no field is left", "Keep at least one.")
        return left


@dataclass(frozen=True)
class Rename(Projection):
    """Gives fields other names."""

    names: Mapping[str, str] = field(default_factory=dict)

    def plan(self, names: Sequence[str]) -> Plan:
        """Return all fields, in their order."""
        _check_names(list(self.names), names)
        renamed = [self.names.get(name, name) for name in names]
        twice = next((name for name in renamed if renamed.count(name) > 1), None)
        if twice is not None:
            raise RecordTypeError(
                "names",
                f"there would be two fields {twice!r}",
                "Rename the other one, too, or drop it before.",
            )
        return list(zip(renamed, names, strict=True))


def _check_names(
    asked: Sequence[str], names: Sequence[str], parameter: str = "names"
) -> None:
    for name in asked:
        if name not in names:
            raise RecordTypeError(
                parameter,
                f"there is no field {name!r}",
                f"The fields are: {', '.join(names)}.",
            )


# Makes runs of other fields, from columns and from rows.


class Projector:
    """Makes what a projection says of the runs of one stream.

    Args:
        projection: Which fields.
        form: What the records become; None for dicts of dicts, NamedTuples of others.
        computed: What structs inside of what is computed become; None for the same.

    Example:
        >>> from aiomailbox.columnar.expressions import Select
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
            origins = {
                name: (source, origin)
                for name, origin in plan
                if isinstance(origin, str)
            }
            maker = maker_of_fields(
                schema, origins, lambda inner: self._form_of(source, plan, inner)
            )
            self._maker, self._from = maker, source
        return maker

    def _form_of(
        self, source: RowMaker, plan: Plan, inner: dict[str, RecordForm]
    ) -> RecordForm:
        """Return what records become: dicts stay dicts, all others are NamedTuples."""
        if self._form is not None:
            return self._form
        if self._computed is not None:
            for name, origin in plan:
                if not isinstance(origin, str):
                    inner[name] = self._computed
        return changed_form(source.form, inner)


def row_form(run: Run) -> RecordForm:
    """Return what rows become whose fields change: dicts of dicts, else NamedTuples."""
    return DictForm() if isinstance(run.values[0], dict) else NamedTupleForm()


def evaluated_parts(
    run: Run, evaluate: Callable[[Run], Any]
) -> Iterator[tuple[Run, Any, Exception | None]]:
    """Yield parts of a run with what comes of them, or with the error of one record.

    A part that fails is halved until the record is found.
    """
    if not len(run):
        return
    try:
        made = evaluate(run)
    except EVALUATION_ERRORS as error:
        if len(run) == 1:
            # Its lines are Arrow's: messages name the expression instead.
            yield run, None, error.with_traceback(None)
            return
        middle = len(run) // 2
        yield from evaluated_parts(run.slice(0, middle), evaluate)
        yield from evaluated_parts(run.slice(middle, len(run)), evaluate)
        return
    yield run, made, None


class ExpressionOperator(Operator):
    """Evaluates expressions over runs, and makes runs from what they give.

    Args:
        expressions: What to evaluate.
        on_error: How to handle a record for which that fails.
    """

    takes_columns = True

    def __init__(
        self, expressions: Sequence[pc.Expression], on_error: OnError = fail
    ) -> None:
        self.evaluator: Evaluator = Evaluator(expressions)
        self.on_error: OnError = check_on_error(on_error)

    def warm_up(self) -> Pending:
        return warmed()

    def setup(self, context: RuntimeContext, output: Output) -> None:
        """Take what the task provides, and prepare for failing records."""
        super().setup(context, output)
        named: Any = self.evaluator
        self._failures = RecordFailures(self, named)

    def result_fields(self, *fields: RecordFields | None) -> RecordFields | None:
        """Refuse records that lack what an expression reads; return their fields."""
        (known,) = fields
        if known is not None:
            for expression in self.evaluator.expressions:
                check_reads(expression, known.names)
        return known

    def process_run(self, run: Run) -> Pending:
        """Emit what becomes of the records, as columns if they are columns."""
        made = [made for part in self.parts(run) for made in self._made(part)]
        pending = in_turn(self.output.emit_run, [(each,) for each in made])
        if self._failures.waiting:
            return then(pending, self._failures.report)
        return pending

    def parts(self, run: Run) -> Iterator[Run]:
        """Yield parts of a run whose records are of one kind."""
        if isinstance(run, ArrowRun):
            yield run
            return
        for bounds in record_groups(run.values):
            yield run.slice(*bounds)

    def result(self, run: Run) -> Run:
        """Return what becomes of the records of a run of one kind.

        Raises:
            RecordTypeError: If they have no such fields.
            ArrowException: If an expression cannot be computed for one of them.
        """
        raise TypeError(f"{type(self).__name__} defines no result")

    def _made(self, run: Run) -> Iterator[Run]:
        """Yield the results; a record for which that fails is set aside."""
        for part, made, error in evaluated_parts(run, self.result):
            if error is None:
                yield made
            else:
                stamps = part.timestamps
                timestamp = None if stamps is None else stamps[0]
                self._failures.take(_record_of(part), timestamp, error)


class ExpressionFilter(ExpressionOperator):
    """Keeps the records for which an expression is true; null is not.

    Args:
        expression: Of Boolean values.
        on_error: How to handle a record for which it cannot be computed.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> operator = ExpressionFilter(pc.field("price") > 3)
        >>> with OneInputHarness(operator) as harness:
        ...     harness.process_run([{"price": 2}, {"price": 4.5}, {"price": None}])
        ...     harness.values
        [{'price': 4.5}]
    """

    def __init__(self, expression: pc.Expression, on_error: OnError = fail) -> None:
        super().__init__([check_expression(expression, "function")], on_error)

    def result(self, run: Run) -> Run:
        """Return the records for which the expression is true."""
        (mask,) = self.evaluator.evaluate(run)
        mask = boolean(mask, self.evaluator.expressions[0], "function")
        if isinstance(run, ArrowRun):
            return run.select(mask)
        chosen, stamps = mask.to_pylist(), run.timestamps
        return ListRun(
            list(compress(run.values, chosen)),
            None if stamps is None else list(compress(stamps, chosen)),
        )


class ProjectionOperator(ExpressionOperator):
    """Makes records of other fields: select, with_columns, drop, rename.

    Args:
        projection: Which fields.
        on_error: How to handle a record for which an expression cannot be computed.

    Example:
        >>> from aiomailbox.columnar.expressions import Select
        >>> from aiomailbox.testing import OneInputHarness
        >>> total = pc.field("price") * pc.field("count")
        >>> operator = ProjectionOperator(Select({"total": total}, ("price",)))
        >>> with OneInputHarness(operator) as harness:
        ...     harness.process_run([{"price": 2.5, "count": 2}])
        ...     harness.values
        [{'price': 2.5, 'total': 5.0}]
    """

    def __init__(self, projection: Projection, on_error: OnError = fail) -> None:
        super().__init__(list(projection.expressions.values()), on_error)
        self.projection: Projection = projection
        self._projector = Projector(projection)

    def result_fields(self, *fields: RecordFields | None) -> RecordFields | None:
        """Return the fields that the records get."""
        known = super().result_fields(*fields)
        if known is None:
            return None
        plan = self.projection.plan(known.names)
        types = {
            name: known.types[origin]
            for name, origin in plan
            if isinstance(origin, str) and origin in known.types
        }
        return known.renewed([name for name, _ in plan], "name", types)

    def result(self, run: Run) -> Run:
        """Return the records with the fields that they get."""
        computed = self.evaluator.evaluate(run) if self.evaluator.expressions else []
        if isinstance(run, ArrowRun):
            return self._projector.columns(run, computed)
        form = row_form(run)
        names = list(self.projection.expressions)
        values = [
            decoded(column_decoder(column.type, form, (name,)), column, name)
            for name, column in zip(names, computed, strict=True)
        ]
        return self._projector.rows(run, values)


def _record_of(run: Run) -> Any:
    """Return the record of a run of one; its columns if Python cannot express it."""
    try:
        return run.values[0]
    except UnsupportedColumnError:
        if not isinstance(run, ArrowRun):
            raise
        return run.batch


# Expressions that say which records count in an aggregate, on columns and on rows.


class RunCondition:
    """Evaluates an expression for whole runs, and knows what came out for each record.

    Args:
        expression: Of Boolean values.

    Example:
        >>> import pyarrow.compute as pc
        >>> condition, record = RunCondition(pc.field("n") > 1), {"n": 2}
        >>> condition.begin(ListRun([record, {"n": 1}]))
        >>> condition(record), condition({"n": None})
        (True, None)
    """

    def __init__(self, expression: Any) -> None:
        self._evaluator = Evaluator([check_expression(expression, "where")])
        self._run: Run = ListRun([])
        # By the identity of the run's records, which the run keeps alive.
        self._known: dict[int, Any] | None = {}

    def begin(self, run: Run) -> None:
        """Be notified that the records of a run are asked for next."""
        self._run, self._known = run, None

    def __call__(self, record: Any) -> Any:
        """Return whether it is true for a record; None if it is neither true nor false.

        Raises:
            ArrowException: If it cannot be computed for the record.
            RecordTypeError: If the record has no such fields.
        """
        known = self._known
        if known is None:
            values, found = self._run.values, self._of_run(self._run)
            known = self._known = dict(zip(map(id, values), found, strict=True))
        if id(record) in known:
            found_one = known[id(record)]
        else:
            (found_one,) = self._of_run(ListRun([record]))
        if isinstance(found_one, Exception):
            raise found_one
        return found_one

    def check_reads(self, names: Sequence[str]) -> None:
        """Refuse records with these fields if it reads another one.

        Raises:
            RecordTypeError: Then.
        """
        check_reads(self._evaluator.expressions[0], names)

    def mask(self, run: ArrowRun) -> np.ndarray:
        """Return for which records of a run it is true, bools of shape ``(n,)``.

        Raises:
            ArrowException: If it cannot be computed for one of them.
            RecordTypeError: If they have no such fields.
        """
        return as_bools(self._evaluated(run))

    def _of_run(self, run: Run) -> list[Any]:
        if isinstance(run, ArrowRun):
            return list(self._found(run))
        return [
            found
            for bounds in record_groups(run.values)
            for found in self._found(run.slice(*bounds))
        ]

    def _found(self, run: Run) -> Iterator[Any]:
        """Yield what it is for each record, or the error; records are of one kind."""
        for _, found, error in evaluated_parts(run, self._evaluated):
            if error is None:
                yield from found.to_pylist()
            else:
                yield self._named(error)

    def _named(self, error: Exception) -> Exception:
        """Return an error that says which expression is meant."""
        (expression,) = self._evaluator.expressions
        is_arrow = isinstance(error, pa.ArrowException)
        return type(error)(f"{error}, by where={expression}") if is_arrow else error

    def _evaluated(self, run: Run) -> pa.BooleanArray:
        (found,) = self._evaluator.evaluate(run)
        return boolean(found, self._evaluator.expressions[0], "where")
