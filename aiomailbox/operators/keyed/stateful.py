"""What operators with keys have in common: state, timers, and their snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from aiomailbox.eventtime.timers import (
    InternalTimerService,
    LoadedTimers,
    Results,
    Triggerable,
)
from aiomailbox.operators.core.operator import Operator, Pending, then
from aiomailbox.operators.core.slices import Pieces
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.state.rescale import OperatorStateSnapshot, RedistributionMode
from aiomailbox.state.snapshot import KeyedStateSnapshot

# Steps of about half a microsecond, and how long to wait before and between them.
_SETTLE_STEPS: Final = 2048
_SETTLE_MS: Final = 10
_SETTLE_MAX_MS: Final = 1000
# The name is in snapshots.
_FIRING: Final = "firing"


class Layered(Protocol):
    """What snapshots are taken of; see `aiomailbox.state.layers`."""

    @property
    def has_snapshot(self) -> bool:
        """Whether a snapshot makes every access cost more."""
        ...

    def settle(self, count: int) -> int:
        """Remove layers that no snapshot needs any more; return the steps not needed."""
        ...


class StatefulOperator(Operator):
    """The base of operators with keyed state and timers.

    A watermark first fires timers; then what they emitted goes out; then the watermark.

    Concept:
        Flink, ``AbstractStreamOperator`` with its ``InternalTimeServiceManager``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._timer_services: dict[str, InternalTimerService] = {}
        self._restored_timers: dict[str, LoadedTimers] = {}
        self._is_firing = False
        self._is_settling = False

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
            service.take_over(restored)
        return service

    def capture(self) -> OperatorSnapshot:
        """Return all state as it is now, with that of keys and the timers.

        It is taken now, and read later, in a thread; see `aiomailbox.state.layers`.
        """
        timers = {
            name: service.snapshot() for name, service in self._timer_services.items()
        }
        keyed = (self.context.keyed_state.snapshot(), *self.snapshot_apart())
        captured = replace(super().capture(), keyed=keyed, timers=timers)
        # One at a time: snapshots that follow each other quickly would pile up timers.
        if not self._is_settling and any(one.has_snapshot for one in self.layered()):
            self._settle_after(_SETTLE_MS)
        return captured

    def snapshot_apart(self) -> Iterable[KeyedStateSnapshot]:
        """Capture what is kept by key, but not in the store; nothing by default."""
        return ()

    def layered(self) -> list[Layered]:
        """Return all that a snapshot is taken of."""
        return [self.context.keyed_state, *self._timer_services.values()]

    def restore_keyed(self, snapshot: OperatorSnapshot) -> Iterator[None]:
        """Take over the keyed state and the timers of this subtask's key groups.

        Raises:
            StateError: If they are of another number of key groups.
        """
        context = self.context
        self.expect_accumulators()
        yield from context.keyed_state.restoring(snapshot.keyed)
        for name, timers in snapshot.timers.items():
            loaded = self._restored_timers[name] = LoadedTimers(
                context.max_parallelism, context.key_group_range
            )
            yield from loaded.load(timers)

    def check_restored(self) -> None:
        """Warn of keyed state that nothing reads, beside one that begins empty.

        One alone is no sign: functions may ask for state later, and states come and go.
        """
        found = self.context.keyed_state.unmatched()
        if found.unread and found.empty:
            self.context.log.warning(
                "state was restored that no operator reads: if a descriptor was given "
                "another name, give it the old one; a name that is new begins empty",
                unread=list(found.unread),
                empty=list(found.empty),
            )

    def expect_accumulators(self) -> None:
        """Ask for state that holds accumulators, before a restore; nothing by default.

        Those of an older aggregate are converted while they are restored, in pieces; what
        is asked for later is converted all at once.
        """

    def _settle_after(self, delay_ms: int) -> None:
        """Look, some time from now, whether snapshots still have to be read."""
        self._is_settling = True
        time = self.context.processing_time
        due = time.current_processing_time() + delay_ms
        time.register_timer(due, partial(self._settle, delay_ms))

    def _settle(self, delay_ms: int, timestamp_ms: int) -> None:
        self._is_settling = False
        layered = self.layered()
        left = _SETTLE_STEPS
        for one in layered:
            left = one.settle(left)
        if not any(one.has_snapshot for one in layered):
            return
        # Steps were needed, so a snapshot has just ended: there may be more to do.
        if left < _SETTLE_STEPS:
            self._settle_after(_SETTLE_MS)
        else:
            # Still being read: it is looked at less and less often.
            self._settle_after(min(2 * delay_ms, _SETTLE_MAX_MS))

    def emit_collected(self) -> Pending:
        """Pass on what was collected while timers fired; nothing by default."""
        return None

    def on_watermark(self, timestamp_ms: int) -> Pending:
        """Fire what is due, then pass the watermark on.

        That may be in pieces, between which the operator may be snapshotted.
        """
        # Kept in snapshots: with timers left, the watermark has not gone on yet.
        self._is_firing = True
        return then(self.fire(timestamp_ms), self._all_fired, timestamp_ms)

    def fire(self, timestamp_ms: int) -> Pending:
        """Fire the timers that a watermark has reached, and pass on what they emitted."""
        pending: Pending = None
        for service in self._timer_services.values():
            pending = then(pending, service.advance_watermark, timestamp_ms)
        return then(pending, self.emit_collected)

    def resume(self) -> Pending:
        """Go on with a watermark that was firing when the snapshot was taken.

        If none was, what is due was set behind the watermark: it waits for the next.
        """
        return self.on_watermark(self.watermark_ms) if self._is_firing else None

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return whether the watermark is still firing."""
        own = super().snapshot_own()
        if not self._is_firing:
            return own
        return own.with_list(_FIRING, [True], RedistributionMode.MERGE)

    # Of any subtask: timers that are due may have come from it.
    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Take over whether a watermark was still firing, in any of the subtasks."""
        super().restore_own(own)
        self._is_firing = bool(own.elements(_FIRING))

    def _all_fired(self, timestamp_ms: int) -> Pending:
        self._is_firing = False
        return self.pass_watermark(timestamp_ms)

    def close(self) -> Pending:
        """Disarm the timers."""
        for service in self._timer_services.values():
            service.close()
        return None
