"""What parent and workers say to each other: bounds, checks, and errors as text."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import (
    CorruptStreamError,
    RemoteFailureError,
    RemoteTaskError,
    UserFunctionError,
)
from aiomailbox.eventtime.alignment import AlignmentGroups
from aiomailbox.eventtime.strategy import AlignmentConfig
from aiomailbox.graph.job_graph import build_job_graph
from aiomailbox.graph.transformation import Transformation
from aiomailbox.ids import SubtaskId, VertexId
from aiomailbox.operators.core.operator import Operator
from aiomailbox.records.run_columns import PythonSerializer
from aiomailbox.runtime.config import JobConfig
from aiomailbox.runtime.peers.control import ControlChannel
from aiomailbox.runtime.peers.host import WorkerDesk
from aiomailbox.runtime.peers.messages import (
    Cancel,
    Ended,
    Failed,
    Prepared,
    Ready,
    Snapshot,
    decode_from_parent,
    decode_from_worker,
    encode,
    error_from_text,
    text_of_error,
)
from aiomailbox.runtime.peers.placement import place
from aiomailbox.runtime.peers.shipping import Shipment
from aiomailbox.runtime.views import TaskView
from aiomailbox.task.messages import Declined, SplitRequest, TaskCancelled, TaskEnded
from aiomailbox.testing import ManualClock


def channel(got: list[Any], bytes_max: int = 1000) -> tuple[Any, list[Any]]:
    lost: list[Any] = []
    made: Any = ControlChannel(
        decode_from_worker,
        bytes_max,
        lambda attempt, message: got.append((attempt, message)),
        lost.append,
    )
    made.connection_made(
        SimpleNamespace(
            abort=lambda: made.connection_lost(None), is_closing=lambda: False
        )
    )
    return made, lost


FIRST, SECOND = (SubtaskId(VertexId(0), index) for index in range(2))
MESSAGES = [
    Ready("host", None, bytes(16)),
    SplitRequest(SubtaskId(VertexId(1), 2)),
    TaskEnded(FIRST, "map", None),
    TaskCancelled(SubtaskId(VertexId(0), 0)),
    Ended(),
]


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.sampled_from(MESSAGES))),
    st.integers(1, 40),
)
def test_messages_arrive_however_they_are_cut(sent: list[Any], length: int) -> None:
    got: list[Any] = []
    end, lost = channel(got)
    data = b"".join(encode(message, attempt) for attempt, message in sent)
    for start in range(0, len(data), length):
        end.data_received(data[start : start + length])
    assert got == sent
    assert lost == []


@given(st.binary(min_size=9))
def test_what_is_no_message_ends_the_channel_or_waits_within_bounds(
    data: bytes,
) -> None:
    got: list[Any] = []
    end, lost = channel(got)
    end.data_received(data)
    assert got == []
    assert lost == [] or isinstance(lost[0], CorruptStreamError)
    # Nine random bytes do not begin a frame of ours.
    assert lost or data[4:8] == bytes.fromhex("badc0ffe")


def test_a_frame_beyond_the_bound_is_refused_by_its_head() -> None:
    end, lost = channel([], bytes_max=100)
    end.data_received(encode(Ready("h" * 101, 1, b""))[:9])
    assert "exceeds 100" in str(lost[0])


def test_each_side_takes_only_what_the_other_may_say() -> None:
    with pytest.raises(CorruptStreamError):
        decode_from_worker(encode(Cancel())[9:])
    with pytest.raises(CorruptStreamError):
        decode_from_parent(encode(Ended())[9:])


def test_errors_keep_what_people_need() -> None:
    try:
        try:
            raise KeyError("JFK")
        except KeyError as error:
            raise UserFunctionError("map", "m-1", "job.py:7", error) from error
    except UserFunctionError as error:
        error.add_note("in the middle")
        text = text_of_error(error)
    made = error_from_text("worker 2", text)
    assert str(made).startswith("at worker 2: UserFunctionError: operator 'map'")
    assert made.kind == "UserFunctionError"
    assert made.__notes__[0] == "in the middle"
    assert "KeyError: 'JFK'" in made.remote_traceback
    assert not made.is_echo
    assert text_of_error(RemoteFailureError("worker 1", "E", "x")).is_echo


def test_an_exception_arrives_as_one_of_ours_with_the_name_of_its_worker() -> None:
    sent = encode(Declined(FIRST, 7, ValueError("no space")), 3)
    attempt, message = decode_from_worker(sent[9:], "worker 2")
    assert isinstance(message, Declined)
    assert (attempt, message.checkpoint_id) == (3, 7)
    assert isinstance(message.error, RemoteTaskError)
    assert str(message.error) == "at worker 2: ValueError: no space"


@pytest.mark.parametrize("error", [7, ["ValueError"], {"kind": "ValueError"}])
def test_what_is_no_exception_is_not_taken_for_one(error: Any) -> None:
    body = msgspec.msgpack.encode((0, ["Failed", error]))
    with pytest.raises(CorruptStreamError):
        decode_from_worker(body)


def test_errors_are_cut_and_always_text() -> None:
    text = text_of_error(ValueError("\ud800" + "x" * 100_000))
    assert len(text.text) < 20_000
    assert encode(Failed(ValueError("\ud800" + "x" * 100_000)))


def desk() -> tuple[WorkerDesk, Any]:
    graph = build_job_graph("job", [Transformation("map", Operator, parallelism=2)])
    shipment = Shipment(graph, JobConfig(), place(graph, 2), 1, bytes(16), False)
    kept = SimpleNamespace(limiters=None, committables=None, alignments=None)
    events = SimpleNamespace(on_event=lambda event: asked.append(tuple(event.task)))
    asked: list[Any] = []
    services: Any = kept
    made = WorkerDesk(shipment, services, [])
    return made, (events, asked)


@pytest.mark.parametrize(
    "message",
    [
        SplitRequest(SubtaskId(VertexId(0), 0)),
        SplitRequest(SubtaskId(VertexId(0), 5)),
        SplitRequest(SubtaskId(VertexId(0), -1)),
        SplitRequest(SubtaskId(VertexId(7), 0)),
        Prepared(SubtaskId(VertexId(0), 1), "0/0", 0, b"\x00\x01\x90"),
        Prepared(SubtaskId(VertexId(0), 1), "no such sink", 0, b"\x00\x01\x90"),
        Prepared(SubtaskId(VertexId(0), 0), "0/0", 0, b"\x00\x01\x90"),
        TaskCancelled(SubtaskId(VertexId(0), 0)),
    ],
)
def test_a_worker_is_believed_only_about_itself(message: Any) -> None:
    made, (events, asked) = desk()
    worker: Any = SimpleNamespace(peer=2, name="worker 2")
    with pytest.raises(CorruptStreamError):
        made.take(worker, 0, message, events)
    assert asked == []
    assert made.take(worker, 0, SplitRequest(SubtaskId(VertexId(0), 1)), events) is None
    assert asked == [(0, 1)]


def test_what_is_about_an_older_attempt_is_dropped() -> None:
    """Fencing: whoever was declared over asks for nothing and commits nothing."""
    made, (events, asked) = desk()
    worker: Any = SimpleNamespace(peer=2, name="worker 2")
    made.begin_attempt(0)
    assert made.running == {FIRST, SECOND}
    made.take(worker, 0, Ended(), events)
    assert made.running == {FIRST}
    made.begin_attempt(2)
    for message in (
        SplitRequest(SubtaskId(VertexId(0), 1)),
        Ended(),
        Prepared(SECOND, "no such sink", 1, b""),
        TaskEnded(SECOND, "map", ValueError()),
    ):
        assert made.take(worker, 1, message, events) is None
    assert asked == []
    assert made.running == {FIRST, SECOND}
    assert made.take(worker, 2, SplitRequest(SubtaskId(VertexId(0), 1)), events) is None
    assert asked == [(0, 1)]
    with pytest.raises(CorruptStreamError, match="worker 2 speaks of attempt 3"):
        made.take(worker, 3, SplitRequest(SubtaskId(VertexId(0), 1)), events)


def test_a_new_attempt_of_some_tasks_ends_nothing_that_others_say() -> None:
    made, (events, asked) = desk()
    first: Any = SimpleNamespace(peer=1, name="worker 1")
    second: Any = SimpleNamespace(peer=2, name="worker 2")
    made.begin_attempt(0)
    made.begin_attempt(1, {SECOND}, is_first=False)
    assert made.take(second, 0, SplitRequest(SubtaskId(VertexId(0), 1)), events) is None
    assert made.take(second, 0, Ended(), events) is None
    assert asked == []
    assert made.take(first, 0, SplitRequest(SubtaskId(VertexId(0), 0)), events) is None
    assert made.take(second, 1, SplitRequest(SubtaskId(VertexId(0), 1)), events) is None
    assert asked == [(0, 0), (0, 1)]
    made.take(first, 0, Ended(), events)
    assert made.running == {SECOND}
    made.take(second, 1, Ended(), events)
    assert made.running == set()


def test_workers_are_believed_for_half_a_second_that_their_tasks_are_as_they_were() -> (
    None
):
    made, (events, _) = desk()
    clock: Any = ManualClock()
    made._services.clock = clock
    made.begin_attempt(0)
    both, elsewhere = {FIRST, SECOND}, SubtaskId(VertexId(7), 0)

    def say(index: int, unchanged_id: int) -> None:
        worker: Any = SimpleNamespace(peer=index + 1, name=f"worker {index + 1}")
        view = TaskView("map", 0, index, "running", {}, [], [], [])
        view = replace(view, unchanged_id=unchanged_id)
        made.take(worker, 0, Snapshot([view]), events)

    assert made.are_unchanged_since(3, {elsewhere})
    assert not made.are_unchanged_since(3, {FIRST})
    say(0, 3)
    assert made.are_unchanged_since(3, {FIRST, elsewhere})
    assert not made.are_unchanged_since(3, both)
    say(1, 2)
    assert not made.are_unchanged_since(3, both)
    clock.advance(0.3)
    say(1, 3)
    assert made.are_unchanged_since(3, both)
    clock.advance(0.2)
    assert made.are_unchanged_since(3, both)
    clock.advance(0.1)
    assert not made.are_unchanged_since(3, both)
    assert made.are_unchanged_since(3, {SECOND})
    say(0, -1)
    assert not made.are_unchanged_since(3, {FIRST})


def test_a_worker_without_tasks_has_nothing_to_say_about_them() -> None:
    made, _ = desk()
    worker: Any = SimpleNamespace(peer=1, name="worker 1")
    with pytest.raises(CorruptStreamError, match="before it has any"):
        made.take(worker, 0, TaskEnded(FIRST, "map", None), None)


def test_a_worker_that_writes_records_otherwise_fails_the_job() -> None:
    made, _ = desk()
    made.codec_digest = bytes(16)
    worker: Any = SimpleNamespace(peer=1, name="worker 1")
    failure = made.take(worker, 0, Ready("a", None, b"x" * 16), None)
    assert "worker 1 and its parent would serialize records differently" in str(failure)
    assert made.take(worker, 0, Ready("a", None, bytes(16)), None) is None
    assert made.addresses == {1: ("a", None)}


def processes() -> tuple[AlignmentGroups, list[AlignmentGroups]]:
    """Return the groups of a parent and of two workers, which hear of each other."""
    workers: list[AlignmentGroups] = []

    def moved(name: str, limit_ms: int) -> None:
        for each in workers:
            each.on_limit(name, limit_ms)

    def reported(config: AlignmentConfig, reader: str, watermark_ms: int) -> None:
        parent.get(config).report(reader, watermark_ms)

    parent = AlignmentGroups(on_moved=moved)
    workers += [AlignmentGroups(reported) for _ in range(2)]
    return parent, workers


def test_readers_of_all_processes_keep_to_the_slowest() -> None:
    parent, workers = processes()
    config = AlignmentConfig("orders", 100, 10)
    first, second = (each.get(config) for each in workers)
    mine = parent.get(config)
    first.report("a", 1000)
    assert first.limit() == 1100
    second.report("b", 500)
    assert (first.limit(), second.limit(), mine.limit()) == (600, 600, 600)
    # A reader of the parent that lags behind holds the workers back, and lets go.
    mine.report("c", 300)
    assert (first.limit(), second.limit()) == (400, 400)
    mine.report("c", 5000)
    second.report("b", 1200)
    assert (first.limit(), second.limit(), mine.limit()) == (1100, 1100, 1100)


def test_a_worker_that_hears_of_a_limit_early_or_late_keeps_to_it() -> None:
    parent, workers = processes()
    config = AlignmentConfig("orders", 100, 10)
    workers[0].get(config).report("a", 1000)
    # The source of the second one opens only now; the limit does not move for that.
    assert workers[1].get(config).limit() == 1100
    # One that takes the place of a dead one is told what is in force.
    follower = AlignmentGroups()
    for name, limit_ms in parent.limits().items():
        follower.on_limit(name, limit_ms)
    assert follower.get(config).limit() == 1100


def test_serialized_committables_are_read_back() -> None:
    output = bytearray()
    PythonSerializer().write_many([("part-0", 3)], output)
    _, message = decode_from_worker(
        encode(Prepared(FIRST, "0/0", 1, bytes(output)))[9:]
    )
    assert isinstance(message, Prepared)
    assert bytes(output) == message.values


def test_a_worker_that_was_lost_before_it_said_anything_is_not_looked_for() -> None:
    made, _ = desk()
    made._services.clock = ManualClock()
    made._limits = cast("Any", SimpleNamespace(forget=lambda worker: None))
    lost: Any = SimpleNamespace(peer=2, name="worker 2")
    task = SubtaskId(VertexId(0), 1)
    made.begin_attempt(1, [task], is_first=False)
    made.forget(lost)
    assert not made.are_unchanged_since(1, [task])
    seen = TaskView("map (2/2)", 0, 1, "running", {}, [], [], [], unchanged_id=7)
    made.take(lost, 1, Snapshot([seen]), None)
    assert made.are_unchanged_since(7, [task])
    made.forget(lost)
    assert not made.are_unchanged_since(7, [task])
