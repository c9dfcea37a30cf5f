"""Takes records as fast as they come, and loses some rather than wait."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any, Final, Literal

from aiomailbox.errors import BufferFullError, InvalidArgumentError, RejectedMailError
from aiomailbox.operators.core.operator import Operator, Pending
from aiomailbox.operators.snapshots.codec import held_elements, with_held_elements
from aiomailbox.policies.arguments import check_count
from aiomailbox.records.elements import MIN_TIMESTAMP, Watermark, WatermarkStatus
from aiomailbox.records.run import ListRun, Run
from aiomailbox.state.rescale import OperatorStateSnapshot

__all__ = ["BufferOperator", "BufferPolicy"]

BufferPolicy = Literal["drop_oldest", "latest", "error"]

_POLICIES: Final = ("drop_oldest", "latest", "error")


class BufferOperator(Operator):
    """Keeps records while the output takes none, up to a bound.

    Theory of operation: records are numbered, and a watermark or status remembers the
    number of the record that follows it. It goes out when all records before it have
    gone out or were dropped; of watermarks that meet in one place the last one counts.

    Args:
        size: Records that wait at most.
        policy: What happens to one too many: ``"drop_oldest"``: the one that waits
            longest is dropped; ``"latest"``: all that wait are dropped, and the new one
            waits; ``"error"``: the job fails.

    Raises:
        InvalidArgumentError: If ``size`` is below 1 or the policy is unknown.
        WrongTypeError: If ``size`` is not an int.

    Concept:
        Reactive Streams, ``onBackpressureBuffer``, ``onBackpressureLatest``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> with OneInputHarness(BufferOperator(2)) as harness:
        ...     harness.recorded.availability.reset()
        ...     harness.process_run(["a", "b", "c"])
        ...     harness.recorded.availability.set_available()
        ...     harness.run_mail()
        ...     harness.values
        ['b', 'c']
    """

    takes_input_always = True

    def __init__(self, size: int, policy: BufferPolicy = "drop_oldest") -> None:
        self.size: int = check_count(size, "size")
        if policy not in _POLICIES:
            raise InvalidArgumentError(
                "policy", f"{policy!r} is unknown", f"Use one of {_POLICIES}."
            )
        self.policy = policy
        self._records: deque[tuple[Any, int]] = deque()
        # With the number of the record that follows each.
        self._controls: deque[tuple[int, int | WatermarkStatus]] = deque()
        # Numbers go on over the whole run, so that controls keep their place as records
        # go.
        self._first = 0
        self._waiting = False

    def open(self) -> Pending:
        """Go on with the records that waited."""
        metrics = self.context.metrics
        self._dropped = metrics.counter("records_dropped")
        metrics.gauge("buffered", lambda: len(self._records))
        if self._records:
            self._wait()
        return None

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the records that wait, and what waits among them."""
        controls = deque(self._controls)
        elements: list[Any] = []
        for number, record in enumerate(self._records, self._first):
            # Controls stand before the record with their number.
            while controls and controls[0][0] <= number:
                elements.append(_element(controls.popleft()[1]))
            elements.append(record)
        elements += [_element(control) for _, control in controls]
        return with_held_elements(super().snapshot_own(), elements)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Take over the records that waited."""
        for element in held_elements(own, self.watermark_ms):
            if isinstance(element, tuple):
                value, stamp = element
                self._records.append((value, MIN_TIMESTAMP if stamp is None else stamp))
            elif isinstance(element, Watermark):
                self._put_control(element.timestamp_ms)
            else:
                self._put_control(element)

    def process_run(self, run: Run) -> Pending:
        """Pass records on while there is room, and keep the others."""
        stamps = run.timestamps or [MIN_TIMESTAMP] * len(run)
        for record in zip(run.values, stamps, strict=True):
            if not self._records and self.output.availability.available:
                # Nothing waits for a writer, which is all that can follow here.
                self._emit(record)
            else:
                self._keep(record)
        self._wait()
        return None

    def pass_watermark(self, timestamp_ms: int) -> Pending:
        """Pass the watermark on after the records before it."""
        self._put_control(timestamp_ms)
        return self._drain()

    def process_status(self, status: WatermarkStatus) -> Pending:
        """Pass the status on after the records before it."""
        self._put_control(status)
        return self._drain()

    def end_input(self) -> Pending:
        """Wait until all records have gone out."""
        return self._empty() if self._records else None

    def close(self) -> Pending:
        """Wait for the output no more."""
        self.output.availability.discard(self._on_output)
        return None

    def _keep(self, record: tuple[Any, int]) -> None:
        if len(self._records) == self.size:
            if self.policy == "error":
                raise BufferFullError(self.context.operator_name, self.size)
            # `latest`: all that waited is older than the record that comes.
            count = 1 if self.policy == "drop_oldest" else self.size
            for _ in range(count):
                self._records.popleft()
            self._first += count
            self._dropped.value += count
            self._merge_controls()
        self._records.append(record)

    def _put_control(self, control: int | WatermarkStatus) -> None:
        self._controls.append((self._first + len(self._records), control))
        if len(self._controls) > 1:
            (place, before), (after, _) = self._controls[-2], self._controls[-1]
            # Only next to each other: a status in between belongs where it is.
            if place == after and isinstance(before, int) and isinstance(control, int):
                del self._controls[-2]

    def _merge_controls(self) -> None:
        """Let watermarks that nothing holds back any more become one."""
        controls = self._controls
        while len(controls) > 1 and controls[1][0] <= self._first:
            if not isinstance(controls[0][1], int) or not isinstance(
                controls[1][1], int
            ):
                return
            controls.popleft()

    def _drain(self) -> Pending:
        """Emit what can be emitted."""
        while True:
            # Also without room: controls take none, and nothing is before these.
            while self._controls and self._controls[0][0] <= self._first:
                self._emit_control(self._controls.popleft()[1])
            if not self._records:
                return None
            if not self.output.availability.available:
                self._wait()
                return None
            record = self._records.popleft()
            self._first += 1
            self._emit(record)

    def _emit(self, record: tuple[Any, int]) -> None:
        value, stamp = record
        self._done(
            self.output.emit_run(
                ListRun([value], None if stamp == MIN_TIMESTAMP else [stamp])
            )
        )

    def _emit_control(self, control: int | WatermarkStatus) -> None:
        if isinstance(control, int):
            self._done(self.output.emit_watermark(control))
        else:
            self._done(self.output.emit_status(control))

    def _done(self, pending: Pending) -> None:
        # The operator is alone in its task, and writers never have to wait.
        assert pending is None, "a buffer is followed by a writer only"

    def _wait(self) -> None:
        if self._records and not self._waiting:
            self._waiting = True
            self.output.availability.on_available(self._on_output)

    def _on_output(self) -> None:
        if self._waiting:
            # While the task is closing, what waits is in its last snapshot.
            with contextlib.suppress(RejectedMailError):
                self.context.mailbox.execute(self._on_room, description="emit records")

    def _on_room(self) -> Pending:
        self._waiting = False
        return self._drain()

    async def _empty(self) -> None:
        while self._records:
            waiter = self.output.availability.waiter()
            # With mail: the consumer that makes room may need this task to go on.
            await self.context.mailbox.yield_until(waiter)
            self._drain()


def _element(control: int | WatermarkStatus) -> Watermark | WatermarkStatus:
    return Watermark(control) if isinstance(control, int) else control
