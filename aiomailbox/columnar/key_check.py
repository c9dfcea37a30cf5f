"""Sets records without a good key aside, and leaves columns what they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.errors import KeyTypeError
from aiomailbox.keygroups.assignment import KeyGroupAssigner
from aiomailbox.operators.core.failures import USER_ERRORS, RecordFailures
from aiomailbox.operators.core.operator import Operator, Pending, then
from aiomailbox.operators.core.user_code import OnError, check_on_error, fail
from aiomailbox.operators.keyed.operators import KeyCheck
from aiomailbox.records.run import ListRun, Run


class ColumnarKeyCheck(Operator):
    """Passes on the records whose key is one, of the type of the first.

    Only where a run has keys that may be none are rows asked for, and if they are null
    only those of these.

    Args:
        key: A selector of fields.
        on_error: What to do with the other records.

    Example:
        >>> import pyarrow as pa
        >>> from aiomailbox.columnar.forms import NamedTupleForm
        >>> from aiomailbox.columnar.rows import RowMaker
        >>> from aiomailbox.operators.core.fields import field_or_function
        >>> from aiomailbox.operators.core.user_code import skip
        >>> from aiomailbox.testing import OneInputHarness
        >>> batch = pa.record_batch({"user": ["a", None, "b"]})
        >>> run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
        >>> operator = ColumnarKeyCheck(field_or_function("user", "key"), skip)
        >>> with OneInputHarness(operator) as harness:
        ...     harness.process_run(run)
        ...     harness.recorded.runs
        [<ArrowRun of 2 records: user>]
    """

    takes_columns = True

    def __init__(self, key: Any, on_error: OnError = fail) -> None:
        self.on_error: OnError = check_on_error(on_error)
        self._key = key
        self._assigner = KeyGroupAssigner(1, 1)
        self._check = KeyCheck(key, self._assigner)

    def open(self) -> Pending:
        self._failures = RecordFailures(self, self._check)
        return None

    def process_run(self, run: Run) -> Pending:
        """Pass on the records that have a good key."""
        bad = self._bad(run) if len(run) else []
        if not bad:
            return self.output.emit_run(run)
        good = np.setdiff1d(np.arange(len(run)), bad)
        if isinstance(run, ArrowRun):
            left: Run = run.take(good)
        else:
            values, stamps = run.values, run.timestamps
            left = ListRun(
                [values[place] for place in good.tolist()],
                None if stamps is None else [stamps[place] for place in good.tolist()],
            )
        return then(self.output.emit_run(left), self._failures.report)

    def _bad(self, run: Run) -> list[int]:
        """Return the places of records without a good key, which have failed then."""
        if not isinstance(run, ArrowRun):
            return self._asked(run, np.arange(len(run)))
        if self._are_good(run):
            return []
        nulls: np.ndarray = np.zeros(len(run), np.bool_)
        for field in self._key.fields:
            if field in run.schema.names:
                column = run.column(field)
                nulls |= column.is_null().to_numpy(zero_copy_only=False)
        places = np.flatnonzero(nulls)
        others = run.take(np.flatnonzero(~nulls))
        if isinstance(others, ArrowRun) and len(others) and self._are_good(others):
            return self._asked(run.take(places), places)
        return self._asked(run, np.arange(len(run)))

    def _are_good(self, run: ArrowRun) -> bool:
        keys = run.key_codes(self._key)
        if keys is None:
            return False
        try:
            self._assigner.key_groups(keys.distinct)
        except KeyTypeError:
            return False
        return True

    def _asked(self, run: Run, places: np.ndarray) -> list[int]:
        """Ask rows one by one; return the places of those that failed."""
        stamps, bad = run.timestamps, []
        for index, (value, place) in enumerate(
            zip(run.values, places.tolist(), strict=True)
        ):
            try:
                self._check(value)
            except USER_ERRORS as error:
                stamp = None if stamps is None else stamps[index]
                self._failures.take(value, stamp, error)
                bad.append(place)
        return bad
