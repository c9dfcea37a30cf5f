"""Spark's tasks connect to this process and send their rows: one job for all partitions.

Theory of operation: partitions are delivered in the order of their indexes. The tasks of
later ones run meanwhile, and may send ahead what together fits into `AHEAD_BYTES_MAX`; then
they wait, each in its slot of an executor. Nothing is sent without credit.

A task's batches just end where what feeds it fails. So its end counts when Spark says that
the task has succeeded: by an accumulator, or on Spark Connect by a second function behind
it, which Spark gives something only then.

Of several attempts of a partition, after a failure or by speculation, one is listened to;
if it breaks off, the next one passes over the rows that came from it, which are compared.

A partition whose turn it is may find no slot, because later ones hold all: then the last
of them leaves, as if it had ended, and its rest is asked for by another job over the same
partitions of the same RDD.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import selectors
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final

from aiomailbox.clock import SystemClock
from aiomailbox.connectors.spark.frame_checks import wrapped
from aiomailbox.connectors.spark.jobs import JobTag
from aiomailbox.connectors.spark.packing import (
    CHUNK,
    CHUNK_BYTES_MAX,
    CLAIM,
    CONFIRMS,
    CREDIT,
    DONE,
    END,
    HEADER,
    LEAVE,
    NONCE_BYTES,
    ORDER,
    PROOF_BYTES,
    PUSHES,
    ROW_BYTES_MAX,
    SKIPPED,
    START,
    TOO_LARGE,
    PushDoor,
)
from aiomailbox.connectors.spark.shipped import (
    HANDSHAKE_S,
    Credentials,
    listener_context,
    proof_of,
)
from aiomailbox.errors import HandshakeError, SourceChangedError, SparkJobError

# What the partition whose turn it is may send ahead of the pipeline, and all others.
WINDOW_BYTES: Final = 2 * CHUNK_BYTES_MAX
AHEAD_BYTES_MAX: Final = 8 * CHUNK_BYTES_MAX
# How long a partition may be without a task while others hold slots; and where none of
# these can come back.
PATIENCE_S: Final = 10.0
_LAST_PATIENCE_S: Final = 120.0
# How long a task that may send is listened to while another one could.
SILENCE_S: Final = 300.0
_LOOK_S: Final = 0.2
_STRANGERS_MAX: Final = 64

Tell = Callable[[int, int], None]
# Kind, first, rows, check, IPC.
Frame = tuple[int, int, int, int, Any]


class Attempt:
    """A task that sends a partition."""

    __slots__ = ("balance", "has_left", "heard_s", "part", "tell")

    def __init__(self, part: int, tell: Tell) -> None:
        self.part, self.tell = part, tell
        # When it has sent something, or began to be waited for.
        self.heard_s: float | None = None
        # Whether it was told to leave, which it may not have read yet.
        self.has_left = False
        # Bytes that it was allowed to send and has not sent; less than 0 if the last
        # chunk was larger.
        self.balance = 0


class _Part:
    """A partition that has not been delivered."""

    __slots__ = (
        "attempts",
        "bytes",
        "check",
        "closing",
        "ended",
        "frames",
        "passed",
        "rows",
    )

    def __init__(self) -> None:
        # The first one is listened to.
        self.attempts: list[Attempt] = []
        self.frames: deque[Frame] = deque()
        self.bytes = 0
        # Its end, as long as Spark has not confirmed it.
        self.closing: Frame | None = None
        self.ended = False
        # Rows that were received, and the sum of their checks.
        self.rows = self.check = 0
        # Sum of the checks of those that the position passes over; None before they came.
        self.passed: int | None = None


class Arrivals:
    """Which attempt is listened to, who may send, and what is delivered next.

    No sockets, no clock: the time is an argument.

    Attributes:
        turn: The partition that is delivered.
        held_bytes: What was received and not delivered.
    """

    def __init__(self, part: int, row: int) -> None:
        self.turn = 0
        self._part, self._row = part, row
        self._parts: dict[int, _Part] = {}
        # Those of them that have tasks: there may be many that wait to be delivered.
        self._open: dict[int, _Part] = {}
        self.held_bytes: int = 0
        self._lacking_since_s: float | None = None

    def on_claim(self, attempt: Attempt) -> None:
        """Take an attempt that has connected."""
        known = self._parts.get(attempt.part)
        if attempt.part < self.turn or (known is not None and known.ended):
            attempt.tell(DONE, 0)
            return
        part = self._parts.setdefault(attempt.part, _Part())
        self._open[attempt.part] = part
        part.attempts.append(attempt)
        if len(part.attempts) == 1:
            self._listen(attempt, part)

    def on_confirmed(self, index: int) -> None:
        """Be told that what an attempt has sent as a whole partition is one."""
        part = self._parts.get(index)
        if part is None or part.ended or part.closing is None:
            return
        part.ended = True
        part.frames.append(part.closing)
        for attempt in part.attempts:
            attempt.tell(DONE, 0)
        part.attempts.clear()
        self._open.pop(index, None)

    def on_lost(self, attempt: Attempt) -> None:
        """Be told that an attempt has broken off, or has left."""
        part = self._parts.get(attempt.part)
        if part is None or attempt not in part.attempts:
            return
        was_heard = part.attempts[0] is attempt
        part.attempts.remove(attempt)
        if not part.attempts:
            del self._open[attempt.part]
        if was_heard and part.attempts:
            self._listen(part.attempts[0], part)

    def on_frame(self, attempt: Attempt, frame: Frame) -> None:
        """Take what an attempt has sent."""
        kind, first, rows, check, ipc = frame
        part = self._parts.get(attempt.part)
        # It may not have read yet that it is not wanted any more.
        if attempt.has_left or part is None or part.ended:
            return
        attempt.heard_s = None
        if not part.attempts or part.attempts[0] is not attempt:
            raise HandshakeError("a task sends that was not asked to")
        if kind == SKIPPED:
            self._on_passed(attempt.part, part, check)
        elif kind == CHUNK:
            expected = self._first_row(attempt.part) + part.rows
            if first != expected or rows < 1 or attempt.balance <= 0:
                raise HandshakeError("a task sends other rows than it was asked for")
            attempt.balance -= len(ipc)
            part.rows += rows
            part.check += check
            part.bytes += len(ipc)
            self.held_bytes += len(ipc)
            part.frames.append(frame)
        elif kind == END:
            self._on_end(attempt, part, first, check)
        elif kind == TOO_LARGE:
            raise SparkJobError(
                f"row {first} of partition {attempt.part} has {check} bytes, "
                f"and at most {ROW_BYTES_MAX} can be sent: divide it in Spark, or read "
                "it with stage=."
            )
        else:
            raise HandshakeError(f"a task says {kind}, which means nothing")

    def take(self) -> tuple[int, Frame] | None:
        """Return what is delivered next, with its partition; None if it is not there."""
        part = self._parts.get(self.turn)
        if part is None or not part.frames:
            return None
        index, frame = self.turn, part.frames.popleft()
        if frame[4] is not None:
            part.bytes -= len(frame[4])
            self.held_bytes -= len(frame[4])
        if frame[0] == END:
            del self._parts[index]
            self.turn += 1
            self._lacking_since_s = None
        return index, frame

    def give_credit(self) -> None:
        """Let attempts send as far as there is room, earlier partitions first."""
        in_turn = self._parts.get(self.turn)
        ahead = self.held_bytes - (0 if in_turn is None else in_turn.bytes)
        for index, part in self._open.items():
            if index != self.turn:
                ahead += max(0, part.attempts[0].balance)
        for index in sorted(self._open):
            part = self._open[index]
            attempt = part.attempts[0]
            if index == self.turn:
                while part.bytes + attempt.balance < WINDOW_BYTES:
                    _grant(attempt)
            elif attempt.balance <= 0 and ahead + CHUNK_BYTES_MAX <= AHEAD_BYTES_MAX:
                _grant(attempt)
                ahead += CHUNK_BYTES_MAX

    def to_leave(self, now_s: float, patience_s: float) -> Attempt | None:
        """Return the attempt that has to give its slot back, if one has to.

        It is told so, and counts as lost.
        """
        waiting = [index for index in self._open if index > self.turn]
        part = self._parts.get(self.turn)
        is_lacking = part is None or not (part.attempts or part.ended)
        if not waiting or not is_lacking:
            self._lacking_since_s = None
            return None
        if self._lacking_since_s is None:
            self._lacking_since_s = now_s
        if now_s - self._lacking_since_s < patience_s:
            return None
        self._lacking_since_s = now_s
        # Copies first: the end of one would be taken for that of the whole partition.
        last = self._parts[max(waiting)].attempts[-1]
        last.tell(LEAVE, 0)
        last.has_left = True
        self.on_lost(last)
        return last

    def silent(self, now_s: float) -> Attempt | None:
        """Return an attempt that says nothing, and that another one could replace.

        The caller closes its connection. Spark has copied its task, or has lost it.
        """
        for part in self._open.values():
            if len(part.attempts) < 2 or part.attempts[0].balance <= 0:
                continue
            heard = part.attempts[0]
            if heard.heard_s is None:
                heard.heard_s = now_s
            elif now_s - heard.heard_s >= SILENCE_S:
                return heard
        return None

    def missing(self, count: int | None) -> list[int]:
        """Return the partitions that have not been received whole."""
        parts = self._parts
        stop = max(parts, default=self.turn - 1) + 1 if count is None else count
        return [
            index
            for index in range(self.turn, stop)
            if index not in parts or not parts[index].ended
        ]

    def _first_row(self, index: int) -> int:
        return self._row if index == self._part else 0

    def _listen(self, attempt: Attempt, part: _Part) -> None:
        if attempt.part < self._part:
            attempt.tell(START, 1 << 62)
        else:
            attempt.tell(START, self._first_row(attempt.part) + part.rows)

    def _on_passed(self, index: int, part: _Part, check: int) -> None:
        if part.rows or part.passed is not None:
            self._compare(index, part, check)
        else:
            part.passed = check
            part.frames.append((SKIPPED, self._row, 0, check, None))

    def _on_end(self, attempt: Attempt, part: _Part, rows: int, check: int) -> None:
        known = self._first_row(attempt.part) + part.rows
        if part.rows and rows < known:
            raise _other_rows(attempt.part, rows, known)
        part.closing = (END, rows, 0, check, None)
        attempt.tell(DONE, 0)

    def _compare(self, index: int, part: _Part, check: int) -> None:
        known = self._first_row(index) + part.rows
        if wrapped(check) != wrapped((part.passed or 0) + part.check):
            raise _other_rows(index, known, known)


def _grant(attempt: Attempt) -> None:
    attempt.balance += CHUNK_BYTES_MAX
    attempt.tell(CREDIT, CHUNK_BYTES_MAX)


def _other_rows(index: int, rows: int, known: int) -> SourceChangedError:
    return SourceChangedError(
        f"an attempt of partition {index} has other rows than the one before it among "
        f"the first {known}, which the source has read (it has {rows} rows): Spark "
        "computes different rows each time. Sort them with order_by=, or read them "
        "with stage=."
    )


class _Job:
    """A Spark job over partitions, in a thread of its own.

    Attributes:
        ended: Whether it has.
        error: Why it failed; None if it did not.
    """

    def __init__(
        self, run: Callable[[], object], tag: JobTag, on_end: Callable[[], None]
    ) -> None:
        self.ended = False
        self.error: BaseException | None = None
        self._run, self._tag, self._on_end = run, tag, on_end
        # A daemon, as the thread that reads.
        self._thread = threading.Thread(
            target=self._work, name="spark-source-job", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Cancel it, and wait for its end; nothing if it has ended."""
        while not self.ended:
            self._tag.cancel_jobs()
            self._thread.join(_LOOK_S)

    def _work(self) -> None:
        try:
            self._tag.tag_thread()
            self._run()
        except BaseException as error:  # noqa: BLE001 -- raised where rows are awaited
            self.error = error
        self.ended = True
        self._on_end()


