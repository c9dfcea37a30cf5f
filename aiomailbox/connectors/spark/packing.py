"""The part inside Spark's executors: it cuts rows into chunks, and sends them here.

The functions that are shipped are nested, and refer to nothing of this module but numbers
and texts: Spark pickles these, and a nested function, by value, but a reference to a module
makes the executor import a package that it may not have. An executor needs pyarrow only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

# The most bytes of a chunk; a row that is larger is a chunk of its own.
CHUNK_BYTES_MAX: Final = 4 << 20
# The most bytes of such a row: what a frame may announce.
ROW_BYTES_MAX: Final = 256 << 20

# Kinds of messages, and what their numbers are:
# rows that follow each other: the first one's number, how many, sum of their checks;
CHUNK: Final = 0
# rows that were passed over: how many, 0, sum of their checks;
SKIPPED: Final = 1
# the partition ended: how many rows it had, 0, sum of the checks of those passed over;
END: Final = 2
# it has more bytes than may be sent: the number of the row, and how many.
TOO_LARGE: Final = 3

PACKED_SCHEMA: Final = (
    "part int, kind int, first long, rows long, check long, ipc binary"
)

# What goes over a connection. To the driver: what it is for, the partition; then for each message
# its kind, its three numbers and how many bytes of IPC follow.
CLAIM: Final = "!BI"
PUSHES, CONFIRMS, PROBES = 0, 1, 2
HEADER: Final = "!BqqqI"
# From the driver: an order, and its number.
ORDER: Final = "!Bq"
# Begin, and pass over so many rows; send so many bytes more; it has all rows; give the
# slot back.
START, CREDIT, DONE, LEAVE = 0, 1, 2, 3

NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 32
# How long a probe waits for the driver.
PROBE_S: Final = 10.0
# OpenSSL's X509_V_FLAG_NO_CHECK_TIME: the clocks of two machines differ.
NO_CHECK_TIME: Final = 0x200000

# Messages are tuples: kind, first, rows, check, IPC.
Message = tuple[int, int, int, int, Any]


class PushDoor(NamedTuple):
    """Where the driver listens, and what opens it.

    Attributes:
        host: The driver's address, as executors know it.
        port: Its port.
        secret: What both sides prove to know.
        certificate: What the driver proves itself with where it encrypts, in PEM; else "".
    """

    host: str
    port: int
    secret: bytes
    certificate: str = ""


def new_cut(rows_max: int) -> Callable[[Any], Iterator[Any]]:
    """Return what cuts a batch: by so many rows, and by `CHUNK_BYTES_MAX`."""

    def cut(batch: Any) -> Iterator[Any]:
        start = 0
        while start < batch.num_rows:
            piece = batch.slice(start, rows_max)
            # Rows may be of any size: by the mean of those that are too many.
            while (count := piece.num_rows) > 1 and piece.nbytes > CHUNK_BYTES_MAX:
                fitting = count * CHUNK_BYTES_MAX // piece.nbytes
                piece = batch.slice(start, max(1, min(fitting, count - 1)))
            yield piece
            start += piece.num_rows

    return cut


def new_pack(
    rows_max: int, bytes_max: int | None, *, has_checks: bool, keeps_checks: bool
) -> Callable[[Iterator[Any], int], Iterator[Message]]:
    """Return what makes messages of a partition's batches, after so many rows.

    With ``has_checks`` the last column is the check of each row; see `row_check`. It is
    sent only if ``keeps_checks``.
    """
    cut = new_cut(rows_max)

    def pack(batches: Iterator[Any], skip: int) -> Iterator[Message]:
        import numpy as np
        import pyarrow as pa

        def sum_of(batch: Any) -> int:
            if not has_checks:
                return 0
            checks = batch.column(batch.num_columns - 1)
            # The sum is taken modulo 2**64.
            return int(np.add.reduce(checks.to_numpy(zero_copy_only=False)))

        # What is to be skipped is read nevertheless: a worker whose input was not read
        # to the end cannot be used again, which costs more.
        offset = sent = 0
        skipped = np.zeros(1, np.int64)
        for batch in batches:
            start = offset
            offset += batch.num_rows
            passed = min(offset, skip) - start
            if passed > 0:
                skipped += np.int64(sum_of(batch.slice(0, passed)))
                batch = batch.slice(passed)
                if offset >= skip:
                    yield SKIPPED, skip, 0, int(skipped[0]), None
            first = max(start, skip)
            for piece in cut(batch):
                check, rows = sum_of(piece), piece.num_rows
                if has_checks and not keeps_checks:
                    piece = piece.select(range(piece.num_columns - 1))
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, piece.schema) as writer:
                    writer.write_batch(piece)
                ipc = sink.getvalue()
                sent += ipc.size
                is_large = bytes_max is not None and sent > bytes_max
                if is_large or ipc.size > ROW_BYTES_MAX:
                    yield TOO_LARGE, first, 0, sent if is_large else ipc.size, None
                    return
                yield CHUNK, first, rows, check, ipc
                first += rows
        yield END, offset, 0, int(skipped[0]), None

    return pack


def new_packer(
    part: int,
    row: int,
    pack: Callable[[Iterator[Any], int], Iterator[Message]],
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function for ``mapInArrow`` that gives the messages to Spark."""

    def packed(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        index = TaskContext.get().partitionId()
        skip = 1 << 62 if index < part else row if index == part else 0
        types = [pa.int32(), pa.int32(), *[pa.int64()] * 3, pa.binary()]
        names = ["part", "kind", "first", "rows", "check", "ipc"]
        for *numbers, ipc in pack(batches, skip):
            values = [index, *numbers, ipc and ipc.to_pybytes()]
            columns = [
                pa.array([value], kind)
                for value, kind in zip(values, types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    return packed


def new_pusher(
    door: PushDoor,
    pack: Callable[[Iterator[Any], int], Iterator[Message]],
    tally: Any = None,
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function for ``mapInArrow`` that sends the messages to the driver.

    That they were all that the partition has, Spark has to say: where what feeds the task
    fails, its batches just end. It hands on what the tally gets of tasks that succeed, or
    gives a row to `new_confirmer`.
    """
    connected = _new_connected(door)

    def push(batches: Iterator[Any]) -> Iterator[Any]:
        import struct

        import pyarrow as pa
        from pyspark import TaskContext

        header = struct.Struct(HEADER)
        connection, ordered = connected(PUSHES)
        with connection:
            kind, skip = ordered()
            if kind != START:
                return
            credit = 0
            for message_kind, *numbers, ipc in pack(batches, skip):
                size = 0 if ipc is None else ipc.size
                while size and credit <= 0:
                    kind, number = ordered()
                    if kind != CREDIT:
                        return
                    credit += number
                credit -= size
                connection.sendall(header.pack(message_kind, *numbers, size))
                if ipc is not None:
                    connection.sendall(ipc)
            while kind not in (DONE, LEAVE):
                kind, _ = ordered()
        if kind == DONE and tally is not None:
            tally.add([TaskContext.get().partitionId()])
        elif kind == DONE:
            sent = pa.array([1], pa.int32())
            yield pa.RecordBatch.from_arrays([sent], names=["sent"])

    return push


def new_tally(context: Any, on_parts: Callable[[list[int]], object]) -> Any:
    """Return an accumulator of partitions whose tasks have succeeded."""
    from pyspark.accumulators import AccumulatorParam

    class Parts(AccumulatorParam):  # type: ignore[misc]  # pyspark has no types
        told: Any = None

        def zero(self, value: list[int]) -> list[int]:
            return value

        def addInPlace(self, one: list[int], other: list[int]) -> list[int]:  # noqa: N802 -- Spark's
            told = self.told
            if told is None:
                return one + other
            told(other)
            return one

        # What an executor gets has nobody to tell.
        def __getstate__(self) -> dict[str, Any]:
            return {}

    param = Parts()
    param.told = on_parts
    return context.accumulator([], param)


def new_confirmer(door: PushDoor) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function, behind the one that sends, that says that it has sent all.

    Its input is Spark's word for that: a row comes from the function before only if what
    fed that one has ended without an error. On Spark Connect there are no accumulators.
    """
    connected = _new_connected(door)

    def confirm(items: Iterator[Any]) -> Iterator[Any]:
        # Rows, or batches of them, of which there may be empty ones.
        for item in items:
            if getattr(item, "num_rows", 1):
                connection, ordered = connected(CONFIRMS)
                with connection:
                    # Spark may take the task for done only when the driver knows it.
                    ordered()
        yield from ()

    return confirm


def new_prober(
    door: PushDoor, within_s: float = PROBE_S
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function for ``mapInArrow`` that tries to reach the driver.

    It gives one row: why it could not, or nothing if it could.
    """
    connected = _new_connected(door, within_s)

    def probe(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            pass
        why = ""
        try:
            connection, ordered = connected(PROBES)
            with connection:
                ordered()
        # Raised, it would be tried four times.
        except (OSError, RuntimeError) as error:
            why = str(error)
        yield pa.RecordBatch.from_arrays([pa.array([why])], names=["why"])

    return probe


def _new_connected(
    door: PushDoor, within_s: float | None = None
) -> Callable[[int], tuple[Any, Any]]:
    """Return what connects a task: its connection, and what waits for an order."""
    host, port, secret, certificate = door

    def connected(claim: int) -> tuple[Any, Any]:
        import hmac
        import os
        import socket
        import struct

        from pyspark import TaskContext

        index = TaskContext.get().partitionId()
        where = f"the program that reads the DataFrame, at {host}:{port}"
        try:
            connection = socket.create_connection((host, port), within_s or 30)
        except OSError as error:
            raise RuntimeError(
                f"this executor cannot reach {where}: {error}. Where executors are on "
                "other machines, give SparkSource(df, read='push', listen=) an address "
                "of that machine that they reach; else read with stage=."
            ) from None
        connection.settimeout(within_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        order = struct.Struct(ORDER)

        if certificate:
            import ssl

            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            # Only that program has the key to it, whatever its host and clock are.
            context.check_hostname = False
            context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
            context.load_verify_locations(cadata=certificate)
            connection = context.wrap_socket(connection)

        def received(size: int) -> bytes:
            content = b""
            while len(content) < size:
                part = connection.recv(size - len(content))
                if not part:
                    raise RuntimeError(f"{where}, has closed the connection")
                content += part
            return content

        def proof(role: bytes, content: bytes) -> bytes:
            return hmac.digest(secret, role + content, "sha256")

        def ordered() -> tuple[int, int]:
            kind, number = order.unpack(received(order.size))
            return kind, number

        try:
            theirs, ours = received(NONCE_BYTES), os.urandom(NONCE_BYTES)
            connection.sendall(ours + proof(b"worker", theirs + ours))
            answer = received(PROOF_BYTES)
            if not hmac.compare_digest(answer, proof(b"driver", ours + theirs)):
                raise RuntimeError(f"{where}, does not know the secret of this job")
            connection.sendall(struct.pack(CLAIM, claim, index))
        except BaseException:
            connection.close()
            raise
        return connection, ordered

    return connected
