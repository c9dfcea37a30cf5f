"""The producer's end of a connection: readers take turns, one buffer each.

Theory of operation: a reader waits in line if it has something that it may send. It is
asked for one buffer, and goes to the end of the line if there is more. Nothing is taken
from a view before it can be written, so what waits, waits in the partition.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from aiomailbox.errors import (
    CorruptStreamError,
    PartitionNotFoundError,
    TransportError,
    safe_str,
)
from aiomailbox.exchange.core.contract import BytesView
from aiomailbox.exchange.gate import PartitionRegistry
from aiomailbox.exchange.remote.connection import (
    Connection,
    ConnectionOptions,
    OutgoingBatch,
)
from aiomailbox.exchange.remote.credit import SenderCredit
from aiomailbox.exchange.remote.handshake import (
    Handshake,
    WorkerIdentity,
    partition_id_of,
)
from aiomailbox.exchange.remote.wire import (
    PARTITION_NOT_FOUND,
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    ErrorResponse,
    Message,
    NewBufferSize,
    PartitionRequest,
    RemoteCause,
    ResumeConsumption,
    encode_buffer_header,
)
from aiomailbox.memory.buffer import DataType

# One receiver's reader at the producer: a view, and the credit to send from it.


_LAST: Final = DataType.END_OF_PARTITION


class Reader:
    """Sends what a receiver has credit for.

    Args:
        request: What the receiver asked for.
        on_ready: Called when there may be something to send.

    Attributes:
        view: Where it reads; None before and after.
        receiver: Whose reader it is.
        credit: What may be sent.
        is_queued: Whether it waits for its turn.
        has_ended: Whether the end of the partition was sent.

    Invariants:
        Data is taken from the view only against credit.

    Concept:
        Flink, ``CreditBasedSequenceNumberingViewReader``.
    """

    def __init__(
        self, request: PartitionRequest, on_ready: Callable[[Reader], None]
    ) -> None:
        self.receiver: bytes = request.receiver
        self.credit: SenderCredit = SenderCredit(request.credit)
        self.is_queued: bool = False
        self.has_ended: bool = False
        self._subpartition = request.subpartition_first
        self._on_ready = on_ready
        self.view: BytesView | None = None

    def __repr__(self) -> str:
        return f"<Reader {self.receiver.hex()}: {self.credit.available} credit>"

    @property
    def is_available(self) -> bool:
        """Whether something can be sent: with credit anything, without events."""
        view = self.view
        return view is not None and view.is_available(
            has_credit=self.credit.available > 0
        )

    @property
    def was_cut_off(self) -> bool:
        """Whether the producer released it before the end of the partition."""
        view = self.view
        return view is not None and view.is_released and not self.has_ended

    @property
    def backlog_to_announce(self) -> int:
        """The backlog to announce so that the receiver gives credit; 0 for none."""
        backlog = 0 if self.view is None else self.view.backlog
        return backlog if self.credit.announces_backlog(backlog) else 0

    def attach(self, view: BytesView) -> None:
        """Read from a view."""
        self.view = view

    def on_data_available(self) -> None:
        """Look what there is, in turn."""
        self._on_ready(self)

    def on_priority_event(self, sequence_number: int) -> None:
        """Look what there is, in turn."""
        self._on_ready(self)

    def send_one(self, batch: OutgoingBatch) -> bool:
        """Add the next buffer to a turn; say whether there was one.

        Raises:
            IllegalStateError: If it was taken without credit.
        """
        view = self.view
        polled = None if view is None else view.poll()
        if polled is None:
            return False
        buffer = polled.buffer
        try:
            data_type = buffer.data_type
            self.credit.on_sent(data_type)
            header = encode_buffer_header(
                BufferResponse(
                    self.receiver,
                    self._subpartition,
                    polled.sequence_number,
                    polled.backlog,
                    data_type,
                    len(buffer.readable()),
                )
            )
        except BaseException:
            buffer.recycle()
            raise
        self.has_ended = data_type is _LAST
        batch.add_buffer(header, buffer)
        return True

    def resume_consumption(self) -> None:
        """Lift the block of an event; it went with the view, if that is gone.

        Raises:
            IllegalStateError: If nothing blocks.
        """
        if self.view is not None:
            self.credit.on_resume()
            self.view.resume_consumption()

    def acknowledge_all_data_processed(self) -> None:
        """Pass on that the receiver has processed all records."""
        if self.view is not None:
            self.view.acknowledge_all_data_processed()

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Pass on how large buffers should be."""
        if self.view is not None:
            self.view.set_buffer_bytes(size_bytes)

    def release(self) -> None:
        """Release the view. Idempotent."""
        view, self.view = self.view, None
        if view is not None:
            view.release()


