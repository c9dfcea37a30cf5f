"""The state of each task, made from the state of an earlier graph's tasks: pure.

Theory of operation: what was kept is sorted by operators, whichever tasks these were in,
spread over their present subtasks, and put together by present tasks. So chaining and
parallelism may be others than when it was kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from aiomailbox.errors import StateError, named_operator
from aiomailbox.eventtime.valve import ValveSnapshot
from aiomailbox.exchange.core.contract import decode_in_flight, encode_in_flight
from aiomailbox.graph.job_graph import (
    JobGraph,
    channel_name,
    consumers_of,
    is_channel_of,
    producer_of_channel,
)
from aiomailbox.graph.transformation import Transformation
from aiomailbox.ids import OperatorId, VertexId
from aiomailbox.logs import library_log
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot, redistribute
from aiomailbox.operators.stateless.operators import (
    AsyncStatelessOperator,
    StatelessOperator,
)
from aiomailbox.operators.stateless.thread_operator import ThreadOperator
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.events import LatencyMarker, Watermark, WatermarkStatus
from aiomailbox.task.in_flight import TaskSnapshot

# By vertex and subtask.
RestoredTasks = Mapping[tuple[VertexId, int], TaskSnapshot]
_Inputs = tuple[ValveSnapshot, ...]
_Channels = Mapping[str, tuple[bytes, ...]]
_InFlight = dict[tuple[VertexId, int], dict[str, tuple[bytes, ...]]]


@dataclass(frozen=True, slots=True)
class SavedJob:
    """All that a job resumes from, by the ids of operators.

    Attributes:
        operators: Per operator the snapshots of its subtasks, in order; None where one
            had nothing.
        inputs: Per operator that was the head of its tasks how far event time had come
            on the channels of each subtask.
        enumerators: Per source what its enumerator resumes from.
        channels: The data in flight of an unaligned checkpoint: what was kept at each
            end of a channel, by its name there; see `sent` and `received`.
    """

    operators: Mapping[OperatorId, Sequence[OperatorSnapshot | None]] = field(
        default_factory=dict
    )
    inputs: Mapping[OperatorId, Sequence[_Inputs]] = field(default_factory=dict)
    enumerators: Mapping[OperatorId, OperatorSnapshot] = field(default_factory=dict)
    channels: _Channels = field(default_factory=dict)


def sent(channel: str) -> str:
    """Return the name of what is kept at the producer's end of a channel."""
    return f"sent: {channel}"


def received(channel: str) -> str:
    """Return the name of what is kept at the consumer's end of a channel."""
    return f"received: {channel}"


def job_snapshot(
    vertices: Mapping[OperatorId, Sequence[TaskSnapshot]],
    enumerators: Mapping[OperatorId, OperatorSnapshot] | None = None,
) -> SavedJob:
    """Return what the tasks of a job kept, by operators."""
    operators: dict[OperatorId, list[OperatorSnapshot | None]] = {}
    inputs: dict[OperatorId, list[_Inputs]] = {}
    channels: dict[str, tuple[bytes, ...]] = {}
    for tasks in vertices.values():
        for index, task in enumerate(tasks):
            channels.update(task.channel_state)
            for name, snapshot in task.operators.items():
                # By its own id, not by its task's: chaining may be another one in the
                # next life.
                operators.setdefault(name, [None] * len(tasks))[index] = snapshot
            for name, times in task.inputs.items():
                inputs.setdefault(name, []).append(times)
    return SavedJob(operators, inputs, enumerators or {}, channels)


