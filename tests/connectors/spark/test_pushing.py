"""Rows that Spark's tasks send: who is listened to, how much may come, in which order.

The tasks are the functions that executors run, in threads here; the sockets are real.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import aiomailbox as am
from aiomailbox.connectors.spark import packing, pushing
from aiomailbox.connectors.spark.packing import (
    CHUNK,
    CHUNK_BYTES_MAX,
    CREDIT,
    DONE,
    END,
    LEAVE,
    SKIPPED,
    START,
    TOO_LARGE,
)
from aiomailbox.connectors.spark.pushing import (
    AHEAD_BYTES_MAX,
    PATIENCE_S,
    SILENCE_S,
    WINDOW_BYTES,
    Arrivals,
    Attempt,
    Push,
)
from aiomailbox.connectors.spark.shipped import Credentials, new_credentials
from aiomailbox.connectors.spark.source import SparkSource
from aiomailbox.errors import HandshakeError, SourceChangedError, SparkJobError

MANY = 1 << 62


class Task:
    """An attempt, and the orders that it was given."""

    def __init__(self, arrivals: Arrivals, part: int) -> None:
        self.orders: list[tuple[int, int]] = []
        self.attempt = Attempt(part, lambda *order: self.orders.append(order))
        self._arrivals = arrivals
        self._row = 0
        arrivals.on_claim(self.attempt)

    @property
    def credit(self) -> int:
        return sum(number for order, number in self.orders if order == CREDIT)

    def skips(self) -> int:
        [skipped] = [number for order, number in self.orders if order == START]
        return skipped

    def send(self, first: int, rows: int = 1, size: int = 1, check: int = 0) -> None:
        frame = CHUNK, first, rows, check, bytes(size)
        self._arrivals.on_frame(self.attempt, frame)

    def pass_over(self, rows: int, check: int) -> None:
        self._arrivals.on_frame(self.attempt, (SKIPPED, rows, 0, check, None))

    def end(self, rows: int, check: int = 0, *, confirmed: bool = True) -> None:
        self._arrivals.on_frame(self.attempt, (END, rows, 0, check, None))
        if confirmed:
            self._arrivals.on_confirmed(self.attempt.part)

    def break_off(self) -> None:
        self._arrivals.on_lost(self.attempt)


def taken(arrivals: Arrivals) -> list[tuple[int, int, int]]:
    """Take all that is there: partition, kind, first row."""
    found = []
    while (item := arrivals.take()) is not None:
        found.append((item[0], item[1][0], item[1][1]))
    return found


class TestArrivals:
    def test_partitions_are_delivered_in_order_whichever_comes_first(self) -> None:
        arrivals = Arrivals(0, 0)
        late, early = Task(arrivals, 1), Task(arrivals, 0)
        arrivals.give_credit()
        late.send(0)
        late.end(1)
        assert taken(arrivals) == []
        early.send(0)
        assert taken(arrivals) == [(0, CHUNK, 0)]
        early.end(1)
        assert taken(arrivals) == [(0, END, 1), (1, CHUNK, 0), (1, END, 1)]
        assert early.orders[-1] == late.orders[-1] == (DONE, 0)
        assert arrivals.missing(2) == []
        assert arrivals.missing(4) == [2, 3]

    def test_nothing_is_held_beyond_the_window_and_what_may_come_ahead(self) -> None:
        arrivals = Arrivals(0, 0)
        tasks = [Task(arrivals, part) for part in range(40)]
        sent = [0] * 40
        for _ in range(100):
            arrivals.give_credit()
            for task in tasks:
                if task.attempt.balance > 0:
                    task.send(sent[task.attempt.part], size=CHUNK_BYTES_MAX)
                    sent[task.attempt.part] += 1
        assert sent[0] == WINDOW_BYTES // CHUNK_BYTES_MAX
        assert arrivals.held_bytes == WINDOW_BYTES + AHEAD_BYTES_MAX
        # Who has none may not send: it is no task of this read.
        with pytest.raises(HandshakeError):
            tasks[0].send(sent[0])

    def test_what_may_come_ahead_goes_to_the_earliest(self) -> None:
        arrivals = Arrivals(0, 0)
        tasks = [Task(arrivals, part) for part in reversed(range(20))]
        arrivals.give_credit()
        with_credit = [task.attempt.part for task in tasks if task.credit]
        assert sorted(with_credit) == list(
            range(1 + AHEAD_BYTES_MAX // CHUNK_BYTES_MAX)
        )

    def test_of_two_attempts_one_is_listened_to_and_the_other_waits(self) -> None:
        arrivals = Arrivals(0, 0)
        first, copy = Task(arrivals, 0), Task(arrivals, 0)
        arrivals.give_credit()
        assert copy.orders == []
        with pytest.raises(HandshakeError):
            copy.send(0)
        first.send(0)
        first.end(1)
        assert copy.orders == [(DONE, 0)]
        assert Task(arrivals, 0).orders == [(DONE, 0)]
        assert taken(arrivals) == [(0, CHUNK, 0), (0, END, 1)]

    @pytest.mark.parametrize("waits", [True, False])
    def test_the_next_attempt_goes_on_behind_the_rows_that_came(
        self, waits: bool
    ) -> None:
        arrivals = Arrivals(0, 0)
        first = Task(arrivals, 0)
        copy = Task(arrivals, 0) if waits else None
        arrivals.give_credit()
        first.send(0, rows=3, check=2**63 - 1)
        first.send(3, rows=2, check=5)
        first.break_off()
        copy = copy or Task(arrivals, 0)
        assert copy.skips() == 5
        arrivals.give_credit()
        copy.pass_over(5, -(2**63) + 4)
        copy.send(5)
        copy.end(6)
        assert taken(arrivals) == [(0, CHUNK, n) for n in (0, 3, 5)] + [(0, END, 6)]

    def test_an_end_that_spark_does_not_confirm_is_none(self) -> None:
        arrivals = Arrivals(0, 0)
        first, other = Task(arrivals, 0), Task(arrivals, 1)
        arrivals.give_credit()
        first.send(0, rows=2, check=3)
        first.end(2, confirmed=False)
        assert first.orders[-1] == (DONE, 0)
        first.break_off()
        assert taken(arrivals) == [(0, CHUNK, 0)]
        again = Task(arrivals, 0)
        assert again.skips() == 2
        arrivals.give_credit()
        again.pass_over(2, 3)
        again.send(2)
        again.end(3)
        assert taken(arrivals) == [(0, CHUNK, 2), (0, END, 3)]
        other.end(0, confirmed=False)
        assert arrivals.missing(2) == [1]
        arrivals.on_confirmed(1)
        assert arrivals.missing(2) == []

    def test_an_attempt_with_other_rows_is_refused(self) -> None:
        for check, rows in ((8, None), (None, 1)):
            arrivals = Arrivals(0, 0)
            first = Task(arrivals, 0)
            arrivals.give_credit()
            first.send(0, rows=3, check=7)
            first.break_off()
            copy = Task(arrivals, 0)
            with pytest.raises(SourceChangedError, match="partition 0 has other rows"):
                if check is not None:
                    copy.pass_over(3, check)
                else:
                    assert rows is not None
                    copy.end(rows)

    def test_a_position_is_passed_over_by_each_attempt(self) -> None:
        arrivals = Arrivals(1, 4)
        before, at, behind = (Task(arrivals, part) for part in range(3))
        assert [task.skips() for task in (before, at, behind)] == [MANY, 4, 0]
        arrivals.give_credit()
        at.pass_over(4, 11)
        at.send(4, rows=2, check=3)
        at.break_off()
        again = Task(arrivals, 1)
        assert again.skips() == 6
        again.pass_over(6, 14)
        again.end(6)
        before.end(9, 5)
        behind.end(0)
        # The reader compares what the position passes over, and sees it once.
        assert taken(arrivals) == [
            (0, END, 9),
            (1, SKIPPED, 4),
            (1, CHUNK, 4),
            (1, END, 6),
            (2, END, 0),
        ]

    def test_the_last_task_leaves_if_the_one_in_turn_gets_no_slot(self) -> None:
        arrivals = Arrivals(0, 0)
        tasks = [Task(arrivals, part) for part in (1, 2, 3)]
        arrivals.give_credit()
        tasks[2].send(0)
        assert arrivals.to_leave(0.0, PATIENCE_S) is None
        assert arrivals.to_leave(PATIENCE_S - 0.1, PATIENCE_S) is None
        assert arrivals.to_leave(PATIENCE_S, PATIENCE_S) is tasks[2].attempt
        assert tasks[2].orders[-1] == (LEAVE, 0)
        # It may have begun to send before it reads that.
        tasks[2].send(1)
        tasks[2].end(2)
        # The next one has its time, too.
        assert arrivals.to_leave(PATIENCE_S + 0.1, PATIENCE_S) is None
        early = Task(arrivals, 0)
        assert arrivals.to_leave(9 * PATIENCE_S, PATIENCE_S) is None
        early.end(0)
        assert arrivals.missing(4) == [1, 2, 3]
        # It goes on where it was when it left.
        assert Task(arrivals, 3).skips() == 1

    def test_nobody_leaves_while_the_one_in_turn_is_there(self) -> None:
        arrivals = Arrivals(0, 0)
        Task(arrivals, 1)
        arrivals.to_leave(0.0, PATIENCE_S)
        first = Task(arrivals, 0)
        assert arrivals.to_leave(PATIENCE_S, PATIENCE_S) is None
        first.end(0)
        # All of it is here, and waits for the pipeline.
        assert arrivals.to_leave(9 * PATIENCE_S, PATIENCE_S) is None

    def test_a_task_that_may_send_and_does_not_makes_place_for_its_copy(self) -> None:
        arrivals = Arrivals(0, 0)
        hung = Task(arrivals, 0)
        arrivals.give_credit()
        assert arrivals.silent(0.0) is None
        copy = Task(arrivals, 0)
        assert arrivals.silent(1.0) is None
        assert arrivals.silent(1.0 + SILENCE_S) is hung.attempt
        hung.break_off()
        assert copy.skips() == 0

    def test_a_row_that_is_too_large_is_said(self) -> None:
        arrivals = Arrivals(0, 0)
        task = Task(arrivals, 0)
        with pytest.raises(SparkJobError, match="row 7 of partition 0 has 999 bytes"):
            arrivals.on_frame(task.attempt, (TOO_LARGE, 7, 0, 999, None))


def batch(start: int, stop: int) -> pa.RecordBatch:
    """Return rows whose checks are their numbers."""
    numbers = pa.array(np.arange(start, stop))
    return pa.record_batch({"id": numbers, "check": numbers})


class Tag:
    """Marks nothing."""

    def tag_thread(self) -> None:
        pass

    def watching(self) -> Any:
        return threading.Lock()

    def cancel_jobs(self) -> bool:
        return True


class Context:
    """Spark's of a task, by thread."""

    local = threading.local()

    def partitionId(self) -> int:  # noqa: N802 -- Spark's
        return int(self.local.part)


