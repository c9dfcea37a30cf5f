"""A job in the making: operators as they are written, sinks, and the way to run them."""

from __future__ import annotations

import ast
import atexit
import copy
import inspect
import os
import sys
import textwrap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import product
from types import CellType, CodeType, FunctionType
from typing import Any, Final, TypeVar

import msgspec

from aiomailbox import connectors
from aiomailbox.clock import Clock
from aiomailbox.connectors.inbox import Inbox
from aiomailbox.errors import MissingExtraError, UsageError, WrongTypeError
from aiomailbox.eventtime.strategy import WatermarkStrategy
from aiomailbox.graph.describe import (
    describe_mermaid,
    describe_plan,
    describe_svg,
    describe_text,
)
from aiomailbox.graph.job_graph import JobGraph, build_job_graph
from aiomailbox.graph.transformation import (
    FunctionInfo,
    OperatorFactory,
    Origin,
    Transformation,
    known_fields,
    reachable,
    rows_from,
)
from aiomailbox.logs import library_log
from aiomailbox.operators.aggregates.functions import fields_read, with_expressions
from aiomailbox.operators.core.fields import (
    FieldSelector,
    FieldsSelector,
    RecordFields,
    field_or_function,
)
from aiomailbox.operators.core.operator import Operator, RowsNote
from aiomailbox.operators.core.user_code import (
    OnError,
    caller_location,
    describe,
    is_async_callable,
    is_called_by_import,
    refuse_called,
)
from aiomailbox.operators.sources.source import Boundedness
from aiomailbox.policies.cache import Cache
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.deployment import Deployment, Embedded, check_deployable
from aiomailbox.runtime.master import JobMaster
from aiomailbox.runtime.services import PullHandover
from aiomailbox.signatures import check_choice
from aiomailbox.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)

# Of operators that nothing reads: enough to name a mistake.
_DECLARED_MAX: Final = 1000

# The first sink that no job has run, and its line, of each definition that has one. A
# definition may be gone at the end of the program: it has a token here.
_UNRUN: Final[dict[object, tuple[str, str]]] = {}
_UNRUN_MAX: Final = 1000
# Nobody runs in a copy of the process what was written in the original.
os.register_at_fork(after_in_child=_UNRUN.clear)