def restored_tasks(
    snapshot: SavedJob,
    graph: JobGraph,
    *,
    allow_unmatched: bool = False,
    codec: ElementCodec | None = None,
) -> dict[tuple[VertexId, int], TaskSnapshot]:
    """Return what each task of a graph resumes from.

    Raises:
        StateError: If there is such state and it may not be left, the state of an
            operator cannot be spread, the number of key groups is another one, or
            records are in flight on an exchange that the graph does not have.

    Concept:
        Flink, ``StateAssignmentOperation``.
    """
    kept = snapshot.operators
    if not allow_unmatched:
        _check_matched(snapshot, graph)
    else:
        _warn_of_unmatched(snapshot, graph)
        kept = {
            name: [one and _may_be_left(one) for one in found]
            for name, found in kept.items()
        }
    _check_key_groups(snapshot, graph)
    in_flight = _in_flight(snapshot.channels, graph, codec)
    tasks: dict[tuple[VertexId, int], TaskSnapshot] = {}
    for vertex in graph.vertices:
        spread = {
            node.operator_id: redistribute(found, vertex.parallelism)
            for node in vertex.nodes
            if (found := kept.get(node.operator_id)) is not None
        }
        head = vertex.head.operator_id
        times = _spread_times(snapshot.inputs.get(head, ()), vertex.parallelism)
        for index in range(vertex.parallelism):
            operators = {name: found[index] for name, found in spread.items()}
            inputs = {head: times[index]} if times else {}
            channels = in_flight.get((vertex.id, index), {})
            if operators or inputs or channels:
                tasks[vertex.id, index] = TaskSnapshot(
                    operators, inputs, channel_state=channels
                )
    return tasks


def finished_tasks(
    finished: Collection[OperatorId], graph: JobGraph
) -> dict[tuple[VertexId, int], TaskSnapshot]:
    """Return what the tasks resume from that had nothing more to do: they pass by.

    Raises:
        StateError: If one of them reads now what is not finished: it was told that
            nothing more would come.

    Concept:
        Flink, FLIP-147: ``FinishedOperatorChain``.
    """
    over = [
        vertex
        for vertex in graph.vertices
        if all(node.operator_id in finished for node in vertex.nodes)
    ]
    ids = {vertex.id for vertex in over}
    for vertex in graph.vertices:
        for edge in vertex.out_edges:
            target = graph.vertex_of(edge.target)
            if target.id in ids and vertex.id not in ids:
                raise StateError(
                    f"operator {target.head.name!r} had finished when the "
                    f"checkpoint was taken, and {vertex.name!r}, which sends it "
                    "records, had not, or is new: its records would be lost. "
                    "Restore an earlier checkpoint."
                )
    return {
        (vertex.id, index): TaskSnapshot(is_finished=True)
        for vertex in over
        for index in range(vertex.parallelism)
    }


def _spread_times(former: Sequence[_Inputs], parallelism: int) -> list[_Inputs]:
    """Return how far inputs are; where there are other subtasks, the one behind counts."""
    # No subtask has another number of channels: what each had goes back to it.
    if len(former) in {0, parallelism}:
        return [*former]
    # The lowest of all: the subtask behind has records that would be late otherwise.
    together = tuple(
        ValveSnapshot(min(one.watermark for one in times))
        for times in zip(*former, strict=True)
    )
    return [together] * parallelism


def _may_be_left(snapshot: OperatorSnapshot) -> OperatorSnapshot:
    """Return the same, of which what nothing asks for may be left."""
    keyed = tuple(replace(piece, allow_unmatched=True) for piece in snapshot.keyed)
    return replace(snapshot, keyed=keyed)


def _unmatched(snapshot: SavedJob, known: Collection[OperatorId]) -> list[OperatorId]:
    return sorted(
        name
        for name, found in snapshot.operators.items()
        if name not in known and any(one and not one.is_empty for one in found)
    )


def _warn_of_unmatched(snapshot: SavedJob, graph: JobGraph) -> None:
    known = {node.operator_id for node in graph.nodes}
    if lost := _unmatched(snapshot, known):
        library_log(job=graph.name).warning(
            "state is dropped: the checkpoint has it of operators that the job has not",
            dropped=lost,
            begin_empty=sorted(
                node.operator_id
                for node in graph.nodes
                if node.operator_id not in snapshot.operators
                and _may_have_state(node.transformation)
            ),
            remedy="if one of them has another uid now, give it the one that it had",
        )


def _may_have_state(item: Transformation) -> bool:
    """Say whether an operator is more than a function of one record, also as a sink."""
    if item.sink is not None:
        return not getattr(item.sink, "keeps_nothing", False)
    return not isinstance(
        item.factory(), StatelessOperator | AsyncStatelessOperator | ThreadOperator
    )


