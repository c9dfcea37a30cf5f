"""Checks of arguments, where they were given, and small parts of transformations."""

from __future__ import annotations

import ast
import copy
import difflib
import dis
import inspect
import operator
import os
import textwrap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import CellType, CodeType, FunctionType
from typing import Any, Final, Literal, TypeVar, cast

from aiomailbox import connectors
from aiomailbox.connectors.sinks import FunctionSink
from aiomailbox.durations import duration_text
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.eventtime.generators import BoundedOutOfOrderness, NoWatermarks
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.graph.job_graph import free_name
from aiomailbox.graph.transformation import (
    FunctionInfo,
    OperatorFactory,
    Origin,
    Transformation,
    known_fields,
    rows_from,
)
from aiomailbox.logs import library_log
from aiomailbox.operators.aggregates.functions import (
    fields_read,
    warn_of_ranks,
    with_expressions,
)
from aiomailbox.operators.core.fields import (
    FieldSelector,
    FieldsSelector,
    RecordFields,
    field_or_function,
    is_expression,
)
from aiomailbox.operators.core.operator import Operator, RowsNote
from aiomailbox.operators.core.user_code import (
    OnError,
    caller_location,
    check_function,
    check_on_error,
    describe,
    is_async_callable,
    is_users,
    refuse_called,
    refuse_generator,
    shortened,
    warn_here,
    warn_of_unopened,
)
from aiomailbox.operators.keyed.operators import KeyCheck
from aiomailbox.operators.sinks.sink import Sink, SinkOperator
from aiomailbox.operators.stateless.fused import StageKind
from aiomailbox.operators.stateless.operators import stateless
from aiomailbox.policies.cache import Cache
from aiomailbox.signatures import check_count, check_type, snake_case
from aiomailbox.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)

# Reads from a function's source which state it describes when it runs.


_MAKERS: Final = frozenset(
    kind.__name__
    for kind in (
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )
)