class _Connection:
    """One task, or a stranger: what it has sent so far of what comes next."""

    def __init__(self, sock: socket.socket, secret: bytes, now_s: float) -> None:
        self.sock = sock
        # None once it has proved that it knows the secret.
        self.begun_s: float | None = now_s
        self.attempt: Attempt | None = None
        self._secret = secret
        self._nonce = os.urandom(NONCE_BYTES)
        self._header: tuple[int, int, int, int] | None = None
        self._expect(self._on_greeting, NONCE_BYTES + PROOF_BYTES)
        self._is_greeted = False
        if not isinstance(sock, ssl.SSLSocket):
            self._greet()

    def _greet(self) -> None:
        """Say what the task has to prove with that it knows the secret."""
        self._is_greeted = True
        # Gone already: what is read next from it says so.
        with contextlib.suppress(OSError):
            self.sock.send(self._nonce)

    def tell(self, order: int, number: int) -> None:
        """Give an order; a few bytes always find room, or its task reads nothing."""
        try:
            self.sock.send(struct.pack(ORDER, order, number))
        except OSError:
            # What is read next from it says so.
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)

    def read(self, arrivals: Arrivals) -> None:
        """Take what is there."""
        sock = self.sock
        while True:
            try:
                if not self._is_greeted:
                    sock.do_handshake()  # type: ignore[attr-defined]
                    self._greet()
                count = sock.recv_into(self._space[self._filled :])
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            if not count:
                raise EOFError
            self._filled += count
            if self._filled == len(self._space):
                self._then(arrivals)
                # What was decrypted already, no selector tells of.
                if not isinstance(sock, ssl.SSLSocket) or not sock.pending():
                    return

    def _expect(self, then: Callable[[Arrivals], None], size: int) -> None:
        self._then = then
        self._content = bytearray(size)
        self._space = memoryview(self._content)
        self._filled = 0

    def _on_greeting(self, arrivals: Arrivals) -> None:
        theirs = bytes(self._content[:NONCE_BYTES])
        expected = proof_of(self._secret, b"worker", self._nonce + theirs)
        if not hmac.compare_digest(self._content[NONCE_BYTES:], expected):
            raise HandshakeError("a stranger does not know the secret")
        self.sock.send(proof_of(self._secret, b"driver", theirs + self._nonce))
        self.begun_s = None
        self._expect(self._on_claim, struct.calcsize(CLAIM))

    def _on_claim(self, arrivals: Arrivals) -> None:
        claim, part = struct.unpack(CLAIM, self._content)
        self._expect(self._on_header, struct.calcsize(HEADER))
        if claim == PUSHES:
            self.attempt = Attempt(part, self.tell)
            arrivals.on_claim(self.attempt)
            return
        if claim == CONFIRMS:
            arrivals.on_confirmed(part)
        self.tell(DONE, 0)

    def _on_header(self, arrivals: Arrivals) -> None:
        *header, size = struct.unpack(HEADER, self._content)
        # Before anything is allocated for it.
        if (size > 0) != (header[0] == CHUNK) or size > ROW_BYTES_MAX:
            raise HandshakeError(f"a chunk of {size} bytes is none of a task")
        self._header = tuple(header)
        if size:
            self._expect(self._on_chunk, size)
        else:
            self._on_message(arrivals, None)

    def _on_chunk(self, arrivals: Arrivals) -> None:
        self._on_message(arrivals, self._content)

    def _on_message(self, arrivals: Arrivals, ipc: Any) -> None:
        if self.attempt is None:
            raise HandshakeError("a task sends that was not asked to")
        assert self._header is not None
        kind, first, rows, check = self._header
        self._expect(self._on_header, struct.calcsize(HEADER))
        arrivals.on_frame(self.attempt, (kind, first, rows, check, ipc))