def _check_matched(snapshot: SavedJob, graph: JobGraph) -> None:
    known = {node.operator_id for node in graph.nodes}
    if lost := _unmatched(snapshot, known):
        raise StateError(
            f"the checkpoint has state of operators {lost}, and the job has "
            f"no such operators: it has {sorted(known)}. Give the operators the "
            "uids that they had, or drop that state with "
            "allow_unmatched_state=True."
        )


def _check_key_groups(snapshot: SavedJob, graph: JobGraph) -> None:
    for node in graph.nodes:
        for one in snapshot.operators.get(node.operator_id, ()):
            if one is None:
                continue
            counts = {piece.max_parallelism for piece in one.keyed if piece.states}
            counts |= {timers.max_parallelism for timers in one.timers.values()}
            for count in counts - {node.max_parallelism}:
                raise StateError(
                    f"the state of {named_operator(node.name, node.transformation.uid)} was written with max_parallelism "
                    f"{count}, and the job has {node.max_parallelism}: keys would "
                    "be looked up in other key groups. Set max_parallelism to "
                    f"{count}."
                )


def _in_flight(
    channels: _Channels, graph: JobGraph, codec: ElementCodec | None
) -> _InFlight:
    """Return what each task has to process first, per channel, in its order.

    Data that had arrived comes before data that was still to be sent, and an element
    may begin in the one and end in the other. All of it goes to the reader of the
    channel: so no producer has to find buffers for it before it runs.

    Concept:
        Flink, FLIP-547: output buffers are recovered on the downstream task.
    """
    # What stays in it belongs to channels that are gone.
    left = dict(channels)
    found: _InFlight = {}
    edges = [edge for vertex in graph.vertices for edge in vertex.out_edges]
    for edge in edges if left else []:
        vertex = graph.vertex_of(edge.target)
        producers, consumers = edge.source.parallelism, edge.target.parallelism
        for producer in range(producers):
            for consumer in consumers_of(
                edge.partitioner, producer, producers, consumers
            ):
                name = channel_name(edge, producer, consumer)
                # What was received is older than what was sent behind it.
                data = left.pop(received(name), ()) + left.pop(sent(name), ())
                if data:
                    of_task = found.setdefault((vertex.id, consumer), {})
                    of_task[received(name)] = data
    names = sorted({name.partition(": ")[2] for name in left})
    for name in names:
        data = left.get(received(name), ()) + left.get(sent(name), ())
        _spread_channel(name, data, graph, codec, found)
    return found


def _spread_channel(
    name: str,
    data: tuple[bytes, ...],
    graph: JobGraph,
    codec: ElementCodec | None,
    found: _InFlight,
) -> None:
    """Give the records of a channel, as the exchange says, to other numbers of subtasks.

    Each keeps the order of its records. Watermarks are left out: those of the channels
    of a task that there was are not those of one that there is.

    Concept:
        Flink, ``RecoveredChannelStateHandler`` and its record filter.
    """
    edges = (edge for vertex in graph.vertices for edge in vertex.out_edges)
    edge = next((one for one in edges if is_channel_of(name, one)), None)
    if edge is None or codec is None:
        raise StateError(
            f"the checkpoint is unaligned: it has records in flight, {name}, and the "
            "job has no such exchange. Restore it with operators that are connected and "
            "chained as they were, or take a savepoint, which has none in flight."
        )
    vertex = graph.vertex_of(edge.target)
    producers, consumers = edge.source.parallelism, edge.target.parallelism
    former = producer_of_channel(name)
    producer = former % producers
    targets = consumers_of(edge.partitioner, producer, producers, consumers)
    split = edge.partitioner.fresh(Random(former)).split_run
    for element in decode_in_flight(codec, data):
        # They are of one channel, and say nothing about others; the valves have their
        # times.
        if isinstance(element, Watermark | WatermarkStatus | LatencyMarker):
            continue
        for channel, run in split(element, len(targets)):
            consumer = targets[channel]
            of_task = found.setdefault((vertex.id, consumer), {})
            key = received(channel_name(edge, producer, consumer))
            encoded = encode_in_flight(codec, [run])
            of_task[key] = (*of_task.get(key, ()), encoded)
