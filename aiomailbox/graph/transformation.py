"""The user's calls as a graph: operators, and where their input comes from.

Nothing here is live: a transformation holds factories and descriptors only, so that
a graph can be pickled, sent to another process, and run there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from aiomailbox.exchange.writer import Partitioner
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.core.operator import Operator, RowsNote
from aiomailbox.operators.sinks.sink import Sink
from aiomailbox.operators.sources.source import Source
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.records.events import OutputTag

OperatorFactory = Callable[[], Operator]


class ChainingStrategy(Enum):
    """Whether an operator may share a task with its neighbours.

    Concept:
        Flink, ``ChainingStrategy``.
    """

    ALWAYS = "always"
    HEAD = "head"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class FunctionInfo:
    """A user's function, for people: what it is called and how it is run.

    Attributes:
        text: Its name.
        is_async: Whether it is awaited.
        note: More text about it.
        unbounded: State that it keeps for ever, if it is on a keyed stream.
    """

    text: str
    is_async: bool
    note: str = ""
    unbounded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where records come from: an operator's main or side output, and their way.

    Attributes:
        transformation: The operator that emits.
        partitioner: How records are spread over the consumer's subtasks; None means
            forward if the parallelism is equal, else rebalance.
        tag: The side output, None for the main output.
        is_blocking: Whether the records are kept in files, and read when the producer
            has finished.
    """

    transformation: Transformation
    partitioner: Partitioner | None = None
    tag: OutputTag | None = None
    is_blocking: bool = False


@dataclass(slots=True, eq=False)
class Transformation:
    """One operator of the job as described by the user.

    Attributes:
        name: Its name, for people.
        id_name: The name that its id is made of, as savepoints have it; "" for its name.
        factory: Makes the operator, one per subtask.
        inputs: For each input of the operator, the origins that are united there.
        parallelism: Subtasks; None means the environment's.
        parallelism_max: More subtasks than this make no sense; None for no bound.
        follows_input: Whether it has as many subtasks as its input where it says
            nothing, so that records stay in order; one where several inputs differ.
        is_part_of_input: Whether what is said of its stream, and the side outputs,
            are those of its input: a check that an argument of another verb asked for.
        max_parallelism: Key groups, None for the environment's.
        uid: The user's stable name, for state.
        chaining: Whether it may share a task.
        slot_sharing_group: Whose tasks it may share a worker with; None for the group
            of all its inputs, or the default one if they differ.
        is_keyed: Whether it has keyed state and timers.
        functions: The user's functions in it.
        bound: The most that it holds, for `explain`; "" for nothing beyond a run.
        unbounded: The state that grows without end in it, for `explain`; "" for nothing
            known.
        held: The contents that it emits only when event time advances, or ends; "" for
            none.
        waits_for_watermarks: Whether it emits nothing before a watermark comes.
        watermarks: Whether it makes some before its input ends; None if it passes on
            those that come.
        settings: Its event times and windows, for `explain`: a line for each.
        emits_at_end: Whether it emits only when its input has ended.
        no_checkpoints: Why its job takes no checkpoints; "" if it may.
        limit: The rate limit that it was given, if any.
        has_journal: Whether it keeps finished calls in a journal.
        takes_columns: Whether columns that come in go out as columns.
        columns_aside: The side outputs of records that came in, columns if these were.
        asks_for_rows: The part of it that needs rows, for `explain`; "" for its
            function.
        rows_note: Why it went on with rows when it ran, if it takes columns.
        record_fields: The fields of the records that it emits; None if not known.
        source: The source, if this is one.
        sink: The sink, if this is one.
        changed_by: The call, with its line, that returned a stream of a changed copy;
            "" if there was none. A job that uses both would run the operator twice.
        line: Where the user made it, as ``file:line``; "" if that is not known.
    """

    name: str
    factory: OperatorFactory
    inputs: list[list[Origin]] = field(default_factory=list)
    id_name: str = ""
    parallelism: int | None = None
    parallelism_max: int | None = None
    follows_input: bool = False
    is_part_of_input: bool = False
    max_parallelism: int | None = None
    uid: str | None = None
    chaining: ChainingStrategy = ChainingStrategy.ALWAYS
    slot_sharing_group: str | None = None
    is_keyed: bool = False
    functions: tuple[FunctionInfo, ...] = ()
    bound: str = ""
    unbounded: str = ""
    held: str = ""
    waits_for_watermarks: bool = False
    watermarks: bool | None = None
    settings: tuple[str, ...] = ()
    emits_at_end: bool = False
    no_checkpoints: str = ""
    limit: RateLimit | None = None
    has_journal: bool = False
    takes_columns: bool = False
    columns_aside: frozenset[OutputTag] = frozenset()
    asks_for_rows: str = ""
    rows_note: RowsNote | None = None
    record_fields: RecordFields | None = None
    source: Source[Any] | None = None
    sink: Sink | None = None
    changed_by: str = ""
    line: str = ""


def reachable(sinks: list[Transformation]) -> list[Transformation]:
    """Return the sinks and everything upstream of them, upstream first.

    The order is that of discovery: stable for the same calls.
    """
    ordered: list[Transformation] = []
    seen: set[int] = set()
    stack: list[tuple[Transformation, bool]] = [(sink, False) for sink in sinks[::-1]]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            ordered.append(node)
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        stack.append((node, True))
        origins = [origin for united in node.inputs for origin in united]
        stack += [(origin.transformation, False) for origin in origins[::-1]]
    return ordered


def known_fields(origins: list[Origin]) -> RecordFields | None:
    """Return the fields of the records of a stream, None if they are not known."""
    known: list[RecordFields] = []
    for origin in origins:
        fields = None if origin.tag else origin.transformation.record_fields
        if fields is None:
            return None
        known.append(fields)
    return RecordFields.union(known)


def rows_from(origins: list[Origin]) -> Transformation | None:
    """Return the operator or source because of which rows come, None if columns do."""
    origins = list(origins)
    seen: set[int] = set()
    while origins:
        origin = origins.pop()
        upstream = origin.transformation
        if id(upstream) in seen:
            continue
        seen.add(id(upstream))
        if origin.tag is None and getattr(upstream.source, "gives_columns", False):
            continue
        passed_on = origin.tag is None or origin.tag in upstream.columns_aside
        if not passed_on or not upstream.takes_columns:
            return upstream
        origins += [each for united in upstream.inputs for each in united]
    return None