@dataclass(slots=True, eq=False)
class JobDefinition:
    """The description of jobs that an environment and its streams share.

    Attributes:
        parallelism: Subtasks of operators that do not say how many.
        max_parallelism: Key groups, None for Flink's default.
        clock: The job's clock, None for the event loop's own or the machine's.
        config: The settings of jobs.
        sinks: What `execute` runs: transformations whose effects are wanted.
        executed: What it has run last, to be explained.
        taken_by: The job that has taken what ended in sinks before; "" if there was none.
        refused: Whether the last ones that ended in sinks are given up: no job can run them.
        declared: The newest operators that no job has run.
        token: Stands for it among those with sinks that no job has run.
    """

    parallelism: int = 1
    max_parallelism: int | None = None
    clock: Clock | None = None
    config: JobConfig = field(default_factory=JobConfig)
    sinks: list[Transformation] = field(default_factory=list)
    executed: list[Transformation] = field(default_factory=list)
    taken_by: str = ""
    refused: bool = False
    declared: deque[Transformation] = field(
        default_factory=partial(deque, maxlen=_DECLARED_MAX)
    )
    token: object = field(default_factory=object)

    def end_in(self, sink: Transformation) -> None:
        """Keep a sink for `execute`."""
        self.sinks.append(sink)
        # A module that others import may offer what they do not run.
        if len(_UNRUN) < _UNRUN_MAX and not is_called_by_import():
            _UNRUN.setdefault(self.token, (sink.name, sink.line))

    def warn_of_late_sink(self, job: str) -> None:
        """Warn of a sink that came after a job had taken the others; once for each job."""
        sink, line = _UNRUN.pop(self.token, ("", ""))
        if sink:
            library_log(job=job).warning(
                "the job does not run a sink: it was added after the start",
                sink=sink,
                line=line,
                remedy="add all sinks before the job starts, or run this one as a "
                "job of its own with `await env.execute()`",
            )

    def warn_of_late_settings(self, job: str, before: JobConfig) -> JobConfig:
        """Warn of settings that came after the only job of this definition had started.

        Args:
            job: The job.
            before: The settings when it started.

        Returns:
            Those that were told of, to be told of the next ones only.
        """
        changed = [
            one.name
            for one in fields(before)
            if getattr(before, one.name) != getattr(self.config, one.name)
        ]
        # They may be for a job that is still to start.
        if changed and self.taken_by == job and not self.sinks:
            library_log(job=job).warning(
                "settings were changed after the job had started: it runs without them",
                settings=changed,
                remedy="call env.configure(...) and env.enable_checkpointing(...) before "
                "the job starts",
            )
        return self.config

    def declare(self, item: Transformation) -> list[Origin]:
        """Keep an operator that the user has written, and return its results' origins."""
        for origins in item.inputs:
            refuse_ended(origins)
        item.line = caller_location()
        self.declared.append(item)
        return [Origin(item)]

    def change(
        self, item: Transformation, call: str, **settings: Any
    ) -> Transformation:
        """Return a copy of an operator with other settings, which takes its place.

        Raises:
            UsageError: If it is a sink of a job that has started.
        """
        if item.is_part_of_input:
            [[origin]] = item.inputs
            changed = self.change(origin.transformation, call, **settings)
            settings = {"inputs": [[replace(origin, transformation=changed)]]}
        other = replace(item, changed_by="", **settings)
        if item.sink is not None and not _put(self.sinks, item, other):
            raise UsageError(
                f"{call} comes too late for sink {item.name!r}: its job has started"
            )
        _put(self.declared, item, other)
        item.changed_by = f"{call} at {caller_location()}"
        return other

    def forget_unread(self) -> list[Transformation]:
        """Return the last operators of branches that no job has run, and not again."""
        declared = list(self.declared)
        self.declared.clear()
        inputs = {
            id(origin.transformation)
            for item in declared
            for united in item.inputs
            for origin in united
        }
        return [item for item in declared if id(item) not in inputs]

    def job_graph(
        self,
        name: str,
        sinks: list[Transformation],
        config: JobConfig | None = None,
    ) -> JobGraph:
        """Return the job graph of what the sinks need.

        Raises:
            UsageError: If there is no sink.
            InvalidArgumentError: If the graph cannot be deployed as described.
        """
        if not sinks:
            reason = "no stream ends in a sink"
            if self.refused:
                reason = (
                    "the streams that end in a sink were refused when they were to run, "
                    "and are given up, because streams do not change"
                )
            elif self.taken_by:
                reason = (
                    f"job {self.taken_by!r} took all streams that end in a sink when it "
                    "was started"
                )
            message = (
                f"there is nothing to run: {reason}. End a stream with sink_to(...), "
                "again if it should run again, or use await stream.collect() or "
                "async for record in stream"
            )
            raise UsageError(message)
        if sinks[-1] in self.sinks:
            # What is run, or explained, is not forgotten.
            _UNRUN.pop(self.token, None)
        _check_unchanged(sinks)
        config = config or self.config
        return build_job_graph(
            name,
            sinks,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            chaining=config.operator_chaining,
            parent_apart=_place(config).parent_apart,
        )

    def _forget(self, sinks: list[Transformation]) -> None:
        """Run no sinks that no job can have, as nothing can mend them."""
        kept = [item for item in self.sinks if item not in sinks]
        self.refused = len(kept) < len(self.sinks)
        self.sinks[:] = kept

    def explain(self, name: str, sinks: list[Transformation], form: str) -> str:
        """Return the graph of what ends in the sinks.

        Raises:
            InvalidArgumentError: If the form is not known.
            UsageError: If there is no sink.
        """
        check_choice(form, "format", "text", *_FORMS)
        graph, config = self.job_graph(name, sinks), self.config
        if form != "text":
            return _FORMS[form](graph)
        checkpoints = config.checkpoints
        return describe_text(
            graph,
            buffers_per_channel=config.buffers_per_channel,
            floating_buffers=config.floating_buffers,
            stays_here=isinstance(_place(config), Embedded),
            buffer_size_bytes=config.buffer_size_bytes,
            unaligned=checkpoints is not None and checkpoints.unaligned,
            counts=(
                None
                if checkpoints is None
                else checkpoints.mode.value.replace("_", " ")
            ),
            checkpoints="" if checkpoints is None else str(checkpoints),
        )

    def deploy(
        self,
        name: str,
        sinks: list[Transformation],
        *,
        handovers: dict[str, PullHandover] | None = None,
        config: JobConfig | None = None,
    ) -> JobMaster:
        """Start a job for the sinks on the running loop and return it.

        Raises:
            UsageError: If there is nothing to run.
        """
        config = config or self.config
        place = _place(config)
        try:
            graph = self.job_graph(name, sinks, config)
        except UsageError:
            self._forget(sinks)
            raise
        # Workers get the settings, and start no others.
        config = replace(traced(config), deployment=None)
        _check_inboxes(graph)
        _check_files(graph)
        check_deployable(graph, config)
        job = place.deploy(graph, config, clock=self.clock, handovers=handovers or {})
        run = {id(item) for item in reachable(sinks)}
        left = [item for item in self.declared if id(item) not in run]
        self.declared.clear()
        self.declared.extend(left)
        return job


def refuse_ended(origins: Iterable[Origin]) -> None:
    """Refuse to go on from a sink, which emits nothing but dead letters.

    Raises:
        UsageError: If a stream is the end of one.
    """
    for origin in origins:
        item = origin.transformation
        if item.sink is not None and origin.tag is None:
            message = (
                f"a stream ends in sink_to(...): no records come out of {item.name!r} "
                f"({item.line}). Go on from the stream before it, which may have several "
                "ends"
            )
            raise UsageError(message)


