"""What operators with keys have in common: state, timers, and their snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiomailbox.errors import StateError
from aiomailbox.eventtime import InternalTimerService, TimerSnapshot, Triggerable
from aiomailbox.operators.core.contract import Operator, Pending, then
from aiomailbox.state import KeyedStateSnapshot, OperatorStateSnapshot


@dataclass(frozen=True, slots=True)
class StatefulSnapshot:
    """Everything that a keyed operator goes on from.

    Attributes:
        keyed: Its keyed state.
        timers: Its timers, by the name of their service.
        own: What `Operator.snapshot_state` returned.
        without_keys: Its lists and broadcast maps that belong to no key, by name.
    """

    keyed: KeyedStateSnapshot
    timers: dict[str, TimerSnapshot] = field(default_factory=dict)
    own: Any = None
    without_keys: OperatorStateSnapshot = field(default_factory=OperatorStateSnapshot)


class StatefulOperator(Operator):
    """The base of operators with keyed state and timers.

    A watermark first fires timers; then what they emitted goes out; then the watermark.

    Concept:
        Flink, ``AbstractStreamOperator`` with its ``InternalTimeServiceManager``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._timer_services: dict[str, InternalTimerService] = {}
        self._restored_timers: dict[str, list[TimerSnapshot]] = {}

    def timer_service(self, name: str, target: Triggerable) -> InternalTimerService:
        """Return a new timer service, with the timers that were restored under a name.

        Args:
            name: Unique in the operator; its timers are kept under it.
            target: Called when timers are due.
        """
        service = self.context.timer_service(target)
        self._timer_services[name] = service
        service.restore(self._restored_timers.pop(name, []))
        return service

    def snapshot(self) -> StatefulSnapshot:
        """Return keyed state, timers, and what `snapshot_state` returns."""
        self.fill_state()
        timers = {
            name: service.snapshot() for name, service in self._timer_services.items()
        }
        return StatefulSnapshot(
            self.context.keyed_state.snapshot(),
            timers,
            self.snapshot_state(),
            self.context.operator_state.snapshot(),
        )

    def restore(self, state: object) -> None:
        """Take over snapshots of earlier instances; comes before `open`.

        Args:
            state: One snapshot, or several whose key groups together hold this
                subtask's; what else they hold is left alone.

        Raises:
            StateError: If it is not a snapshot of such an operator, or was made with
                another number of key groups.
        """
        if state is None:
            return
        pieces: Sequence[Any] = state if isinstance(state, list | tuple) else [state]
        for piece in pieces:
            if not isinstance(piece, StatefulSnapshot):
                raise StateError(
                    f"operator {self.context.operator_name!r} has keys, and cannot be "
                    f"restored from a {type(piece).__qualname__}. Was the uid given "
                    "to another operator before?"
                )
        self.context.keyed_state.restore([piece.keyed for piece in pieces])
        self.context.operator_state.restore([piece.without_keys for piece in pieces])
        for piece in pieces:
            for name, timers in piece.timers.items():
                self._restored_timers.setdefault(name, []).append(timers)
            if piece.own is not None:
                self.restore_state(piece.own)

    def emit_collected(self) -> Pending:
        """Pass on what was collected while timers fired; nothing by default."""
        return None

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Fire timers, pass on what they emitted, then the watermark."""
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
