"""The life of a connection: a table of states and the moves between them."""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["ConnectionLifecycle", "ConnectionState"]


class ConnectionState(enum.Enum):
    """How far a connection is.

    Attributes:
        CONNECTING: There is no transport yet.
        GREETING: Both sides identify and authenticate themselves.
        OPEN: Everything else may be said.
        CLOSING: Nothing is read or said any more; what was written may still go out.
        CLOSED: The transport is gone, and with it all that was pinned.
    """

    CONNECTING = "connecting"
    GREETING = "greeting"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


_State = ConnectionState
_NEXT: Final = {
    _State.CONNECTING: frozenset({_State.GREETING, _State.CLOSED}),
    _State.GREETING: frozenset(
        {_State.OPEN, _State.CONNECTING, _State.CLOSING, _State.CLOSED}
    ),
    _State.OPEN: frozenset({_State.CLOSING, _State.CLOSED}),
    _State.CLOSING: frozenset({_State.CLOSED}),
    _State.CLOSED: frozenset[_State](),
}
_ENDING: Final = frozenset({_State.CLOSING, _State.CLOSED})


class ConnectionLifecycle:
    """The state of one connection; it only moves along the table.

    The connecting peer may begin again if it lost its transport while greeting: nothing was
    said yet, and the peer may have needed the place for another one.

    Example:
        >>> life = ConnectionLifecycle()
        >>> life.advance(ConnectionState.OPEN), life.advance(ConnectionState.GREETING)
        (False, True)
        >>> life.is_ending
        False
    """

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: ConnectionState = ConnectionState.CONNECTING

    def __repr__(self) -> str:
        return f"<{self.state.value}>"

    def advance(self, target: ConnectionState) -> bool:
        """Move to ``target`` if the table allows it; say whether it did."""
        if target not in _NEXT[self.state]:
            return False
        self.state = target
        return True

    @property
    def is_ending(self) -> bool:
        """Whether nothing more is read or said."""
        return self.state in _ENDING
