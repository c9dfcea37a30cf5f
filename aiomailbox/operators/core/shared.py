"""Finds who changes one of the first records that several operators have.

Theory of operation: an operator whose results go more than one way gives each of them
the same objects. The first few of each such output are noted, if they can change and are
small, and compared around the work of each operator that gets one: only the operator at
work can have changed it, unless a function is awaited or runs in a thread. After a number
of looks all that watched steps aside, and what is called is as if it had never been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from aiomailbox.operators.core.mutations import (
    difference,
    is_watchable,
    structure,
)
from aiomailbox.records.run import ListRun, Run

# Runs, for each place that watches: the noted records have been through long before.
_LOOKS_MAX: Final = 16


class Worker(NamedTuple):
    """An operator, as a warning names it.

    Attributes:
        operator: Its name.
        uid: Its uid, or None.
        functions: Its functions, as text, or the line where it was made.
        works_alone: Whether it may change a record while others are at work.
    """

    operator: str
    uid: str | None
    functions: str
    works_alone: bool = False


@dataclass(slots=True)
class _Noted:
    value: Any
    before: Any
    way: object
    is_shared: bool
    had_by: list[Worker] = field(default_factory=list)
    change: tuple[Worker | None, str] | None = None


class SharedRecords:
    """The first records of a job, in one process, that several operators have.

    Args:
        log: Where warnings go.

    Attributes:
        is_over: Whether all that watched has stepped aside.

    Concept:
        Flink copies each record between two operators, unless ``enableObjectReuse``.
    """

    def __init__(self, log: Any) -> None:
        self.is_over: bool = False
        self._log = log
        self._noted: dict[int, _Noted] = {}
        self._at_work: list[Worker] = []
        self._named: set[Worker | None] = set()
        self._endings: list[Callable[[], None]] = []
        self._looks_left = 0

    def at_end(self, ending: Callable[[], None]) -> None:
        """Call something once no record is looked at any more."""
        self._endings.append(ending)

    def note(self, values: Iterable[Any], way: object, *, is_shared: bool) -> None:
        """Note records that are emitted, before they are.

        Args:
            values: The records.
            way: The output.
            is_shared: Whether several get what goes this way; else only those records
                count that also go another way.
        """
        for value in values:
            one = self._noted.get(id(value))
            if one is None:
                if is_watchable(value):
                    before = structure(value)
                    self._noted[id(value)] = _Noted(value, before, way, is_shared)
            elif one.way is not way:
                one.is_shared = True
                if one.change is not None:
                    self._say(one, *one.change)
            else:
                # Emitted again: its operator may have changed it in between.
                one.before = structure(value)

    def watched(
        self, process_run: Callable[[Run], Any], worker: Worker
    ) -> Callable[[Run], Any]:
        """Return what also looks at the noted records that an operator gets."""
        self._looks_left += _LOOKS_MAX

        def process(run: Run) -> Any:
            # Columns can't be changed by those that get rows of them.
            if type(run) is not ListRun or self.is_over:
                return process_run(run)
            noted = self._begin(run.values, worker)
            try:
                return process_run(run)
            finally:
                self._end_work(noted)

        return process

    def watched_function(
        self, function: Callable[[Any], Any], worker: Worker
    ) -> Callable[[Any], Any]:
        """Return a function, one of several that run as one, that also looks."""

        def call(record: Any) -> Any:
            result = function(record)
            one = self._noted.get(id(record))
            if one is not None:
                self._look(one, worker)
            return result

        return call

    def end(self) -> None:
        """Look a last time, and let all that watches step aside. Idempotent."""
        self.is_over = True
        for one in self._noted.values():
            self._look(one, None)
        self._noted.clear()
        endings, self._endings = self._endings, []
        for ending in endings:
            ending()

    def _begin(self, values: Iterable[Any], worker: Worker) -> list[_Noted]:
        noted = self._noted
        found = [noted[id(value)] for value in values if id(value) in noted]
        for one in found:
            # Changed since another one has left it: on the way here.
            self._look(one, self._at_work[-1] if self._at_work else None)
            one.had_by.append(worker)
        self._at_work.append(worker)
        self._looks_left -= 1
        return found

    def _end_work(self, found: list[_Noted]) -> None:
        worker = self._at_work.pop()
        for one in found:
            self._look(one, worker)
        if self._looks_left <= 0 and not self._at_work:
            self.end()

    def _look(self, one: _Noted, worker: Worker | None) -> None:
        try:
            after = structure(one.value)
            if after == one.before:
                return
            change = difference(one.before, after)
        except Exception:  # noqa: BLE001 -- classes of users: no look is worth a job
            self._noted.pop(id(one.value), None)
            return
        one.before = after
        if one.is_shared:
            self._say(one, worker, change)
        else:
            one.change = worker, change

    def _say(self, one: _Noted, worker: Worker | None, change: str) -> None:
        if worker is None:
            suspects = [had for had in one.had_by if had.works_alone] or one.had_by
            worker = joined(suspects)
        if worker in self._named:
            return
        self._named.add(worker)
        self._log.warning(
            "a function changed a record that other operators have, too: they may see "
            "the change",
            operator=worker.operator,
            **({} if worker.uid is None else {"uid": worker.uid}),
            function=worker.functions,
            record=type(one.value).__name__,
            change=change,
            remedy="return a new record, e.g. {**record, 'n': 1}, [*record, 1] or "
            "dataclasses.replace(record, n=1); JobConfig(check_mutations=True) finds "
            "each such function",
        )


def joined(workers: Iterable[Worker]) -> Worker:
    """Return several as one, each of which may be the one that is meant."""
    found = list(dict.fromkeys(workers))
    if len(found) == 1:
        return found[0]
    names = " or ".join(dict.fromkeys(one.operator for one in found))
    functions = " or ".join(dict.fromkeys(one.functions for one in found))
    return Worker(names or "the one that emitted it", None, functions)
