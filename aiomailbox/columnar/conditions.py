"""Expressions that say which records count in an aggregate, on columns and on rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from aiomailbox.columnar.arrow_run import ArrowRun, as_bools
from aiomailbox.columnar.evaluator import (
    EVALUATION_ERRORS,
    Evaluator,
    boolean,
    check_expression,
    record_groups,
)
from aiomailbox.operators.aggregates.functions import with_expressions
from aiomailbox.operators.core.contract import Operator
from aiomailbox.operators.core.selectors import ExpressionSelector
from aiomailbox.records.run import ListRun, Run

__all__ = ["RunCondition", "conditioned"]


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
        try:
            found = self._evaluated(run).to_pylist()
        except EVALUATION_ERRORS as error:
            if len(run) == 1:
                # Its lines are Arrow's.
                yield self._named(error.with_traceback(None))
                return
            middle = len(run) // 2
            yield from self._found(run.slice(0, middle))
            yield from self._found(run.slice(middle, len(run)))
        else:
            yield from found

    def _named(self, error: Exception) -> Exception:
        """Return an error that says which expression is meant."""
        (expression,) = self._evaluator.expressions
        is_arrow = isinstance(error, pa.ArrowException)
        return type(error)(f"{error}, by where={expression}") if is_arrow else error

    def _evaluated(self, run: Run) -> pa.BooleanArray:
        (found,) = self._evaluator.evaluate(run)
        return boolean(found, self._evaluator.expressions[0], "where")


def conditioned(make: Callable[..., Operator], aggregate: Any) -> Operator:
    """Return an operator whose aggregate has expressions, with evaluators of its own.

    Args:
        make: Makes the operator of an ``aggregate``.
        aggregate: One with expressions; see `with_expressions`.
    """
    conditions: list[RunCondition] = []

    def bind(selector: ExpressionSelector) -> ExpressionSelector:
        conditions.append(RunCondition(selector.expression))
        return ExpressionSelector(selector.expression, conditions[-1])

    own, _ = with_expressions(aggregate, bind)
    operator = make(aggregate=own)
    process = operator.process_run

    def process_run(run: Run) -> Any:
        for condition in conditions:
            condition.begin(run)
        return process(run)

    operator.process_run = process_run  # type: ignore[method-assign] # of this one
    return operator