def described_in(code: CodeType) -> tuple[set[str], bool]:
    """Return the names of the state without a time to live that code describes.

    Returns:
        The names, and whether there may be more whose names cannot be read.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError, SystemError):
        # Typed into a console, in the middle of an expression, or, on CPython 3.11, parsed
        # while the garbage collector let something else be parsed.
        return set(), True
    names: set[str] = set()
    unnamed = False
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if _called(node) not in _MAKERS or _has_ttl(node):
            continue
        name = _first(node)
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            names.add(name.value)
        else:
            unnamed = True
    return names, unnamed


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _first(call: ast.Call) -> ast.expr | None:
    if call.args:
        return call.args[0]
    return next((word.value for word in call.keywords if word.arg == "name"), None)


def _has_ttl(call: ast.Call) -> bool:
    return any(
        not (isinstance(word.value, ast.Constant) and word.value.value is None)
        for word in call.keywords
        if word.arg == "ttl"
    )


# Finds state that is kept for ever, in what users' functions refer to.


def state_without_ttl(function: Callable[..., Any]) -> tuple[str, ...]:
    """Name the state without a time to live that a function can reach.

    Looked at is what the function, or for a method any method of its object, refers
    to: descriptors in its module, around it, and on the object.

    Returns:
        A text for each state, in the order of their names. The name of state that is
        described when a method runs is read from its source; where that is not there,
        or the name is not written out, only that there is state.

    Example:
        >>> from aiomailbox.state.descriptors import ValueStateDescriptor
        >>> seen = ValueStateDescriptor("seen", int)
        >>> state_without_ttl(
        ...     lambda value, context: context.keyed_state.get_value(seen)
        ... )
        ("state 'seen' has no TTL",)
    """
    names: set[str] = set()
    hidden = False
    for item in _reachable(function):
        # Not isinstance(): it asks the object, which is the user's and may fail.
        kind = type(item)
        if issubclass(kind, StateDescriptor):
            if item.ttl is None:
                names.add(item.name)
        elif kind is CodeType and not _MAKERS.isdisjoint(item.co_names):
            written, unnamed = described_in(item)
            names |= written
            hidden = hidden or unnamed
    texts = [f"state {name!r} has no TTL" for name in sorted(names)]
    if hidden:
        texts.append("state that is described inside the function may have no TTL")
    return tuple(texts)


def _reachable(function: Callable[..., Any]) -> Iterator[Any]:
    """Yield the code of the functions, and the objects that it refers to."""
    owner = getattr(function, "__self__", None)
    if owner is None or inspect.isclass(owner):
        yield from _referred(function)
        return
    yield from getattr(owner, "__dict__", {}).values()
    for kind in type(owner).__mro__:
        if kind.__module__.partition(".")[0] in ("aiomailbox", "builtins"):
            continue
        for name, member in vars(kind).items():
            yield member
            # What __init__ makes is found on the object.
            if name != "__init__":
                yield from _referred(member)


def _referred(function: Any) -> Iterator[Any]:
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(function, FunctionType):
        return
    for cell in function.__closure__ or ():
        # A cell of a name that is bound later is empty.
        if cell != CellType():
            yield cell.cell_contents
    for code in _with_inner(function.__code__):
        yield code
        for name in code.co_names:
            yield function.__globals__.get(name)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


OperatorT = TypeVar("OperatorT", bound=Operator)
# Flink's upper bound, too: it is what a key group's number fits into.
MAX_PARALLELISM_MAX: Final = 2**15
# Where a synchronous function runs.
RunIn = Literal["loop", "thread"]
# What `explain` says of operators that keep something per key for ever.
GROWS_WITH_KEYS: Final = "state grows with the number of keys, no TTL"
# Arguments of operators that are names of fields where they are texts.
_NAMES_OF_FIELDS: Final = frozenset({"id", "key"})


def check_max_parallelism(value: object) -> int:
    """Return ``value`` if it can be a number of key groups, else raise."""
    count = check_count(value, "max_parallelism")
    if count > MAX_PARALLELISM_MAX:
        raise InvalidArgumentError(
            "max_parallelism",
            f"{count} is too large",
            f"Use at most {MAX_PARALLELISM_MAX}.",
        )
    return count


def check_name(value: Any, parameter: str) -> str:
    """Return ``value`` if it is a non-empty string, else raise naming the parameter."""
    check_type(value, str, parameter, "Use a non-empty string.", "a string")
    if not value:
        raise InvalidArgumentError(parameter, "it is empty", "Use a non-empty string.")
    return value


def function_info(function: Callable[..., Any], *, serial: bool = True) -> FunctionInfo:
    """Describe a user's function for `explain`."""
    is_async = is_async_callable(function)
    note = ""
    if is_async and serial:
        note = "one record at a time; map_async runs many concurrently"
    unbounded = state_without_ttl(function)
    return FunctionInfo(describe(function), is_async, note, unbounded)


def derived(
    name: str,
    factory: OperatorFactory,
    inputs: list[list[Origin]],
    *,
    functions: Iterable[Any] = (),
    serial: bool = True,
    has_columns: bool = False,
    **facts: Any,
) -> Transformation:
    """Return an operator as the job describes it: with what it says of itself.

    Args:
        name: Its name.
        factory: Makes it.
        inputs: Where its records come from.
        functions: Those of the user's that it calls, or what is said of one.
        serial: Whether it calls async ones for one record at a time.
        has_columns: Whether it has a form for columns.
        facts: What else there is to say.

    Raises:
        InvalidArgumentError: If a record is known to lack a field that it reads.
        RecordTypeError: If a record is known to lack a field of an expression.
    """
    # Wrong arguments and combinations fail here, where they are written.
    sample = factory()
    facts["functions"] = tuple(
        one if isinstance(one, FunctionInfo) else function_info(one, serial=serial)
        for one in functions
    )
    capacity = getattr(sample, "capacity", None)
    if capacity is not None:
        facts["bound"] = f"{capacity} records"
    known = [known_fields(united) for united in inputs]
    if len(known) == 1:
        check_reads(known[0], factory)
    facts.setdefault("record_fields", sample.result_fields(*known))
    if "asks_for_rows" not in facts:
        facts["asks_for_rows"] = asking = sample.rows_reason()
        facts["takes_columns"] = sample.takes_columns and not asking
    if (
        has_columns
        and isinstance(factory, partial)
        and all(rows_from(united) is None for united in inputs)
    ):
        asking = connectors.rows_reason(sample, factory.keywords.get("aggregate"))
        facts["asks_for_rows"] = asking
        if not asking:
            note = RowsNote()
            factory = partial(factory, columns=note)
            facts["takes_columns"], facts["rows_note"] = True, note
            facts["columns_aside"] = frozenset(sample.late_tags)
    return Transformation(name, factory, inputs, **facts)