# Characters of an error's text, and of the end of its traceback.
_TEXT_MAX: Final = 2_000
_TRACEBACK_MAX: Final = 4_000
# A loop that was held uses up one of them, however long that was: what the peer has sent
# meanwhile is read before the next one.
_DEADLINE_PIECES: Final = 5


class ProducerConnection(Connection):
    """The producer's end.

    Args:
        identity: This worker's identity.
        provider: Where partitions are found.
        handshake: How it begins.
        options: Limits.
        log: A structlog logger.
        on_open: Called when the peer is authenticated.
        on_refused: Called at the end of a peer that is not, with its name and why.

    Concept:
        Flink, ``PartitionRequestQueue`` and ``PartitionRequestServerHandler``.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        provider: PartitionRegistry,
        handshake: Handshake,
        *,
        options: ConnectionOptions,
        log: Any,
        on_open: Callable[[ProducerConnection], None],
        on_refused: Callable[[str, str | None], None],
    ) -> None:
        local = f"worker {identity.worker!r}"
        super().__init__(
            handshake, local=local, peer="a peer", options=options, log=log
        )
        self._when_open = on_open
        self._when_refused = on_refused
        self._identity = identity
        self._provider = provider
        self._where = "an unknown address"
        self._readers: dict[bytes, Reader] = {}
        self._line: deque[Reader] = deque()

    def _address(self) -> str:
        return self._where

    def _on_made(self) -> None:
        assert self._transport is not None
        name = self._transport.get_extra_info("peername")
        self._where = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unix"
        self.peer: str = f"a peer at {self._where}"
        self._watch_greeting()

    def _on_open(self) -> None:
        self._when_open(self)

    def _report_end(self, write: Callable[..., None]) -> None:
        if self._was_open:
            super()._report_end(write)
        else:
            self._when_refused(self.peer, self._reason)

    def _watch_greeting(self, pieces: int = _DEADLINE_PIECES) -> None:
        """Close after a while, of which time that the loop was held is no part."""
        if pieces:
            self._deadline = self._loop.call_later(
                self._options.handshake_timeout / _DEADLINE_PIECES,
                self._watch_greeting,
                pieces - 1,
            )
            return
        self._deadline = None
        reason = f"no handshake within {self._options.handshake_timeout:g} s"
        self._fail(self._remote_error(reason))

    def _is_expected_end(self) -> bool:
        return not any(
            reader.view is not None and not reader.has_ended
            for reader in self._readers.values()
        )

    def _on_open_message(self, message: Message) -> None:
        if isinstance(message, AddCredit):
            self._known(message.receiver, message).credit.add(message.credit)
            self._line_up(self._readers[message.receiver])
        elif isinstance(message, PartitionRequest):
            self._on_request(message)
        elif isinstance(message, CancelPartitionRequest):
            self._forget(message.receiver)
        elif isinstance(message, CloseRequest):
            self.end("the peer needs it no more")
        elif isinstance(message, ResumeConsumption):
            reader = self._known(message.receiver, message)
            self._attempt(reader, reader.resume_consumption)
        elif isinstance(message, AckAllUserRecordsProcessed):
            reader = self._known(message.receiver, message)
            self._attempt(reader, reader.acknowledge_all_data_processed)
        elif isinstance(message, NewBufferSize):
            # The reader may have been cancelled while the wish was on its way.
            known = self._readers.get(message.receiver)
            if known is not None:
                self._attempt(known, known.set_buffer_bytes, message.size_bytes)
        else:
            raise CorruptStreamError(
                f"a reader of data cannot send {type(message).__name__} now"
            )

    def _known(self, receiver: bytes, message: Message) -> Reader:
        reader = self._readers.get(receiver)
        if reader is None:
            raise CorruptStreamError(
                f"{type(message).__name__} for receiver {receiver.hex()}, which has "
                "requested nothing"
            )
        return reader

    def _on_request(self, request: PartitionRequest) -> None:
        partition, receiver = request.partition, request.receiver
        if partition.execution_graph_id != self._identity.job_id:
            raise CorruptStreamError(
                f"a partition of job {partition.execution_graph_id.hex()} was "
                f"requested of a worker of job {self._identity.job_id.hex()}"
            )
        known = self._readers.get(receiver)
        if known is not None and known.view is not None:
            raise CorruptStreamError(f"receiver {receiver.hex()} requests twice")
        if known is None and len(self._readers) >= self._options.receivers_max:
            raise CorruptStreamError(
                f"more than {self._options.receivers_max} receivers on one connection"
            )
        if request.subpartition_first != request.subpartition_last:
            raise CorruptStreamError("a receiver reads one subpartition")
        reader = self._readers[receiver] = Reader(request, self._line_up)
        try:
            view = self._provider.create_bytes_view(
                partition_id_of(partition),
                request.subpartition_first,
                reader,
                receiver_exclusive_buffers=request.credit,
            )
        except PartitionNotFoundError as error:
            text = safe_str(error)[:_TEXT_MAX]
            self._report(reader, RemoteCause(PARTITION_NOT_FOUND, text))
            return
        except Exception as error:  # noqa: BLE001 -- it is the receiver's, as text
            self._report(reader, _cause_of(error))
            return
        reader.attach(view)
        self._line_up(reader)

    def _attempt(
        self, reader: Reader, method: Callable[..., None], *arguments: Any
    ) -> None:
        try:
            method(*arguments)
        except Exception as error:  # noqa: BLE001 -- it is the receiver's, as text
            self._report(reader, _cause_of(error))
        else:
            self._line_up(reader)

    def _line_up(self, reader: Reader) -> None:
        if self.is_ending or reader.is_queued or reader.view is None:
            return
        # Cut off, it is lined up as well: the error takes the same way as data.
        if reader.is_available or reader.was_cut_off:
            reader.is_queued = True
            self._line.append(reader)
            self.wake()
        elif reader.backlog_to_announce:
            self.queue(
                BacklogAnnouncement, reader.receiver, lambda: _announcement(reader)
            )

    def _fill(self, batch: OutgoingBatch) -> bool:
        while self._line and batch.has_room_for_buffer:
            # One buffer each and back to the end, so that no channel waits for another
            # one.
            reader = self._line.popleft()
            reader.is_queued = False
            if reader.view is None:
                continue
            try:
                if not reader.was_cut_off and reader.is_available:
                    reader.send_one(batch)
                self._check_cut_off(reader)
            except Exception as error:  # noqa: BLE001 -- it is the receiver's, as text
                self._report(reader, _cause_of(error))
            else:
                self._line_up(reader)
        return bool(self._line)

    def _check_cut_off(self, reader: Reader) -> None:
        if not reader.was_cut_off:
            return
        assert reader.view is not None
        failure = reader.view.failure
        if failure is not None:
            raise failure
        raise ConnectionAbortedError("the producer has released the partition")

    def _report(self, reader: Reader, cause: RemoteCause) -> None:
        # It stays known: what its receiver has said already is no violation.
        reader.release()
        self.queue(
            ErrorResponse,
            reader.receiver,
            lambda: ErrorResponse(cause, reader.receiver),
        )

    def _forget(self, receiver: bytes) -> None:
        reader = self._readers.pop(receiver, None)
        if reader is None:
            return
        if reader.is_queued:
            self._line.remove(reader)
            reader.is_queued = False
        for kind in (BacklogAnnouncement, ErrorResponse):
            self._control.pop((kind, receiver), None)
        reader.release()

    def _on_lost(self, error: TransportError) -> None:
        self._line.clear()
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.release()


def _cause_of(error: BaseException) -> RemoteCause:
    """Return an error as text, truncated: many may wait for a peer that stalls."""
    kind = type(error).__name__
    if kind == PARTITION_NOT_FOUND:
        # One that the producer has failed with; it is no answer to a request.
        kind = f"{type(error).__module__}.{kind}"
    trace = "".join(traceback.format_exception(error))
    return RemoteCause(kind, safe_str(error)[:_TEXT_MAX], trace[-_TRACEBACK_MAX:])


def _announcement(reader: Reader) -> BacklogAnnouncement | None:
    backlog = reader.backlog_to_announce
    return BacklogAnnouncement(backlog, reader.receiver) if backlog else None
