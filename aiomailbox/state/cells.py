"""Where the content of a state is: its table, and the key that is current."""

from __future__ import annotations

from collections.abc import (
    Awaitable,
    Iterable,
    Sequence,
)
from contextvars import ContextVar
from typing import Any, Final, Protocol

from aiomailbox.errors import StateError
from aiomailbox.state.snapshot import Entries

NO_KEY: Any = object()
# The call that is awaited for a key; the tasks that it starts inherit it.
_CALL: Final[ContextVar[object]] = ContextVar("aiomailbox call", default=None)


class CurrentKey:
    """The key of a store that state objects refer to.

    Theory of operation: while a function is awaited for a key, other tasks run. Those
    that it has started may use its key; those that its call for another record has
    started may not. So `key` is `NO_KEY` meanwhile, and `required`, which is asked then,
    looks at who asks. A function that returns at once pays nothing for this.

    Attributes:
        key: The key, or `NO_KEY`.
        place: The operator, as errors name it; "" if it is not known.
    """

    __slots__ = ("_awaited", "_call", "key", "place")

    def __init__(self) -> None:
        self.key: Any = NO_KEY
        self.place: str = ""
        self._awaited: Any = NO_KEY
        self._call: object = None

    @property
    def is_none(self) -> bool:
        """Whether there is no key, not even one of a call that is awaited."""
        return self.key is NO_KEY and self._awaited is NO_KEY

    def enter_again(self, key: Any) -> None:
        """Let a key be current again, within the call for it."""
        # One that is awaited has its key, whatever comes in between.
        self.key = NO_KEY if self._call is not None or key is None else key

    async def own(self, pending: Awaitable[None]) -> None:
        """Await a call: the key is its own, and that of the tasks that it starts."""
        before, outer = (self.key, self._awaited, self._call), _CALL.get()
        call = object()
        self.key, self._awaited, self._call = NO_KEY, self.key, call
        _CALL.set(call)
        try:
            await pending
        finally:
            self.key, self._awaited, self._call = before
            _CALL.set(outer)

    def required(self, use: str = "keyed state was used") -> Any:
        """Return the key.

        Args:
            use: What it is for, as the error says it.

        Raises:
            StateError: If there is none, or it is not that of the task that asks.
        """
        if self.key is not NO_KEY:
            return self.key
        if self._awaited is not NO_KEY:
            call = _CALL.get()
            # A callback from elsewhere, and a thread, belong to no call: they are trusted.
            if call is self._call or call is None:
                return self._awaited
            problem = (
                "by a task that the call for another record has started: the current key "
                "is not its own."
            )
        else:
            problem = (
                "while no key is current. That is possible while a record or a timer of a "
                "keyed stream is processed: not in open() or close(), and not in a task or "
                "callback that goes on when the function has returned."
            )
        place = f"{self.place}: " if self.place else ""
        raise StateError(
            f"{place}{use} {problem} Await in the function what it starts, or use "
            "process_async."
        )


class ContentTable(Protocol):
    """Where the contents of one state are."""

    def read(self, key: Any, namespace: Any) -> Any:
        """Return the content of ``key`` in ``namespace``, or None."""

    def write(self, key: Any, namespace: Any, content: Any) -> None:
        """Set the content of ``key`` in ``namespace``."""

    def forget(self, key: Any, namespace: Any) -> None:
        """Forget the content of ``key`` in ``namespace``."""

    def all_keys(self) -> Iterable[Any]:
        """Return the keys, perhaps some of them twice, but then next to each other."""

    def load(self, entries: Entries) -> None:
        """Set contents to those of entries."""

    def clear(self) -> None:
        """Forget all contents."""

    def keys_to_sweep(self) -> Iterable[Any]:
        """Return most of the keys; the state may be changed while they are walked."""

    def namespaces_of(self, key: Any) -> Sequence[Any]:
        """Return the namespaces of ``key``; of state without them, one."""


class ContentCell(Protocol):
    """The place of one content, whichever key is current."""

    def read(self) -> Any:
        """Return the content, or None."""

    def write(self, content: Any) -> None:
        """Set the content."""

    def forget(self) -> None:
        """Remove the content."""


class Cell:
    """The place of one state's content: current key and a fixed namespace."""

    __slots__ = ("_current", "_forget", "_namespace", "_read", "_write")

    def __init__(
        self,
        current: CurrentKey,
        table: ContentTable,
        namespace: Any,
    ) -> None:
        self._current = current
        self._namespace = namespace
        self._read = table.read
        self._write = table.write
        self._forget = table.forget

    def read(self) -> Any:
        """Return the content, or None."""
        key = self._current.key
        # Asked here and not by a call: each record comes this way.
        if key is NO_KEY:
            key = self._current.required()
        return self._read(key, self._namespace)

    def write(self, content: Any) -> None:
        """Set the content."""
        key = self._current.key
        if key is NO_KEY:
            key = self._current.required()
        self._write(key, self._namespace, content)

    def forget(self) -> None:
        """Remove the content."""
        self._forget(self._current.required(), self._namespace)