def formed(
    make: Callable[..., Operator],
    *args: Any,
    columns: RowsNote | None = None,
    selection: tuple[Any, OnError] | None = None,
    **named: Any,
) -> Any:
    """Return an operator of rows, or its form for columns; see `columnar.making.made`."""
    if columns is None and selection is None and not has_expressions(named):
        return make(*args, **named)
    made = connectors.made
    return made(make, *args, columns=columns, selection=selection, **named)


def has_expressions(named: Mapping[str, Any]) -> bool:
    """Say whether there is an aggregate with expressions of Arrow."""
    return with_expressions(named.get("aggregate"), lambda selector: selector)[1]


def selected_pairs(
    names: tuple[Any, ...], named: Mapping[str, Any], keys: Sequence[Any]
) -> Any:
    """Return what ``select(*names, **named)`` of a join by these keys says.

    Raises:
        InvalidArgumentError: If nothing is named, or a name would be there twice.
        WrongTypeError: If something is neither a name nor an expression.
    """
    parts = [getattr(key, "fields", ()) for key in keys]
    same = {left for left, right in zip(*parts, strict=False) if left == right}
    return connectors.pair_fields(names, named, same)


def expression_infos(*expressions: Any) -> tuple[FunctionInfo, ...]:
    """Describe expressions for `explain`."""
    return tuple(FunctionInfo(str(each), is_async=False) for each in expressions)


def field_names(names: tuple[Any, ...]) -> tuple[str, ...]:
    """Return names of fields, if each is one, and none comes twice.

    Raises:
        InvalidArgumentError: If one comes twice, or there is none.
        WrongTypeError: If one is no string.
    """
    if not names:
        raise InvalidArgumentError(
            "names", "no field is given", 'Name the fields, for example "price".'
        )
    for name in names:
        if is_expression(name):
            raise WrongTypeError(
                "names",
                f"{name!r} is an expression without a name",
                "Give it one: total=...",
            )
        if isinstance(name, list | tuple | set | frozenset):
            raise WrongTypeError(
                "names",
                f"{name!r} is a {type(name).__name__} and not a name",
                'Write the names one by one: "user", "price".',
            )
        check_name(name, "names")
        if names.count(name) > 1:
            raise InvalidArgumentError(
                "names", f"field {name!r} is named twice", "Remove one."
            )
    return names


