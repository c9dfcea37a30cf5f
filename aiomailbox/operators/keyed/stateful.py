"""What operators with keys have in common: state, timers, and their snapshot."""

from __future__ import annotations

from dataclasses import replace

from aiomailbox.eventtime import InternalTimerService, TimerSnapshot, Triggerable
from aiomailbox.operators.core.contract import Operator, Pending, then
from aiomailbox.operators.snapshots import OperatorSnapshot


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

    def timer_service(self, name: str, target: Triggerable) -> InternalTimerService:
        """Return a new timer service, with the timers that were restored under a name.

        Args:
            name: Unique in the operator; its timers are kept under it.
            target: Called when timers are due.
        """
        service = self.context.timer_service(target)
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
        """Fire timers, pass on what they emitted, then the watermark."""
        self.watermark_ms = timestamp_ms
        pending: Pending = None
        for service in self._timer_services.values():
            pending = then(pending, service.advance_watermark, timestamp_ms)
        pending = then(pending, self.emit_collected)
        return then(pending, self.output.emit_watermark, timestamp_ms)

    def close(self) -> Pending:
        """Disarm the timers."""
        for service in self._timer_services.values():
            service.close()
        return None
