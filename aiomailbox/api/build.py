"""Checks of what users give, where it was given: names, functions, sources and sinks."""

from __future__ import annotations

import difflib
import dis
import inspect
import operator
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any, Final, Literal, cast

from aiomailbox import connectors
from aiomailbox.api.definition import function_info
from aiomailbox.connectors.sinks import FunctionSink
from aiomailbox.durations import duration_text
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.eventtime.generators import BoundedOutOfOrderness, NoWatermarks
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.graph.job_graph import free_name
from aiomailbox.graph.transformation import (
    FunctionInfo,
    Origin,
    Transformation,
    known_fields,
)
from aiomailbox.logs import library_log
from aiomailbox.operators.aggregates.functions import (
    warn_of_ranks,
)
from aiomailbox.operators.core.fields import (
    FieldSelector,
    FieldsSelector,
    field_or_function,
    is_expression,
)
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.core.user_code import (
    OnError,
    caller_location,
    check_function,
    check_on_error,
    describe,
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
from aiomailbox.signatures import check_count, check_type, snake_case

# Flink's upper bound, too: it is what a key group's number fits into.
MAX_PARALLELISM_MAX: Final = 2**15
# Where a synchronous function runs.
RunIn = Literal["loop", "thread"]
# What `explain` says of operators that keep something per key for ever.
GROWS_WITH_KEYS: Final = "state grows with the number of keys, no TTL"


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
