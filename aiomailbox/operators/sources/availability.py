"""The availability of a source, from before it has a reader to after its end."""

from __future__ import annotations

from collections.abc import Callable

from aiomailbox.availability import Availability, when_all_available


class SourceAvailability(Availability):
    """Follows a reader's availability, and a gate's, until it is set permanently.

    The gate is what else the source may have to wait for.

    Example:
        >>> source, reader = SourceAvailability(), Availability()
        >>> source.on_available(lambda: print("look"))
        >>> source.follow(reader)
        >>> reader.set_available()
        look
    """

    __slots__ = ("_gate", "_is_armed", "_is_set", "_reader")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self._reader: Availability | None = None
        self._gate = Availability(available=True)
        self._is_set = False
        self._is_armed = False

    @property
    def available(self) -> bool:  # type: ignore[override]
        """Whether a poll may find something."""
        if self._reader is None:
            return self._is_set
        return self._is_set or (self._reader.available and self._gate.available)

    def follow(self, reader: Availability, gate: Availability | None = None) -> None:
        """Be available when ``reader`` is, and ``gate`` if there is one."""
        self._reader = reader
        self._gate = gate or self._gate
        if self._callbacks:
            self._arm()

    def set_available(self) -> None:
        """Be available from now on, whatever the reader says."""
        self._is_set = True
        self._run_callbacks()

    def on_available(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once: now if available, else when it becomes so."""
        if self.available:
            callback()
            return
        self._callbacks.append(callback)
        self._arm()

    def _arm(self) -> None:
        # One callback at a time, or a quiet reader would collect them.
        if self._reader is not None and not self._is_armed:
            self._is_armed = True
            when_all_available([self._gate, self._reader], self._fired)

    def _fired(self) -> None:
        self._is_armed = False
        if self.available:
            self._run_callbacks()
        elif self._callbacks:
            self._arm()

    def _run_callbacks(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
