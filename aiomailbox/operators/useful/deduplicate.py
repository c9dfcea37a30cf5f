"""Passes on the first record of each key."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.keyed.key_reader import KeyReader
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.operators.keyed.stateful import StatefulOperator
from aiomailbox.records.run import ListRun, Run, take_records
from aiomailbox.state.descriptors import StateTtlConfig, ValueStateDescriptor

__all__ = ["DeduplicateOperator"]


@runtime_checkable
class DistinctRun(Protocol):
    """A run that can find its keys without rows."""

    def first_of_keys(self, key: Any) -> tuple[list[Any], list[int]] | None:
        """Return each key once, with the place of its first record, ascending."""
        ...


class DeduplicateOperator(StatefulOperator):
    """Passes on the first record of each key and drops the others.

    Args:
        key: A field's name or a function of a record.
        ttl: After how long, in processing time since its first record, a key counts as
            new again: a timedelta or seconds; None for never.

    Raises:
        InvalidArgumentError: If ``ttl`` is zero or negative.

    Concept:
        Flink SQL, deduplication that keeps the first row.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(DeduplicateOperator(str.lower), keyed=True) as harness:
        ...     harness.process_run(["a", "b", "A"])
        ...     harness.values
        ['a', 'b']
    """

    takes_columns = True

    def __init__(
        self, key: KeySelector, *, ttl: timedelta | float | None = None
    ) -> None:
        super().__init__()
        self._key = field_or_function(key, "key")
        self._ttl = None if ttl is None else StateTtlConfig(ttl)

    def open(self) -> Pending:
        """Bind the state."""
        self._keys = KeyReader(self._key, self)
        self._seen = self.context.keyed_state.get_value(
            # The name is in snapshots.
            ValueStateDescriptor("seen", bool, ttl=self._ttl)
        )
        self._dropped = self.context.metrics.counter("duplicates_dropped")
        return None

    def process_run(self, run: Run) -> Pending:
        """Pass on the records whose keys are new."""
        if not len(run):
            return None
        keys, places = self._first_of_keys(run)
        self.context.keyed_state.prefetch(keys)
        kept = [
            place for key, place in zip(keys, places, strict=True) if self._is_new(key)
        ]
        if len(kept) == len(run):
            return self.output.emit_run(run)
        self._dropped.value += len(run) - len(kept)
        return self.output.emit_run(take_records(run, kept)) if kept else None

    def _first_of_keys(self, run: Run) -> tuple[list[Any], Iterable[int]]:
        """Return keys and the places of their records; of columns each key once."""
        # A column finds its distinct values without making rows.
        if type(run) is not ListRun and isinstance(run, DistinctRun):
            found = run.first_of_keys(self._key)
            if found is not None:
                self._keys.check(found[0])
                return found
        keys = self._keys.read(run.values)
        return keys, range(len(keys))

    def _is_new(self, key: Any) -> bool:
        self.context.keyed_state.set_current_key(key)
        if self._seen.value():
            return False
        self._seen.update(True)
        return True