class Push:
    """Receives the rows of a DataFrame from Spark's tasks, in the order of partitions.

    Attributes:
        door: Where tasks connect.
    """

    def __init__(
        self,
        host: str,
        part: int,
        row: int,
        on_stranger: Callable[[str], None],
        credentials: Credentials | None = None,
    ) -> None:
        self._arrivals = Arrivals(part, row)
        self._on_stranger = on_stranger
        self._clock = SystemClock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family, backlog=1024)
        self._server.setblocking(False)
        self._woken, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._listens = False
        self._listen(True)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._connections: dict[socket.socket, _Connection] = {}
        self._stopped = False
        self._has_left = False
        self._confirmed: deque[int] = deque()
        port = self._server.getsockname()[1]
        shown = "" if credentials is None else credentials.certificate.decode()
        self.door: PushDoor = PushDoor(host, port, os.urandom(32), shown)
        self._tls = None if credentials is None else listener_context(credentials)

    def stop(self) -> None:
        """Let `frames` end soon; from any thread."""
        self._stopped = True
        self._wake()

    def confirm(self, parts: list[int]) -> None:
        """Be told of partitions whose tasks have succeeded; from any thread."""
        self._confirmed += parts
        self._wake()

    def probe(self, run: Callable[[], object], tag: JobTag) -> None:
        """Run a job whose tasks try to connect, and answer them."""
        job = _Job(run, tag, self._wake)
        try:
            while not (job.ended or self._stopped):
                self._look(_LOOK_S, is_fixed=True)
        finally:
            job.end()
        if job.error is not None:
            raise job.error

    def frames(
        self,
        run: Callable[[list[int] | None], object],
        tag: JobTag,
        count: int | None,
    ) -> Generator[tuple[int, Frame]]:
        """Run the job, and give what its tasks send, with the partition it is of."""
        job = _Job(lambda: run(None), tag, self._wake)
        try:
            while not self._stopped:
                # In this order: what Spark has confirmed, it did before the end.
                has_ended = job.ended
                self._settle()
                while (taken := self._arrivals.take()) is not None:
                    self._look(0, is_fixed=count is not None)
                    yield taken
                if has_ended:
                    if job.error is not None:
                        raise job.error
                    missing = self._arrivals.missing(count)
                    if not missing:
                        return
                    job = self._next_job(run, tag, missing)
                self._look(_LOOK_S, is_fixed=count is not None)
        finally:
            self.close()
            job.end()

    def _next_job(
        self, run: Callable[[list[int] | None], object], tag: JobTag, parts: list[int]
    ) -> _Job:
        if not self._has_left:
            raise SparkJobError(
                f"Spark reports that its job has succeeded, but partitions {parts} have "
                "not sent all of their rows"
            )
        self._has_left = False
        return _Job(lambda: run(parts), tag, self._wake)

    def _settle(self) -> None:
        while self._confirmed:
            self._arrivals.on_confirmed(self._confirmed.popleft())

    def _wake(self) -> None:
        # Closed: nobody waits any more.
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def _look(self, timeout_s: float, *, is_fixed: bool) -> None:
        """Take what has come within a time, and give credit for more."""
        arrivals = self._arrivals
        ready = {key.fileobj for key, _ in self._selector.select(timeout_s)}
        now_s = self._clock.monotonic()
        if self._woken in ready:
            self._woken.recv(1024)
        self._settle()
        if self._server in ready or not self._listens:
            self._accept(now_s)
        for sock, connection in list(self._connections.items()):
            if sock in ready:
                self._read(connection)
            elif now_s - (connection.begun_s or now_s) > HANDSHAKE_S:
                self._on_stranger("a stranger has said nothing")
                self._drop(connection)
        silent = arrivals.silent(now_s)
        for connection in list(self._connections.values()):
            if silent is not None and connection.attempt is silent:
                self._drop(connection)
        patience_s = PATIENCE_S if is_fixed else _LAST_PATIENCE_S
        if arrivals.to_leave(now_s, patience_s) is not None:
            if not is_fixed:
                raise SparkJobError(
                    f"partition {arrivals.turn} gets no slot of an executor, because "
                    "later ones hold all, and wait for it. Read with stage=."
                )
            self._has_left = True
        arrivals.give_credit()

    def _accept(self, now_s: float) -> None:
        strangers = sum(each.begun_s is not None for each in self._connections.values())
        # Others wait for these, which have little time.
        self._listen(strangers < _STRANGERS_MAX)
        while strangers < _STRANGERS_MAX:
            try:
                sock, _ = self._server.accept()
            except BlockingIOError:
                return
            strangers += 1
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            try:
                if self._tls is not None:
                    sock = self._tls.wrap_socket(
                        sock, server_side=True, do_handshake_on_connect=False
                    )
            except OSError:
                # It has gone already.
                continue
            self._connections[sock] = _Connection(sock, self.door.secret, now_s)
            self._selector.register(sock, selectors.EVENT_READ)

    def _listen(self, listens: bool) -> None:
        if listens and not self._listens:
            self._selector.register(self._server, selectors.EVENT_READ)
        elif self._listens and not listens:
            self._selector.unregister(self._server)
        self._listens = listens

    def _read(self, connection: _Connection) -> None:
        try:
            connection.read(self._arrivals)
        except HandshakeError as error:
            self._on_stranger(str(error))
            self._drop(connection)
        except (EOFError, OSError):
            if connection.begun_s is not None:
                self._on_stranger("a stranger has gone without a word")
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._selector.unregister(connection.sock)
        del self._connections[connection.sock]
        connection.sock.close()
        if connection.attempt is not None:
            self._arrivals.on_lost(connection.attempt)

    def close(self) -> None:
        """Let go of all tasks, and listen no more; can be repeated."""
        for sock in [self._server, self._woken, self._waker, *self._connections]:
            sock.close()
        self._selector.close()
        self._connections.clear()