def selected(names: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``select(*names, **named)`` says, as arguments for `projected`.

    Raises:
        InvalidArgumentError: If no field is named, or two would have the same name.
        WrongTypeError: If a name is no string.
    """
    field_names((*names, *named))
    renamed = {
        name: check_name(value, name) if isinstance(value, str) else None
        for name, value in named.items()
    }
    computed = {name: named[name] for name, old in renamed.items() if old is None}
    return {"names": names, "named": renamed, "expressions": computed}


def check_renames(names: Any) -> dict[str, str]:
    """Return old and new names, if no two fields would get one name.

    Raises:
        InvalidArgumentError: If two would, or there are none.
        WrongTypeError: If it is no mapping of strings.
    """
    check_type(names, Mapping, "names", 'Write {"old": "new"}.', "a mapping")
    field_names(tuple(names))
    field_names(tuple(names.values()))
    return dict(names)


def check_reads(fields: RecordFields | None, factory: object) -> None:
    """Refuse an operator that reads a field by a name that no record has.

    Raises:
        InvalidArgumentError: Then; names the parameter, the field and those there are.
    """
    if fields is None or not isinstance(factory, partial):
        return
    arguments = [("key", value) for value in factory.args]
    for parameter, value in [*arguments, *factory.keywords.items()]:
        for name, selector in _reads(parameter, value):
            fields.check(selector, name)


def _reads(parameter: str, value: object) -> Iterator[tuple[str, FieldSelector]]:
    if isinstance(value, FieldSelector):
        yield parameter, value
    elif isinstance(value, str) and parameter in _NAMES_OF_FIELDS:
        yield parameter, FieldSelector(value, parameter)
    elif isinstance(value, Cache) and isinstance(value.key, str):
        yield "key", FieldSelector(value.key, "key")
    elif isinstance(value, WatermarkStrategy) and isinstance(value.assigner, str):
        yield "with_timestamp_assigner", FieldSelector(value.assigner, "assigner")
    else:
        yield from fields_read(value)


def key_selector(
    key: str | Callable[[Any], Any],
    others: tuple[str, ...],
    origins: list[Origin],
    parameter: str = "key",
) -> Callable[[Any], Any]:
    """Return the function that reads the key of a stream's records.

    Raises:
        InvalidArgumentError: If it is known that no record has the field.
        WrongTypeError: If it is neither a name nor a function, or others are functions.
    """
    selector: Any = field_or_function(key, parameter)
    if others:
        parts = [field_or_function(name, "key") for name in (key, *others)]
        single = [part for part in parts if isinstance(part, FieldSelector)]
        if len(single) < len(parts):
            raise WrongTypeError(
                "key",
                "a function cannot be one of several keys",
                'Write names of fields, key_by("a", "b"), or one function that '
                "returns a tuple.",
            )
        selector = FieldsSelector(tuple(single))
    fields = known_fields(origins)
    if fields is not None:
        fields.check(selector, parameter)
    return selector


class _Extreme:
    """Keeps of two records the one with the smaller, or larger, value of a field."""

    def __init__(self, name: str, read: Callable[[Any], Any], *, first: bool) -> None:
        self._name = name
        self._read = read
        self._takes: Callable[[Any, Any], Any] = _TAKES[name, first]

    def __repr__(self) -> str:
        return f"{self._name}({described_key(self._read)})"

    def __call__(self, kept: Any, record: Any) -> Any:
        read = self._read
        value, held = read(record), read(kept)
        # Only NaN is not equal to itself: it never wins.
        return record if self._takes(value, held) or held != held else kept

    def look(self, warn: Callable[..., Any], record: Any) -> None:
        """Warn if the first value is text that may be meant as a number."""
        warn_of_ranks(warn, self, self._read, self._read(record))


# Whether a record takes the place of the one that is kept, by their values.
_TAKES: Final[dict[tuple[str, bool], Callable[[Any, Any], Any]]] = {
    ("min_by", True): operator.lt,
    ("min_by", False): operator.le,
    ("max_by", True): operator.gt,
    ("max_by", False): operator.ge,
}


def extreme(
    name: str, field: str | Callable[[Any], Any], first: bool, origins: list[Origin]
) -> Callable[[Any, Any], Any]:
    """Return the reduce function of ``min_by`` or ``max_by``.

    Raises:
        InvalidArgumentError: If it is known that no record has the field.
        WrongTypeError: If an argument has the wrong type.

    Example:
        >>> larger = extreme("max_by", len, True, [])
        >>> larger("ab", "cd"), larger("ab", "cde")
        ('ab', 'cde')
    """
    read: Any = field_or_function(field, "field")
    check_type(first, bool, "first", "Write first=False.")
    if isinstance(read, FieldSelector):
        if (fields := known_fields(origins)) is not None:
            fields.check(read, "field")
    else:
        check_function(read, "field", arity=1)
    return _Extreme(name, read, first=first)


# Methods of functions that the library calls.
_LONG_HOOKS: Final = (
    "process_element",
    "process_element1",
    "process_element2",
    "process_broadcast_element",
    "on_timer",
    "notify_checkpoint_complete",
    "notify_checkpoint_aborted",
    "snapshot_state",
)
_HOOKS: Final = frozenset(
    (*_LONG_HOOKS, "open", "close", "finish", "process", "end_input", "next_selection")
)
_CONTAINERS: Final = (list, dict, set, deque)
_ADDING: Final = frozenset(("add", "append", "appendleft", "extend"))


def warn_of_own_counts(function: Any, *methods: str) -> None:
    """Warn of what a keyed function counts on itself, as in ``self.count += 1``.

    One that keeps such things itself (`CheckpointedFunction`) knows what it does.
    """
    warn_of_misnamed(function)
    if hasattr(function, "snapshot_state"):
        return
    for name in methods:
        method = getattr(type(function), name, None)
        code = getattr(method, "__code__", None)
        if not isinstance(code, CodeType) or not is_users(code.co_filename):
            continue
        if kept := sorted(_kept_on_self(code, function)):
            library_log().warning(
                "a function with keys keeps values on itself: all keys of a subtask "
                "share them, and no checkpoint has them",
                attributes=[f"self.{attribute}" for attribute in kept],
                function=describe(cast("Callable[..., Any]", method)),
                remedy="use state, such as context.keyed_state.get_list("
                "am.ListStateDescriptor('seen', str))",
            )
        if counted := sorted(_counted_on_self(code)):
            library_log().warning(
                "a function with keys counts on itself: all keys of a subtask share that, "
                "and no checkpoint has it",
                attributes=[f"self.{attribute}" for attribute in counted],
                function=describe(cast("Callable[..., Any]", method)),
                remedy="use state, context.keyed_state.get_value(am.ValueStateDescriptor("
                "'count', int, default=0)); for a number that people look at, "
                "context.metrics.counter('count')",
            )


def _counted_on_self(code: CodeType) -> set[str]:
    """Return the attributes of the first argument that a function adds to."""
    steps = list(dis.get_instructions(code))
    own = code.co_varnames[:1]
    # That an object is copied, and then asked for an attribute, is an assignment such as
    # `+=` alone.
    return {
        third.argval
        for first, second, third in zip(steps, steps[1:], steps[2:], strict=False)
        if first.opname.startswith("LOAD_FAST")
        and (first.argval,) == own
        and second.opname == "COPY"
        and third.opname == "LOAD_ATTR"
    }


def _kept_on_self(code: CodeType, function: object) -> set[str]:
    """Return the containers of an object that a method adds to, as `self.seen.add(...)`.

    What `open` makes, as the objects of states, is not there yet.
    """
    kept: set[str] = set()
    name = ""
    for first, second in pairwise(dis.get_instructions(code)):
        if first.opname.startswith("LOAD_FAST") and first.argval == code.co_varnames[0]:
            own = (
                vars(function).get(second.argval)
                if hasattr(function, "__dict__")
                else 0
            )
            name = second.argval if isinstance(own, _CONTAINERS) else ""
        elif first.opname.startswith(("POP_TOP", "STORE", "RETURN", "POP_JUMP")):
            name = ""
        elif name and first.opname.startswith("LOAD_") and first.argval in _ADDING:
            kept.add(name)
    return kept


def warn_of_misnamed(function: object) -> None:
    """Warn of a method that is called like one that the library would call."""
    own = {
        name
        for kind in type(function).__mro__
        if not kind.__module__.startswith("aiomailbox.") and kind is not object
        for name, value in vars(kind).items()
        if isinstance(value, FunctionType) and not name.startswith("_")
    }
    for name in sorted(own - _HOOKS):
        meant = snake_case(name)
        if meant not in _HOOKS:
            close = difflib.get_close_matches(meant, _LONG_HOOKS, n=1, cutoff=0.8)
            meant = close[0] if close else ""
        if meant and meant not in own:
            warn_here(
                f"a function has a method {name}, which nobody calls",
                function=type(function).__qualname__,
                remedy=f"if it is meant, call it {meant}",
            )


def described_key(key: str | Callable[[Any], Any]) -> str:
    """Return what keys are, in a few words: a field's name, or the function."""
    if isinstance(key, str):
        return repr(key)
    if isinstance(key, FieldSelector | FieldsSelector):
        return ", ".join(map(repr, key.fields))
    return describe(key)


def described_origins(origins: Iterable[Origin]) -> str:
    """Return where records come from, in a few words."""
    return " + ".join(
        origin.transformation.name + (f"[{origin.tag.id}]" if origin.tag else "")
        for origin in origins
    )


def key_check(key: Callable[[Any], Any], on_error: OnError) -> Operator:
    """Make the operator that sets aside the records without a key of the right type."""
    return stateless(StageKind.FILTER, KeyCheck(key), on_error=on_error)


def own_copy(make: Callable[..., OperatorT], *args: Any, **named: Any) -> OperatorT:
    """Make an operator with copies of its own of the user's objects that have a life.

    All subtasks are made from one description. What an object sets on itself in
    ``open`` belongs to one of them, so each works on a shallow copy.
    """
    copies = {name: _own(value, name) for name, value in named.items()}
    return make(*(_own(value, "function") for value in args), **copies)


_OF_A_LIFE: Final = (
    "open",
    "close",
    "__aenter__",
    "notify_checkpoint_complete",
    "notify_checkpoint_aborted",
)


def _own(value: Any, parameter: str) -> Any:
    if value is None or inspect.isclass(value) or inspect.isroutine(value):
        return value
    # Coroutines and generators have `close`, and cannot be copied.
    refuse_called(value, parameter)
    has_life = any(hasattr(value, name) for name in _OF_A_LIFE)
    return copy.copy(value) if has_life else value


def check_strategy(
    strategy: object, parameter: str, *, of_source: bool = True
) -> WatermarkStrategy:
    """Return ``strategy`` if it is a `WatermarkStrategy` that jobs follow, else raise."""
    if not isinstance(strategy, WatermarkStrategy):
        raise WrongTypeError(
            parameter,
            f"{strategy!r} is not a WatermarkStrategy",
            "Use am.WatermarkStrategy.for_bounded_out_of_orderness(...).",
        )
    if strategy.alignment is not None and not of_source:
        raise InvalidArgumentError(
            parameter,
            "only a source can wait for others, so watermark alignment would have no "
            "effect here",
            "Give the strategy to from_source(...) instead.",
        )
    if dropped := strategy._use():
        warn_here(
            "a setting of a watermark strategy was dropped: strategies do not change",
            dropped=f"{dropped}(...)",
            remedy=f"{dropped} returns another strategy: write `strategy = "
            f"strategy.{dropped}(...)`",
        )
    return strategy


def has_watermarks(strategy: WatermarkStrategy[Any]) -> bool:
    """Say whether a strategy gives watermarks before its stream ends."""
    return strategy.generator_factory is not NoWatermarks


def told_strategy(strategy: WatermarkStrategy) -> str:
    """Say where event times come from, and how watermarks follow them, for `explain`.

    Example:
        >>> strategy = WatermarkStrategy.for_monotonous_timestamps()
        >>> told_strategy(strategy.with_timestamp_assigner("at"))
        "event times from 'at', watermarks in order"
    """
    assigner, factory = strategy.assigner, strategy.generator_factory
    if assigner is None:
        times = "of the records"
    elif isinstance(assigner, str):
        times = f"from {assigner!r}"
    else:
        times = f"by {describe(assigner)}"
    if factory is NoWatermarks:
        marks = "no watermarks before the end"
    elif isinstance(factory, partial) and factory.func is BoundedOutOfOrderness:
        [bound_ms] = factory.args
        marks = f"watermarks {duration_text(bound_ms)} behind the newest record"
        marks = marks if bound_ms else "watermarks in order"
    else:
        marks = f"watermarks by {describe(factory)}"
    texts = [f"event times {times}, {marks}"]
    if strategy.idleness_ms is not None:
        texts.append(f"idle after {duration_text(strategy.idleness_ms)}")
    if strategy.alignment is not None:
        drift = duration_text(strategy.alignment.max_drift_ms)
        texts.append(f"at most {drift} ahead in group {strategy.alignment.group!r}")
    return ", ".join(texts)


def check_source(source: object) -> None:
    """Refuse what is no source, and say what makes one of it.

    Raises:
        WrongTypeError: If it is none.
    """
    if isinstance(source, type) and hasattr(source, "create_reader"):
        raise WrongTypeError(
            "source",
            f"{source.__name__} is a class",
            f"Make a source of it: {source.__name__}(...).",
        )
    if hasattr(source, "create_reader"):
        _check_parts(source, "source", ("create_enumerator", "boundedness"))
        return
    remedy = (
        "Use am.SparkSource(df), am.FileSource(path), env.from_collection(...), "
        "env.from_arrow(...) or env.from_async_iterable(...)."
    )
    if isinstance(source, str | os.PathLike):
        remedy = "For files use am.FileSource(path)."
    elif hasattr(type(source), "__aiter__") or inspect.isasyncgenfunction(source):
        remedy = "Use env.from_async_iterable(...)."
    elif isinstance(source, list | tuple | range):
        remedy = "Use env.from_collection(...)."
    raise WrongTypeError("source", f"{shortened(source)} is not a source", remedy)


def _check_parts(given: object, parameter: str, names: Iterable[str]) -> None:
    """Refuse a source or a sink of the user's own that lacks a part.

    Raises:
        WrongTypeError: If it does; names the part.
    """
    for name in names:
        if not hasattr(given, name):
            kind = parameter.capitalize()
            raise WrongTypeError(
                parameter,
                f"{type(given).__qualname__} has no {name}",
                f"am.{kind} says what a {parameter} has.",
            )


def _refuse_sink(given: object) -> None:
    """Say what makes a sink of something that is neither that nor a function."""
    refuse_called(given, "sink")
    if isinstance(given, str | os.PathLike):
        remedy = "For files use am.ParquetSink(path) or am.FileSink(path, 'jsonl')."
    elif isinstance(given, list):
        remedy = "Write sink_to(results.append), or use await stream.collect()."
    elif isinstance(given, type) and "__call__" in vars(given):
        remedy = f"It is a class: give an object of it, {given.__name__}(...)."
    elif not callable(given):
        remedy = "Give a function of a record, or a sink such as am.ParquetSink(path)."
    else:
        return
    raise WrongTypeError(
        "sink", f"{shortened(given)} is neither a sink nor a function", remedy
    )


def _warn_of_twin(
    function: object, origins: list[Origin], others: list[Transformation]
) -> None:
    """Warn of a stream that ends twice in one function, as where a cell is run again."""
    for other in others:
        sink = other.sink
        if (
            isinstance(sink, FunctionSink)
            and sink.function == function
            and other.inputs[0] == origins
        ):
            warn_here(
                "a stream ends in the same function twice: it gets each record twice",
                function=describe(cast("Any", function)),
                first=other.line,
                remedy="in a notebook, make the environment in the cell that adds the "
                "sink",
            )
            return


def sink_transformation(
    sink: Sink | Callable[[Any], Any],
    origins: list[Origin],
    others: list[Transformation],
    on_error: OnError,
    run_in: str,
) -> Transformation:
    """Return the end of a stream, with a name that no other sink has."""
    functions: tuple[FunctionInfo, ...] = ()
    if hasattr(sink, "create_writer") and not isinstance(sink, type):
        found = cast("Sink", sink)
        _check_parts(sink, "sink", ("create_committer",))
        if run_in != "loop":
            raise InvalidArgumentError(
                "run_in",
                f"{type(sink).__name__} is a sink, and sinks decide themselves what they await",
                "Leave it out; it is for functions.",
            )
    elif hasattr(sink, "create_writer"):
        raise WrongTypeError(
            "sink",
            f"{sink!r} is a class",
            'Make one of it, as in am.FileSink("results", "jsonl").',
        )
    else:
        _refuse_sink(sink)
        function = check_function(sink, "sink", arity=1)
        remedy = "Write the record; what is yielded goes nowhere."
        refuse_generator(sink, "sink", remedy)
        warn_of_unopened(function, "sink_to")
        _warn_of_twin(function, origins, others)
        found = FunctionSink(function, run_in=run_in)
        functions = (function_info(function),)
    name = free_name(type(found).__name__, {other.name for other in others})
    # Columns get the types that the source knows, or a declared class.
    knowing = getattr(found, "for_fields", None)
    if knowing is not None:
        found = knowing(known_fields(origins))
    factory = partial(SinkOperator, found, on_error=check_on_error(on_error))
    return Transformation(
        name,
        factory,
        [origins],
        # Sinks were numbered in this way before they were as all operators are.
        id_name=name.replace(" #", "-"),
        functions=functions,
        sink=found,
        takes_columns=getattr(found, "takes_columns", False),
        line=caller_location(),
    )
