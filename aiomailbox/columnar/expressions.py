"""Operators written as Arrow expressions: columns in, columns out; rows in, rows out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any

import pyarrow.compute as pc

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.decode import column_decoder, decoded
from aiomailbox.columnar.evaluator import (
    EVALUATION_ERRORS,
    Evaluator,
    boolean,
    check_expression,
    record_groups,
)
from aiomailbox.columnar.projection import Projection
from aiomailbox.columnar.projector import Projector, row_form
from aiomailbox.errors import UnsupportedColumnError
from aiomailbox.operators.core.contract import Operator, Pending, in_turn, then
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.on_error import OnError, check_on_error, fail
from aiomailbox.records.run import ListRun, Run

__all__ = ["ExpressionFilter", "ProjectionOperator"]


class ExpressionOperator(Operator):
    """Evaluates expressions over runs, and makes runs from what they give.

    Args:
        expressions: What to evaluate.
        on_error: What to do with a record for which that fails.
    """

    takes_columns = True

    def __init__(
        self, expressions: Sequence[pc.Expression], on_error: OnError = fail
    ) -> None:
        self.evaluator: Evaluator = Evaluator(expressions)
        self.on_error: OnError = check_on_error(on_error)

    def open(self) -> Pending:
        """Prepare for failing records."""
        named: Any = self.evaluator
        self._failures = RecordFailures(self.on_error, named, self.context, self.output)
        return None

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
        """Yield the results; a part that fails is halved until the record is found."""
        if not len(run):
            return
        try:
            made = self.result(run)
        except EVALUATION_ERRORS as error:
            if len(run) == 1:
                stamps = run.timestamps
                timestamp = None if stamps is None else stamps[0]
                # Its lines are Arrow's: messages name the expression instead.
                error = error.with_traceback(None)
                self._failures.take(_record_of(run), timestamp, error)
                return
            middle = len(run) // 2
            yield from self._made(run.slice(0, middle))
            yield from self._made(run.slice(middle, len(run)))
            return
        yield made


class ExpressionFilter(ExpressionOperator):
    """Keeps the records for which an expression is true; null is not.

    Args:
        expression: Of Boolean values.
        on_error: What to do with a record for which it cannot be computed.

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
        on_error: What to do with a record for which an expression cannot be computed.

    Example:
        >>> from aiomailbox.columnar.projection import Select
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
