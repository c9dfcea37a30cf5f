"""Which classes records may have: those that the user's functions name.

Theory of operation: classes travel with the job and records only name them, so all of
them have to be known before. What is pickled shows the functions; their code, their
type hints and the functions that they call show the classes. One that is made at run
time, out of sight, has to be named in a type hint.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from aiomailbox.operators.aggregates.compiled import result_type
from aiomailbox.operators.core.user_code import DeadLetter
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import Answer, Question
from aiomailbox.records.record_classes import (
    Family,
    RecordClass,
    RecordClasses,
    class_name,
    is_record,
    is_spark_row,
    record_class,
    row_class,
    saved_names,
)
from aiomailbox.records.run import RunForm
from aiomailbox.records.run_columns import PythonSerializer
from aiomailbox.state.descriptors import StateDescriptor
from aiomailbox.windowing.operator import FailedWindow
from aiomailbox.windowing.time_window import GlobalWindow, TimeWindow

_SEEN_MAX: Final = 20_000
_OURS: Final = "aiomailbox."
# Where descriptors say what a state consists of.
_TYPES_OF_STATE: Final = ("type_", "key_type", "value_type")
# What operators of ours make records of.
RECORDS_OF_OURS: Final[tuple[type, ...]] = (
    Answer,
    DeadLetter,
    FailedWindow,
    GlobalWindow,
    Question,
    TimeWindow,
)


class RecordTypes:
    """Collects the classes that functions name.

    Attributes:
        found: The classes, in the order of their discovery.
        is_complete: Whether nothing more is looked at.

    Example:
        >>> from typing import NamedTuple
        >>> class Trade(NamedTuple):
        ...     price: float
        >>> Trade.__module__ = "trades"
        >>> types = RecordTypes()
        >>> types.look_at(lambda line: Trade(float(line)))
        >>> Trade in types.found
        True
    """

    def __init__(self) -> None:
        self.found: dict[type, None] = {}
        self.is_complete = False
        self._seen: set[int] = set()
        # Kept, so that nothing else gets the identity of what was seen.
        self._kept: list[Any] = []

    def look_at(self, value: Any) -> None:
        """Look at an object of the job: functions, classes, state descriptors count."""
        waiting = [] if self.is_complete else [value]
        while waiting and len(self._kept) < _SEEN_MAX:
            item = waiting.pop()
            # Not isinstance(): it asks the object, which is the user's and may fail.
            is_looked_at = issubclass(type(item), type | FunctionType | StateDescriptor)
            if not is_looked_at or id(item) in self._seen:
                continue
            self._seen.add(id(item))
            self._kept.append(item)
            if isinstance(item, type) and _is_looked_up(item) and not _is_inner(item):
                self.found[item] = None
            if is_foreign(item) or is_spark_row(item):
                continue
            named = list(_named_by(item))
            if (item.__module__ or "").startswith(_OURS):
                # Of our own functions, only what a class names itself.
                named = [one for one in named if isinstance(one, type)]
                named = [one for one in named if _is_looked_up(one)]
            waiting.extend(named)


def record_classes(found: Iterable[Any], *, has_arrow: bool) -> RecordClasses:
    """Return the table of a job: what was found, and what operators of ours make."""
    families: dict[str, Family] = {
        "aiomailbox.Record": record_class,
        "aiomailbox.Result": result_type,
    }
    declared: dict[str, type | RecordClass] = {}
    if has_arrow:
        # Its import takes long, and few jobs need it.
        from aiomailbox.columnar.forms import batch_class

        entry = batch_class()
        declared[entry.name] = entry
    hints = [*RECORDS_OF_OURS, *found]
    for kind in (one for one in hints if isinstance(one, type)):
        name = class_name(kind)
        if name not in families:
            # Of two with one name only one can be meant by it.
            declared.setdefault(name, row_class(kind) if is_spark_row(kind) else kind)
    return RecordClasses(declared.values(), families, saved_names(hints))


def _named_by(item: type | FunctionType | StateDescriptor) -> Iterator[Any]:
    if isinstance(item, StateDescriptor):
        for name in _TYPES_OF_STATE:
            yield from _in_hint(getattr(item, name, None))
        return
    try:
        hints = list(typing.get_type_hints(item).values())
    except Exception:  # noqa: BLE001 -- a hint is whatever the user wrote
        hints = []
    for hint in hints:
        yield from _in_hint(hint)
    if isinstance(item, type):
        for member in vars(item).values():
            if issubclass(type(member), StateDescriptor):
                yield member
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, FunctionType):
                yield from _named_by(function)
        yield from item.__bases__
        return
    # In their order: of two classes with one name, the first counts.
    names = dict.fromkeys(names_in(item.__code__))
    for name in names:
        found = item.__globals__.get(name)
        yield found
        if issubclass(type(found), ModuleType):
            yield from (_attribute(found, each) for each in names)
    for cell in item.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue


def _attribute(module: Any, name: str) -> Any:
    try:
        # What ours would import late is no record, and looking for it takes long.
        if module.__name__.startswith(_OURS.rstrip(".")):
            return vars(module).get(name)
        return getattr(module, name, None)
    except Exception:  # noqa: BLE001 -- what a module that loads itself late raises
        return None


def _in_hint(hint: Any) -> Iterator[Any]:
    yield hint
    for part in typing.get_args(hint):
        yield from _in_hint(part)


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that code looks up, and those of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def _is_looked_up(kind: type) -> bool:
    return is_spark_row(kind) or is_record(kind)


def _is_inner(kind: type) -> bool:
    """Say whether it is a class of ours that no user has records of."""
    # Not getattr(): for a name that it lacks, the library finds out which one is meant.
    public = vars(sys.modules["aiomailbox"]).get(kind.__name__)
    return kind.__module__.startswith(_OURS) and public is not kind


def is_foreign(item: Any) -> bool:
    """Say whether it belongs to Python itself, where no user's records are."""
    root = (item.__module__ or "").partition(".")[0]
    return root in sys.stdlib_module_names and root != "__main__"


# How the records of a job cross between processes, and are kept in flight.


def serializer_and_forms(
    found: Iterable[Any], *, has_arrow: bool
) -> tuple[PythonSerializer, list[RunForm[Any]]]:
    """Return what writes values, and the further forms of runs."""
    classes = record_classes(found, has_arrow=has_arrow)
    serializer = PythonSerializer(classes)
    forms: list[RunForm[Any]] = []
    if has_arrow:
        # Its import takes long, and few jobs need it.
        from aiomailbox.columnar.arrow_form import ArrowForm

        forms.append(ArrowForm(serializer, classes))
    return serializer, forms


def element_codec(found: Iterable[Any], *, has_arrow: bool) -> ElementCodec:
    """Return the codec of all edges of a job; arguments as `serializer_and_forms`."""
    serializer, forms = serializer_and_forms(found, has_arrow=has_arrow)
    return ElementCodec(serializer, forms=forms)