@pytest.fixture(params=["accumulator", "second function"])
def pushed(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Give what lets tasks push to a listener, and returns what came, as row numbers."""
    from pyspark import TaskContext

    monkeypatch.setattr(TaskContext, "get", Context)
    strangers: list[str] = []
    pack = packing.new_pack(100, None, has_checks=True, keeps_checks=False)

    def pushed(
        work: Callable[[Any, int, int], Any],
        parts: int,
        *,
        slots: int = 2,
        order: list[int] | None = None,
        secret: bytes | None = None,
        credentials: Credentials | None = None,
        certificate: str | None = None,
        before: Callable[[Push], None] = lambda push: None,
    ) -> tuple[list[tuple[int, int]], list[str]]:
        push = Push("127.0.0.1", 0, 0, strangers.append, credentials)
        before(push)
        door = push.door if secret is None else push.door._replace(secret=secret)
        if certificate is not None:
            door = door._replace(certificate=certificate)
        accumulates = request.param == "accumulator"
        confirm = packing.new_confirmer(door)

        def attempt(part: int, number: int) -> None:
            Context.local.part = part
            failures: list[BaseException] = []
            added: list[int] = []
            tally = SimpleNamespace(add=added.extend) if accumulates else None
            function = packing.new_pusher(door, pack, tally)

            def fed() -> Iterator[Any]:
                # As in Spark: where what feeds a task fails, its batches end.
                try:
                    yield from work(iter, part, number)
                except ZeroDivisionError as failure:
                    failures.append(failure)

            given = list(function(fed()))
            if failures:
                raise failures[0]
            assert not (accumulates and given)
            push.confirm(added)
            assert list(confirm(iter(given))) == []

        def run(wanted: list[int] | None) -> None:
            with ThreadPoolExecutor(slots) as pool:
                list(
                    pool.map(
                        lambda part: retried(lambda n: attempt(part, n)),
                        wanted or order or range(parts),
                    )
                )

        found = []
        frames = push.frames(run, Tag(), parts)  # type: ignore[arg-type]
        for part, (kind, first, rows, _, _) in frames:
            if kind == CHUNK:
                found += [(part, row) for row in range(first, first + rows)]
        return found, strangers

    return pushed


def retried(attempt: Callable[[int], None]) -> None:
    """Do as Spark does with a task: four attempts."""
    for number in range(4):
        try:
            attempt(number)
        except ZeroDivisionError:
            continue
        return
    raise AssertionError("four attempts failed")


def rows_of(parts: int, rows: int) -> list[tuple[int, int]]:
    return [(part, row) for part in range(parts) for row in range(rows)]


def test_all_rows_come_in_the_order_of_partitions(pushed: Any) -> None:
    def work(_: Any, part: int, attempt: int) -> Any:
        return iter([batch(0, 150), batch(150, 250)])

    found, strangers = pushed(work, 7, slots=3)
    assert found == rows_of(7, 250)
    assert strangers == []


def test_a_task_that_fails_is_repeated_and_no_row_comes_twice(pushed: Any) -> None:
    def work(_: Any, part: int, attempt: int) -> Any:
        yield batch(0, 150)
        if part in {0, 2} and attempt < 2:
            raise ZeroDivisionError
        yield batch(150, 250)

    found, _ = pushed(work, 4)
    assert found == rows_of(4, 250)


def test_a_repeated_task_with_other_rows_fails_the_read(pushed: Any) -> None:
    def work(_: Any, part: int, attempt: int) -> Any:
        yield batch(attempt, 150 + attempt)
        if attempt == 0:
            raise ZeroDivisionError

    with pytest.raises(SourceChangedError, match="has other rows"):
        pushed(work, 1)


def test_a_partition_without_a_slot_gets_that_of_a_later_one(
    pushed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks of later partitions wait for its turn, and hold the only slots."""
    monkeypatch.setattr(pushing, "PATIENCE_S", 0.05)
    monkeypatch.setattr(pushing, "AHEAD_BYTES_MAX", CHUNK_BYTES_MAX)
    large = [pa.record_batch({"x": ["y" * 10**6] * 9, "check": range(9)})] * 2
    begun: list[int] = []

    def work(_: Any, part: int, attempt: int) -> Any:
        begun.append(part)
        return iter(large)

    found, _ = pushed(work, 4, slots=1, order=[3, 1, 2, 0])
    assert found == rows_of(4, 18)
    # Another job has asked for what was left; who left went on where it was.
    assert begun[:4] == [3, 1, 2, 0]
    assert sorted(begun[4:]) == [1, 2, 3]


def test_a_stranger_gets_nothing_and_disturbs_nobody(pushed: Any) -> None:
    held: list[socket.socket] = []

    def disturb(push: Push) -> None:
        def connect(content: bytes) -> None:
            stranger = socket.create_connection(push.door[:2])
            stranger.sendall(content)
            held.append(stranger)

        connect(b"")
        connect(b"GET / HTTP/1.1\r\n\r\n")
        connect(b"\xff" * 4096)

    def work(_: Any, part: int, attempt: int) -> Any:
        return iter([batch(0, 50)])

    found, strangers = pushed(work, 3, before=disturb)
    assert found == rows_of(3, 50)
    assert strangers == ["a stranger does not know the secret"]
    for each in held:
        each.close()


def test_a_task_with_the_wrong_secret_is_refused_and_says_so(pushed: Any) -> None:
    def work(_: Any, part: int, attempt: int) -> Any:
        return iter([batch(0, 50)])

    with pytest.raises(RuntimeError, match="has closed the connection"):
        pushed(work, 1, secret=bytes(32))


def test_tasks_encrypt_where_they_are_told_to(
    pushed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = new_credentials()
    held: list[socket.socket] = []

    def disturb(push: Push) -> None:
        for content in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff"):
            stranger = socket.create_connection(push.door[:2])
            stranger.sendall(content)
            held.append(stranger)

    def work(_: Any, part: int, attempt: int) -> Any:
        yield batch(0, 150)
        if part == 1 and attempt == 0:
            raise ZeroDivisionError
        # Larger than a record of TLS, and than what a socket holds.
        texts = [chr(ord("a") + row % 26) * 50_000 for row in range(150, 250)]
        yield pa.record_batch({"id": texts, "check": range(150, 250)})

    found, strangers = pushed(work, 5, credentials=credentials, before=disturb)
    assert found == rows_of(5, 250)
    assert "a stranger has gone without a word" in strangers
    for each in held:
        each.close()

    # Who does not encrypt is not heard, and who expects another one sends nothing.
    with monkeypatch.context() as patched:
        # Each waits for the other one to begin.
        patched.setattr(pushing, "HANDSHAKE_S", 0.2)
        with pytest.raises(RuntimeError, match="has closed the connection"):
            pushed(work, 1, credentials=credentials, certificate="")
    other = new_credentials().certificate.decode()
    with pytest.raises(ssl.SSLError):
        pushed(work, 1, credentials=credentials, certificate=other)


@pytest.mark.spark
def test_what_tasks_send_to_other_machines_is_encrypted(spark: Any) -> None:
    def has_tls(**options: Any) -> bool:
        source = SparkSource(spark.range(1), read="push", **options)
        return source._plan.credentials is not None

    assert not has_tls()
    assert not has_tls(listen="127.0.0.1")
    assert has_tls(listen="10.0.0.7")
    assert not has_tls(listen="10.0.0.7", encrypt=False)
    assert has_tls(encrypt=True)
    rows = SparkSource(spark.range(0, 5000, 1, 3), read="push", encrypt=True)

    async def read() -> list[Any]:
        return await am.StreamExecutionEnvironment().from_source(rows).collect()

    assert [row.id for row in am.run(read())] == list(range(5000))


def test_a_task_does_not_send_to_one_who_does_not_know_the_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyspark import TaskContext

    monkeypatch.setattr(TaskContext, "get", Context)
    Context.local.part = 0
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(bytes(16))
                got.append(connection.recv(48, socket.MSG_WAITALL))
                connection.sendall(bytes(32))
                while content := connection.recv(1024):
                    got.append(content)

        thread = threading.Thread(target=answer)
        thread.start()
        door = packing.PushDoor(*server.getsockname(), b"s" * 32)
        pack = packing.new_pack(100, None, has_checks=True, keeps_checks=False)
        with pytest.raises(RuntimeError, match="does not know the secret"):
            list(packing.new_pusher(door, pack)(iter([batch(0, 5)])))
        thread.join()
    # Its proof, and not a row.
    assert [len(content) for content in got] == [48]


class TestProbe:
    @pytest.fixture(autouse=True)
    def task(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from pyspark import TaskContext

        monkeypatch.setattr(TaskContext, "get", Context)

    def why(self, door: packing.PushDoor, within_s: float = 10.0) -> str:
        """Return what the task says."""
        Context.local.part = 0
        [said] = packing.new_prober(door, within_s)(iter([batch(0, 1)]))
        return str(said.column("why")[0].as_py())

    @pytest.mark.parametrize("encrypts", [False, True])
    def test_a_task_says_whether_it_reaches_the_driver(self, encrypts: bool) -> None:
        strangers: list[str] = []
        credentials = new_credentials() if encrypts else None
        push = Push("127.0.0.1", 0, 0, strangers.append, credentials)
        said: list[str] = []
        stranger = push.door._replace(secret=bytes(32))
        push.probe(lambda: said.append(self.why(push.door)), Tag())  # type: ignore[arg-type]
        push.probe(lambda: said.append(self.why(stranger)), Tag())  # type: ignore[arg-type]
        with pytest.raises(ZeroDivisionError):
            push.probe(lambda: 1 // 0, Tag())  # type: ignore[arg-type]
        # It claims nothing.
        assert list(push.frames(lambda parts: None, Tag(), 0)) == []  # type: ignore[arg-type]
        said.append(self.why(push.door))
        reached, refused, gone = said
        assert reached == ""
        assert refused != ""
        assert "Connection refused" in gone
        assert strangers == ["a stranger does not know the secret"]

    def test_a_driver_that_says_nothing_is_none(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            door = packing.PushDoor(*silent.getsockname(), b"s" * 32)
            assert self.why(door, 0.05) == "timed out"


def test_a_frame_that_is_too_large_is_refused_before_it_is_allocated() -> None:
    strangers: list[str] = []
    push = Push("127.0.0.1", 0, 0, strangers.append)
    door = push.door
    ended = threading.Event()

    def lie(_: Any) -> None:
        import hmac
        import struct

        with socket.create_connection(door[:2]) as task:
            nonce = task.recv(16, socket.MSG_WAITALL)
            greeting = bytes(16)
            proof = hmac.digest(door.secret, b"worker" + nonce + greeting, "sha256")
            task.sendall(greeting + proof)
            task.recv(32, socket.MSG_WAITALL)
            task.sendall(struct.pack(packing.CLAIM, packing.PUSHES, 0))
            task.sendall(struct.pack(packing.HEADER, CHUNK, 0, 1, 0, 2**32 - 1))
            while task.recv(1024):
                pass
        ended.set()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(push.frames(lie, Tag(), 1))  # type: ignore[arg-type]
    assert ended.is_set()
    assert strangers == ["a chunk of 4294967295 bytes is none of a task"]


BARE = """
import pickle, sys
sys.modules["aiomailbox"] = None
import pyarrow as pa
pack, push, packer, confirm = pickle.loads(sys.stdin.buffer.read())
rows = pa.record_batch({"id": range(5), "check": range(5)})
print([message[:4] for message in pack(iter([rows]), 2)])
try:
    list(push(iter([rows])))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_an_executor_needs_pyarrow_and_nothing_of_ours() -> None:
    from pyspark import cloudpickle

    pack = packing.new_pack(2, None, has_checks=True, keeps_checks=True)
    door = packing.PushDoor("127.0.0.1", 1, b"")
    push, confirm = packing.new_pusher(door, pack), packing.new_confirmer(door)
    packer = packing.new_packer(0, 0, pack)
    done = subprocess.run(
        [sys.executable, "-c", BARE],
        input=cloudpickle.dumps((pack, push, packer, confirm)),
        capture_output=True,
        check=False,
    )
    chunks, failure, *_ = [*done.stdout.decode().splitlines(), "", ""]
    expected = [(SKIPPED, 2, 0, 1), (CHUNK, 2, 2, 5), (CHUNK, 4, 1, 4), (END, 5, 0, 1)]
    assert chunks == str(expected), done.stderr.decode()
    # No task of Spark runs it: it has come as far as that.
    assert failure.startswith("AttributeError 'NoneType' object has no attribute 'part")


class TestPack:
    def pack(self, batches: list[Any], skip: int = 0, **options: Any) -> list[Any]:
        given = {"has_checks": True, "keeps_checks": True, **options}
        rows_max, bytes_max = given.pop("rows", 100), given.pop("bytes", None)
        return list(packing.new_pack(rows_max, bytes_max, **given)(iter(batches), skip))

    def test_a_chunk_has_a_bounded_number_of_rows_and_of_bytes(self) -> None:
        sizes = [10, 10**6, 3 * 10**6, 10, 10, 5 * 10**6, 10, *[10**6] * 9]
        rows = pa.record_batch({"x": ["y" * size for size in sizes], "c": range(16)})
        *chunks, end = self.pack([rows], rows=5)
        assert end[:2] == (END, 16)
        assert sum(chunk[2] for chunk in chunks) == 16
        for _, first, count, check, ipc in chunks:
            assert count <= 5
            assert count == 1 or ipc.size <= CHUNK_BYTES_MAX + 1024
            read = pa.ipc.open_stream(ipc).read_next_batch()
            assert (
                read.column(0).to_pylist()
                == rows.column(0)[first : first + count].to_pylist()
            )
            assert check == sum(range(first, first + count))

    @pytest.mark.parametrize("skip", [0, 1, 99, 100, 150, 249, 250, 300])
    def test_rows_before_a_position_are_passed_over(self, skip: int) -> None:
        messages = self.pack([batch(0, 150), batch(150, 250)], skip)
        chunks = [m for m in messages if m[0] == CHUNK]
        rows = [n for m in chunks for n in range(m[1], m[1] + m[2])]
        assert rows == list(range(skip, 250))
        passed = sum(range(min(skip, 250)))
        assert messages[-1] == (END, 250, 0, passed, None)
        told = [m for m in messages if m[0] == SKIPPED]
        assert told == ([(SKIPPED, skip, 0, passed, None)] if 0 < skip <= 250 else [])

    def test_a_partition_that_is_too_large_is_given_up(self) -> None:
        messages = self.pack([batch(0, 1000)] * 9, bytes=20_000)
        assert messages[-1][0] == TOO_LARGE
        assert sum(m[4].size for m in messages[:-1]) <= 20_000
