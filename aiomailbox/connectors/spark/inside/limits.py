"""Rate limits that hold for all of Spark's workers: the driver has the limiters.

Theory of operation: the driver listens in a thread of its own, one listener a process,
however many pipelines are applied. A worker connects if its part has a limit that is not
its own, proves that it knows the secret that came with the pipeline, and asks for leases.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Final

import msgspec

from aiomailbox.clock import SystemClock
from aiomailbox.connectors.spark.shipped import (
    HANDSHAKE_S,
    admit,
    connect_as,
    read_message,
)
from aiomailbox.errors import CorruptStreamError, UsageError, WorldError
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.runtime.limiter import LimiterService
from aiomailbox.runtime.peers.limits import LimitDesk, RemoteLimits
from aiomailbox.runtime.peers.messages import (
    Granted,
    Lease,
    Pause,
    Used,
    decode_from_parent,
    decode_from_worker,
    encode,
)
from aiomailbox.supervision import LoopThread

_MESSAGE_BYTES_MAX: Final = 1 << 20
_JOBS_MAX: Final = 1024
_CONNECT_S: Final = 30.0


class LimitDoor(msgspec.Struct, frozen=True):
    """Where the limiters of a pipeline are, and what opens the door.

    Attributes:
        host: The driver's.
        port: Where it listens.
        secret: What a worker has to know.
        job_id: 16 bytes that name the pipeline.
    """

    host: str
    port: int
    secret: bytes
    job_id: bytes


def check_limits(limits: list[RateLimit], *, is_connect: bool) -> bool:
    """Say whether workers have to ask the driver."""
    shared = [limit for limit in limits if not limit.per_task]
    if shared and is_connect:
        raise UsageError(
            f"{shared[0]!r} is a limit of the whole job, and on Spark Connect there "
            "is no driver process that its workers could ask. Write RateLimit(..., "
            "per_task=True) and divide it by the number of tasks that run at a "
            "time."
        )
    return bool(shared)


def open_door(host: str, job_id: bytes, limits: list[RateLimit]) -> LimitDoor:
    """Let workers ask for the limits of a pipeline; from any thread."""
    with _LOCK:
        desk = _DESKS.get(host)
        if desk is None:
            desk = _DESKS[host] = _Desks(host)
        return desk.admit(job_id, limits)


class RemoteDoor:
    """A worker's connection to the driver's limiters.

    Attributes:
        limits: Finds the worker's limiters.
    """

    def __init__(self, door: LimitDoor, limits: list[RateLimit]) -> None:
        self.limits: RemoteLimits = RemoteLimits(limits, self._send)
        self._door = door
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None

    async def connect(self) -> None:
        """Connect and prove."""
        door = self._door
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await connect_as(
                    door.job_id, door.secret, door.host, door.port
                )
        except (OSError, EOFError, TimeoutError) as error:
            raise WorldError(
                f"the driver's rate limits at {door.host}:{door.port} cannot be reached "
                f"from this worker: {error!r}. The address is spark.driver.host."
            ) from error
        self._reader, self._writer = reader, writer

    async def run(self) -> None:
        """Take grants until the connection ends, which it must not while this runs."""
        assert self._reader is not None, "connect() comes first"
        try:
            while True:
                message = await read_message(
                    self._reader, decode_from_parent, _MESSAGE_BYTES_MAX
                )
                if not isinstance(message, Granted):
                    raise CorruptStreamError(f"{message!r} grants nothing")
                self.limits.on_granted(message)
        except (OSError, EOFError) as error:
            raise WorldError("the driver with the rate limits is gone") from error

    def close(self) -> None:
        """Refuse all leases from now on, and disconnect."""
        self.limits.close()
        if self._writer is not None:
            self._writer.close()

    def _send(self, message: Lease | Used | Pause) -> None:
        assert self._writer is not None, "connect() comes first"
        self._writer.write(encode(message))


class _Desks:
    """The driver's side: a listener, and the limiters of each pipeline."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._secret = secrets.token_bytes(32)
        self._jobs: OrderedDict[bytes, LimitDesk] = OrderedDict()
        self._port: Future[int] = Future()
        LoopThread[None]("aiomailbox-limits").start(self._listen)
        try:
            self._port.result()
        except OSError as error:
            raise WorldError(
                f"no socket for rate limits at {host}: {error}. The address is "
                "spark.driver.host."
            ) from error

    def admit(self, job_id: bytes, limits: list[RateLimit]) -> LimitDoor:
        """Make the limiters of a pipeline."""
        self._jobs[job_id] = LimitDesk(LimiterService(SystemClock()), limits)
        if len(self._jobs) > _JOBS_MAX:
            self._jobs.popitem(last=False)
        return LimitDoor(self._host, self._port.result(), self._secret, job_id)

    async def _listen(self) -> None:
        try:
            server = await asyncio.start_server(self._serve, self._host, 0)
        except BaseException as error:  # noqa: BLE001 -- raised where it was asked for
            self._port.set_exception(error)
            return
        self._port.set_result(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                job_id = await admit(reader, writer, self._secret)
            desk = None if job_id is None else self._jobs.get(job_id)
            if desk is None:
                return
            worker = _Worker(writer)
            try:
                while True:
                    message = await read_message(
                        reader, decode_from_worker, _MESSAGE_BYTES_MAX
                    )
                    match message:
                        case Lease():
                            desk.on_lease(message, worker, worker.on_failed)
                        case Used():
                            desk.on_used(message, worker)
                        case Pause():
                            desk.on_pause(message)
                        case _:
                            return
            finally:
                desk.forget(worker)
        except (OSError, EOFError, CorruptStreamError):
            # A worker whose task ended, or a stranger.
            return
        finally:
            writer.close()


class _Worker:
    """Receives grants."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def send(self, message: Granted) -> None:
        self._writer.write(encode(message))

    def on_failed(self, error: BaseException) -> None:
        # It fails the worker's task: it had the same limit to check the lease by.
        self._writer.close()


_LOCK: Final = threading.Lock()
_DESKS: Final[dict[str, _Desks]] = {}
