"""One receiver's reader at the producer: a view, and the credit to send from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiomailbox.exchange.core.views import BytesView
from aiomailbox.exchange.remote.credit import SenderCredit
from aiomailbox.exchange.remote.messages import BufferResponse, PartitionRequest
from aiomailbox.exchange.remote.outgoing import Batch
from aiomailbox.exchange.remote.wire import encode_buffer_header
from aiomailbox.memory.data_type import DataType

__all__ = ["Reader"]

_LAST: Final = DataType.END_OF_PARTITION


class Reader:
    """Sends what a receiver has credit for.

    Args:
        request: What the receiver asked for.
        on_ready: Called when there may be something to send.

    Attributes:
        receiver: Whose reader it is.
        credit: What may be sent.
        is_queued: Whether it waits for its turn.
        has_ended: Whether the end of the partition was sent.

    Invariants:
        Data is taken from the view only against credit.

    Concept:
        Flink, ``CreditBasedSequenceNumberingViewReader``.
    """

    __slots__ = (
        "_on_ready",
        "_subpartition",
        "_view",
        "credit",
        "has_ended",
        "is_queued",
        "receiver",
    )

    def __init__(
        self, request: PartitionRequest, on_ready: Callable[[Reader], None]
    ) -> None:
        self.receiver: bytes = request.receiver
        self.credit: SenderCredit = SenderCredit(request.credit)
        self.is_queued: bool = False
        self.has_ended: bool = False
        self._subpartition = request.subpartition_first
        self._on_ready = on_ready
        self._view: BytesView | None = None

    def __repr__(self) -> str:
        return f"<Reader {self.receiver.hex()}: {self.credit.available} credit>"

    @property
    def view(self) -> BytesView | None:
        """Where it reads; None before and after."""
        return self._view

    @property
    def is_available(self) -> bool:
        """Whether something can be sent: with credit anything, without events."""
        view = self._view
        return view is not None and view.is_available(
            has_credit=self.credit.available > 0
        )

    @property
    def was_cut_off(self) -> bool:
        """Whether the producer released it before the end of the partition."""
        view = self._view
        return view is not None and view.is_released and not self.has_ended

    @property
    def backlog_to_announce(self) -> int:
        """The backlog to announce so that the receiver gives credit; 0 for none."""
        backlog = 0 if self._view is None else self._view.backlog
        return backlog if self.credit.announces_backlog(backlog) else 0

    def attach(self, view: BytesView) -> None:
        """Read from a view."""
        self._view = view

    def on_data_available(self) -> None:
        """Look what there is, in turn."""
        self._on_ready(self)

    def on_priority_event(self, sequence_number: int) -> None:
        """Look what there is, in turn."""
        self._on_ready(self)

    def send_one(self, batch: Batch) -> bool:
        """Add the next buffer to a turn; say whether there was one.

        Raises:
            IllegalStateError: If it was taken without credit.
        """
        view = self._view
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
                    buffer.compressed,
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
        if self._view is not None:
            self.credit.on_resume()
            self._view.resume_consumption()

    def acknowledge_all_data_processed(self) -> None:
        """Pass on that the receiver has processed all records."""
        if self._view is not None:
            self._view.acknowledge_all_data_processed()

    def set_buffer_bytes(self, size_bytes: int) -> None:
        """Pass on how large buffers should be."""
        if self._view is not None:
            self._view.set_buffer_bytes(size_bytes)

    def release(self) -> None:
        """Release the view. Idempotent."""
        view, self._view = self._view, None
        if view is not None:
            view.release()
