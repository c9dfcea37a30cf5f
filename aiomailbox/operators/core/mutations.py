"""Finds who changes a record that others have, or that was emitted.

Theory of operation: a record's structure is noted, and compared around the work of each
operator that gets the record: only the operator at work can have changed it, unless a
function is awaited or runs in a thread. `MutationCheck` notes what an operator gets and
emits, if a job asks for that; `SharedRecords` the first records of each output that goes
more than one way, in any job; `RepeatedObjects` the first results of a function.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from aiomailbox.errors import RecordMutatedError, add_note
from aiomailbox.records.record_classes import fields_of_class
from aiomailbox.records.run import ListRun, Run

# Of those that an operator got or emitted before, so many are looked at again.
_KEPT: Final = 256
_DEPTH_MAX: Final = 50
# Of a record that is looked at without being asked for.
_PARTS_MAX: Final = 64
# How many results of a function are looked at: one that changes them does so at once.
NOTED_MAX: Final = 16
# They are their own structure, and equal only to their like.
_ATOMS: Final = frozenset({str, bytes, type(None)})
_NUMBERS: Final = frozenset({int, bool, complex})


def structure(value: Any) -> Any:
    """Return what a value consists of, to be compared later with what it is then.

    Two structures are equal if nothing has changed. Lists, dicts, sets, tuples,
    dataclasses, msgspec structs, and objects with attributes are looked into, 50 levels
    deep; attributes that a class computes once and keeps (``functools.cached_property``)
    count for nothing, and objects that cannot be looked into are equal to themselves.

    Example:
        >>> row = {"tags": ["a"]}
        >>> before = structure(row)
        >>> row["tags"].append("b")
        >>> difference(before, structure(row))
        "['tags'] has 2 elements instead of 1"
    """
    return _structure(value, 0, set())


def _structure(value: Any, depth: int, above: set[int]) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind in _NUMBERS:
        return kind, value
    # A record may hold itself; changes by mistake are not that deep.
    if depth >= _DEPTH_MAX or id(value) in above:
        return kind, id(value)
    parts = _parts(value)
    if parts is None:
        return kind, _leaf(value)
    above.add(id(value))
    try:
        if isinstance(parts, dict):
            return kind, {
                name: _structure(part, depth + 1, above) for name, part in parts.items()
            }
        return kind, tuple(_structure(part, depth + 1, above) for part in parts)
    finally:
        above.discard(id(value))


def _parts(value: Any) -> Any:
    """Return what an object holds: by name, in order, or None."""
    if isinstance(value, dict | list):
        return value
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        return value if names is None else dict(zip(names, value, strict=True))
    # Classes and functions are shared by all, and change without any mistake.
    if isinstance(value, type | enum.Enum) or callable(value):
        return None
    names = fields_of_class(type(value))
    if names is None:
        return _attributes(value)
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _attributes(value: Any) -> dict[str, Any] | None:
    kind = type(value)
    slots = [
        name
        for base in kind.__mro__
        for name in _names(vars(base).get("__slots__", ()))
        if not name.startswith("__")
    ]
    found = getattr(value, "__dict__", None)
    if found is None and not slots:
        return None
    attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    for name, part in (found or {}).items():
        # Computing one late is no change of the record.
        if not isinstance(getattr(kind, name, None), functools.cached_property):
            attributes[name] = part
    return attributes


def _names(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _leaf(value: Any) -> Any:
    if isinstance(value, float):
        # By its digits, for a NaN is not equal to itself.
        return value.hex()
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        # An array of numbers, as NumPy's.
        return value.tobytes()
    if isinstance(value, str | bytes | int | frozenset):
        return value
    # What can't be looked into is itself as long as it is the same object.
    return id(value)


def is_watchable(value: Any) -> bool:
    """Say whether a record can change, and costs little to look through.

    Objects that keep something to themselves, and arrays, are not looked into.

    Example:
        >>> is_watchable({"n": 1}), is_watchable(("a", 1)), is_watchable([0] * 1000)
        (True, False, False)
    """
    waiting, left, can_change = [value], _PARTS_MAX, False
    while waiting:
        part = waiting.pop()
        if type(part) in _ATOMS or type(part) in _NUMBERS:
            continue
        parts = _parts(part)
        if isinstance(part, set | bytearray):
            can_change, parts = True, ()
            left -= len(part)
        elif hasattr(part, "dtype"):
            return False
        if parts is None:
            continue
        left -= len(parts)
        if left < 0:
            return False
        can_change = can_change or not isinstance(part, tuple)
        if not isinstance(parts, dict):
            waiting += parts
            continue
        # What is kept for later use, such as a hash, is no change of the record.
        if not isinstance(part, dict) and any(name[0] == "_" for name in parts):
            return False
        waiting += parts.values()
    return can_change


def difference(before: Any, after: Any) -> str:
    """Say what differs between two structures, "" if nothing does."""
    return _difference(before, after, "")


def _difference(before: Any, after: Any, where: str) -> str:
    if before == after:
        return ""
    old, new = _opened(before), _opened(after)
    if isinstance(old, dict) and isinstance(new, dict):
        is_mapping = isinstance(before[0], type) and issubclass(before[0], dict)
        for name in [*old, *(name for name in new if name not in old)]:
            place = f"{where}[{name!r}]" if is_mapping else f"{where}.{name}"
            if name not in new:
                return f"{place} is gone"
            if name not in old:
                return f"{place} is new"
            found = _difference(old[name], new[name], place)
            if found:
                return found
    if isinstance(old, tuple) and isinstance(new, tuple):
        if len(old) != len(new):
            return f"{where or 'it'} has {len(new)} elements instead of {len(old)}"
        for index, pair in enumerate(zip(old, new, strict=True)):
            found = _difference(*pair, f"{where}[{index}]")
            if found:
                return found
    return f"{where or 'it'} was {_shown(before)} and is {_shown(after)}"


def _opened(one: Any) -> Any:
    return one[1] if isinstance(one, tuple) else one


def _shown(one: Any) -> str:
    if not isinstance(one, tuple):
        return repr(one)[:80]
    kind, content = one
    if kind is float:
        return repr(float.fromhex(content))
    shown = kind in _NUMBERS or issubclass(kind, str | bytes | int | set | bytearray)
    return repr(content)[:80] if shown else f"another {kind.__name__}"


class RepeatedObjects:
    """The first results of a function, to see whether one comes again, changed.

    Args:
        warn: Called once, with what has changed.

    Attributes:
        is_over: Whether no more results are looked at.

    Example:
        >>> row, seen = {"n": 0}, RepeatedObjects(print)
        >>> seen.look(row)
        >>> row["n"] = 1
        >>> seen.look(row)
        ['n'] was 0 and is 1
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.is_over: bool = False
        self._warn = warn
        # By identity, each with what it was and whether it came again. They are kept: else
        # another object could get the identity of one.
        self._noted: dict[int, tuple[Any, Any, bool]] = {}
        self._left = NOTED_MAX

    def look(self, value: Any) -> None:
        """Look at the next result."""
        if self.is_over:
            return
        self._left -= 1
        self.is_over = self._left <= 0
        noted = self._noted.get(id(value))
        if noted is not None:
            self._compare(value, noted[1])
            self._noted[id(value)] = (value, noted[1], True)
        elif is_watchable(value):
            self._noted[id(value)] = (value, structure(value), False)
        if self.is_over:
            self._noted = {at: one for at, one in self._noted.items() if one[2]}

    def look_at(self, values: Iterable[Any]) -> None:
        """Look at the next results."""
        for value in values:
            if self.is_over:
                return
            self.look(value)

    def end(self) -> None:
        """Look at those that came again a last time: one object was several results."""
        self.is_over = True
        for value, before, is_repeated in list(self._noted.values()):
            if is_repeated:
                self._compare(value, before)
        self._noted.clear()

    def _compare(self, value: Any, before: Any) -> None:
        change = difference(before, structure(value))
        if change and self._left >= 0:
            self._left, self.is_over = -1, True
            self._warn(change)


