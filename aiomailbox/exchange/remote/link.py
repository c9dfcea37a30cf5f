"""A channel's link to its connection: what it may say, each thing once at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.exchange.remote.endpoints import Receiver
from aiomailbox.exchange.remote.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    Message,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
)

__all__ = ["Channel", "ChannelHost"]

_KINDS = (AddCredit, ResumeConsumption, AckAllUserRecordsProcessed, NewBufferSize)


class ChannelHost(Protocol):
    """What a link asks of its connection."""

    def queue(
        self, kind: type, receiver: bytes, build: Callable[[], Message | None]
    ) -> None:
        """Say something soon, once; it is built when it is written."""
        ...

    def drop(self, kind: type, receiver: bytes) -> bool:
        """Unsay what was not written yet; say whether there was anything."""
        ...

    def forget(self, channel: Channel) -> None:
        """Release a channel that was closed."""
        ...


class Channel:
    """One channel of a connection; what its owner holds of it is a `ChannelLink`.

    Args:
        host: The connection.
        receiver: The channel's receiving end.
        request: What asks the producer for its data.

    Invariants:
        Nothing is said between a request that was answered with "not found" and the
        next one, and nothing after `close`.
    """

    __slots__ = (
        "_buffer_bytes",
        "_host",
        "_is_requested",
        "_was_not_found",
        "is_closed",
        "receiver",
        "request",
    )

    def __init__(
        self, host: ChannelHost, receiver: Receiver, request: PartitionRequest
    ) -> None:
        self._host = host
        self._is_requested = False
        self._was_not_found = False
        self._buffer_bytes = 0
        self.receiver: Receiver = receiver
        self.request: PartitionRequest = request
        self.is_closed: bool = False

    def send_request(self) -> None:
        """Ask the producer."""
        self._is_requested = True
        self._host.queue(PartitionRequest, self.request.receiver, lambda: self.request)

    def was_not_found(self) -> None:
        """Be notified that the producer knows nothing of this channel."""
        self._unsay()
        self._is_requested = False
        self._was_not_found = True

    def take_back(self) -> bool:
        """Say nothing more; return whether the producer may know the channel."""
        self._unsay()
        self._is_requested = False
        is_new = self._host.drop(PartitionRequest, self.request.receiver)
        return self._was_not_found or not is_new

    # Built when it is written: credit that comes until then goes with it.
    def announce_credit(self) -> None:
        """Announce credit soon."""
        self._say(AddCredit, self._credit)

    def request_again(self) -> None:
        """Send the partition request once more, after it was not found."""
        if not self.is_closed and not self._is_requested:
            self.send_request()
            self.announce_credit()
            if self._buffer_bytes:
                # The producer had nowhere to keep it.
                self.announce_buffer_size(self._buffer_bytes)

    def resume_consumption(self) -> None:
        """Let the producer go on after an event that blocked it."""
        # Without buffers of its own, a channel's credit counts from the resumption:
        # credit that waits to be announced has to come after it.
        had_credit = self._host.drop(AddCredit, self.request.receiver)
        self._say(ResumeConsumption, lambda: ResumeConsumption(self.request.receiver))
        if had_credit:
            self.announce_credit()

    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that all its records have been processed."""
        self._say(
            AckAllUserRecordsProcessed,
            lambda: AckAllUserRecordsProcessed(self.request.receiver),
        )

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Tell the producer how large its buffers should be; the latest counts.

        Raises:
            InvalidArgumentError: If it is less than 1.
        """
        if size_bytes < 1:
            raise InvalidArgumentError("size_bytes", f"{size_bytes} is less than 1")
        self._buffer_bytes = size_bytes
        self._say(
            NewBufferSize,
            lambda: NewBufferSize(self._buffer_bytes, self.request.receiver),
        )

    def close(self) -> None:
        """Release it. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self._host.forget(self)

    def _credit(self) -> Message | None:
        if self.receiver.is_released:
            return None
        credit = self.receiver.take_credit()
        return AddCredit(credit, self.request.receiver) if credit > 0 else None

    def _say(self, kind: type, build: Callable[[], Message | None]) -> None:
        if self._is_requested and not self.is_closed:
            self._host.queue(kind, self.request.receiver, build)

    def _unsay(self) -> None:
        for kind in _KINDS:
            self._host.drop(kind, self.request.receiver)