def warn_of_unrun() -> None:
    """Warn, at the end of the program, of environments that were never executed.

    Not at a prompt and in a notebook, where somebody was about to, nor if the program
    ends with an error.
    """
    unrun = list(_UNRUN.values())
    if not unrun or hasattr(sys, "ps1") or getattr(sys, "last_value", None) is not None:
        return
    sink, line = unrun[0]
    library_log().warning(
        "the program ends, and an environment with sinks was never executed",
        sink=sink,
        line=line,
        environments=len(unrun),
        remedy="write `await env.execute()`, or `am.run(env.execute())` outside of "
        "async functions",
    )


# A test may build what it does not run.
if "pytest" not in sys.modules:
    atexit.register(warn_of_unrun)


def _put(
    items: MutableSequence[Transformation], item: Transformation, other: Transformation
) -> bool:
    """Put another in the place of an operator, if it is there; say whether it was."""
    # The newest are asked for.
    for place in range(len(items) - 1, -1, -1):
        if items[place] is item:
            items[place] = other
            return True
    return False


def _check_unchanged(sinks: list[Transformation]) -> None:
    """Refuse an operator of which a changed copy was made.

    Raises:
        UsageError: If there is one; names the call that made the copy.
    """
    for item in reachable(sinks):
        if item.changed_by:
            call, _, line = item.changed_by.partition(" at ")
            raise UsageError(
                f"the job uses operator {item.name!r} as it was before {call} "
                f"({line}). A stream does not change: {call} returns another one, so "
                f"write `stream = stream{call}`, and use that one only"
            )


def _place(config: JobConfig) -> Deployment:
    return config.deployment or Embedded()


def _as_json(graph: JobGraph) -> str:
    return msgspec.json.encode(describe_plan(graph)).decode()


_FORMS: Final[dict[str, Callable[[JobGraph], str]]] = {
    "json": _as_json,
    "mermaid": describe_mermaid,
    "svg": describe_svg,
}


def traced(config: JobConfig) -> JobConfig:
    """Return the settings with the trace of the code that runs now, if calls have spans.

    Raises:
        MissingExtraError: If they are to have spans, and there is no OpenTelemetry.
    """
    if not config.trace_calls:
        return config
    try:
        from opentelemetry import propagate
    except ImportError as error:
        raise MissingExtraError("trace_calls", "otel") from error
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return replace(config, trace_carrier=carrier)


def _check_inboxes(graph: JobGraph) -> None:
    """Refuse an inbox of which two sources of a job would each get some records.

    Raises:
        UsageError: If there is one; names both lines.
    """
    readers: dict[int, Transformation] = {}
    for item in (node.transformation for each in graph.vertices for node in each.nodes):
        if not isinstance(item.source, Inbox):
            continue
        other = readers.setdefault(id(item.source), item)
        if other is not item:
            raise UsageError(
                f"one inbox is the source of two streams of the job ({other.line} and "
                f"{item.line}): each record would go to one of them only. Write `stream = "
                "env.from_source(inbox)` once, and begin both with `stream`; or give "
                "each its own inbox"
            )


def _check_files(graph: JobGraph) -> None:
    """Look at sinks that write files where a source of the job reads.

    Raises:
        UsageError: If the source looks for new files: it would read those for ever.
    """
    items = [node.transformation for node in graph.nodes]
    for source, sink in product(items, items):
        files: Any = source.source
        may_read = getattr(files, "may_read", None)
        if may_read is None:
            continue
        # Spark has to be asked for that of a table.
        file_like = getattr(sink.sink, "file_like", None)
        if file_like is None or not may_read(file_like):
            continue
        if files.boundedness is Boundedness.UNBOUNDED:
            raise UsageError(
                f"{sink.sink!r} ({sink.line}) writes where {files!r} "
                f"({source.line}) looks for new files: the job would read its own "
                "results, again and again. Let the sink write to a directory that the "
                "source does not read"
            )
        library_log().warning(
            "a sink writes files where a source of its job reads: the next job reads "
            "the results of this one",
            sink=repr(sink.sink),
            sink_line=sink.line,
            source=repr(files),
            source_line=source.line,
            remedy="let the sink write to a directory that the source does not read",
        )


# An operator, as it is described when it is written.


OperatorT = TypeVar("OperatorT", bound=Operator)
# Arguments of operators that are names of fields where they are texts.
_NAMES_OF_FIELDS: Final = frozenset({"id", "key"})


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


def expression_infos(*expressions: Any) -> tuple[FunctionInfo, ...]:
    """Describe expressions for `explain`."""
    return tuple(FunctionInfo(str(each), is_async=False) for each in expressions)


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