class MutationCheck:
    """The last records that an operator in a subtask received and emitted, and copies.

    Args:
        operator: The operator's name.
        uid: Its uid, or None.

    Cost:
        A walk through every record for each operator that it passes, and one through
        256 records each time that an operator has been at work.
    """

    # Calls in flight by the records they have: several may have one at the same time.
    _in_calls: ClassVar[dict[int, list[str]]] = {}

    def __init__(self, operator: str, uid: str | None) -> None:
        self._operator = operator
        self._uid = uid
        self._held: list[tuple[Any, Any]] = []
        self._depth = 0

    def note(self, values: Iterable[Any]) -> None:
        """Remember records as they are now."""
        self._held += [(value, structure(value)) for value in values]

    def enter(self) -> None:
        """Let the operator begin to work; forget what others have changed."""
        # A mail that runs in the middle of another one's work is part of that work.
        self._depth += 1
        if self._depth == 1:
            self._held = [one for one in self._held if structure(one[0]) == one[1]]

    def leave(self) -> None:
        """Compare, after the operator has worked.

        Raises:
            RecordMutatedError: If it has changed a record.
        """
        self._depth -= 1
        if self._depth:
            return
        self.compare_all(self._held)
        # A function that keeps a record longer, and changes it then, is found only by
        # chance.
        del self._held[:-_KEPT]

    def leave_failed(self) -> None:
        """Let the operator stop working, after an error."""
        self._depth -= 1

    def repeated(self, values: Iterable[Any]) -> None:
        """Compare records with how they were when they were emitted before.

        For sources, which are always at work.
        """
        # By identity: an equal record is another one.
        held = {id(value): (value, before) for value, before in self._held}
        for value in values:
            if id(value) in held:
                self._compare(*held[id(value)])
        del self._held[:-_KEPT]

    def watched(
        self, function: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        """Return an async function that also raises if it changes its argument."""

        @functools.wraps(function)
        async def call(argument: Any) -> Any:
            before = structure(argument)
            # A batch is one argument with records in it.
            parts = argument if isinstance(argument, list | tuple) else ()
            records = [id(one) for one in (argument, *parts) if type(one) not in _ATOMS]
            for record in records:
                self._in_calls.setdefault(record, []).append(self._operator)
            try:
                result = await function(argument)
                self._compare(argument, before, self._others(records))
            finally:
                for record in records:
                    names = self._in_calls[record]
                    names.remove(self._operator)
                    if not names:
                        del self._in_calls[record]
            return result

        return call

    def _others(self, records: list[int]) -> list[str]:
        """Return the operators that have one of the records at the same time."""
        names = {name for record in records for name in self._in_calls[record]}
        return sorted(names - {self._operator})

    def watched_call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of records that also raises if it changes one of them."""

        @functools.wraps(function)
        def call(*records: Any) -> Any:
            return self.calling(records, function, *records)

        return call

    def calling(
        self, records: Iterable[Any], function: Callable[..., Any], *args: Any
    ) -> Any:
        """Call a function, async or not, and see what becomes of some records.

        Raises:
            RecordMutatedError: If one of them has changed, at once or when awaited.
        """
        held = [(record, structure(record)) for record in records]
        result = function(*args)
        if isinstance(result, Awaitable):
            return self._awaited(result, held)
        self.compare_all(held)
        return result

    async def _awaited(
        self, result: Awaitable[Any], held: list[tuple[Any, Any]]
    ) -> Any:
        value = await result
        self.compare_all(held)
        return value

    def compare_all(self, held: Iterable[tuple[Any, Any]]) -> None:
        """Compare records with their structures from before.

        Raises:
            RecordMutatedError: If one has changed.
        """
        for value, before in held:
            self._compare(value, before)

    def _compare(self, value: Any, before: Any, others: Iterable[str] = ()) -> None:
        after = structure(value)
        if after != before:
            kind, change = type(value).__name__, difference(before, after)
            error = RecordMutatedError(self._operator, self._uid, kind, change)
            for other in others:
                add_note(error, f"operator {other!r} had it at the same time")
            raise error


# The first records that several operators have.
#
# An operator whose results go more than one way gives each of them the same objects. The
# first few of each such output are noted, if they can change and are small. After a number
# of looks all that watched steps aside, and what is called is as if it had never been.


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
