"""What operators with keys have in common: state, timers, and their snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aiomailbox.eventtime import (
    InternalTimerService,
    Results,
    TimerSnapshot,
    Triggerable,
)
from aiomailbox.operators.core.contract import Operator, Pending, then
from aiomailbox.operators.core.pieces import Pieces
from aiomailbox.operators.snapshots import OperatorSnapshot
from aiomailbox.state import OperatorStateSnapshot, RedistributionMode

# The name is in snapshots.
_FIRING: Final = "firing"


class StatefulOperator(Operator):
    """The base of operators with keyed state and timers.

    A watermark first fires timers; then what they emitted goes out; then the watermark.

    Concept:
        Flink, ``AbstractStreamOperator`` with its ``InternalTimeServiceManager``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._timer_services: dict[str, InternalTimerService] = {}
        self._restored_timers: dict[str, TimerSnapshot] = {}
        self._is_firing = False

    def timer_service(
        self, name: str, target: Triggerable, results: Results | None = None
    ) -> InternalTimerService:
        """Return a new timer service, with the timers that were restored under a name.

        Args:
            name: Unique in the operator; its timers are kept under it.
            target: Called when timers are due.
            results: Where it collects results, if it does; `emit_collected` passes
                them on.
        """
        service = self.context.timer_service(target)
        pieces = Pieces(self.context, self.output, self.emit_collected)
        service.in_pieces = pieces.run
        if results is not None:
            service.results = results
        self._timer_services[name] = service
        service.current_watermark = self.watermark_ms
        restored = self._restored_timers.pop(name, None)
        if restored is not None:
            service.restore([restored])
        return service

    def capture(self) -> OperatorSnapshot:
        """Return all state as it is now, with that of keys and the timers."""
        timers = {
            name: service.snapshot() for name, service in self._timer_services.items()
        }
        keyed = self.context.keyed_state.snapshot()
        return replace(super().capture(), keyed=(keyed,), timers=timers)

    def restore_keyed(self, snapshot: OperatorSnapshot) -> None:
        """Take over the keyed state and the timers of this subtask's key groups.

        Raises:
            StateError: If they are of another number of key groups.
        """
        self.context.keyed_state.restore(snapshot.keyed)
        self._restored_timers.update(snapshot.timers)

    def emit_collected(self) -> Pending:
        """Pass on what was collected while timers fired; nothing by default."""
        return None

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Fire what is due, then pass the watermark on.

        That may be in pieces, between which the operator may be snapshotted.
        """
        self.watermark_ms = timestamp_ms
        self._is_firing = True
        return then(self.fire(timestamp_ms), self._pass_watermark, timestamp_ms)

    def fire(self, timestamp_ms: int) -> Pending:
        """Fire the timers that a watermark has reached, and pass on what they emitted."""
        pending: Pending = None
        for service in self._timer_services.values():
            pending = then(pending, service.advance_watermark, timestamp_ms)
        return then(pending, self.emit_collected)

    def resume(self) -> Pending:
        """Go on with a watermark that was firing when the snapshot was taken."""
        if not self._is_firing:
            return None
        return self.process_watermark(self.watermark_ms)

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return whether the watermark is still firing."""
        own = super().snapshot_own()
        if not self._is_firing:
            return own
        return own.with_list(_FIRING, [True], RedistributionMode.MERGE)

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Take over whether a watermark was still firing, in any of the subtasks."""
        super().restore_own(own)
        self._is_firing = bool(own.elements(_FIRING))

    def _pass_watermark(self, timestamp_ms: int) -> Pending:
        self._is_firing = False
        return self.output.emit_watermark(timestamp_ms)

    def close(self) -> Pending:
        """Disarm the timers."""
        for service in self._timer_services.values():
            service.close()
        return None
