"""Connections that are not authenticated yet: few, briefly, with small frames."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiomailbox.exchange.remote.producer import ProducerConnection

__all__ = ["Strangers"]

_LOG_PAUSE_S: Final = 1.0
# A reason may quote what a stranger has said.
_REASONS_MAX: Final = 8


class Strangers:
    """The connections of a server that are not open yet, in the order of their coming.

    Args:
        count_max: How many there may be.
        log: A structlog logger.

    Concept:
        Flink has no such bound; its network is one's own.
    """

    def __init__(self, count_max: int, log: Any) -> None:
        self._count_max = count_max
        self._log = log
        self._known: dict[ProducerConnection, asyncio.Task[Any]] = {}
        self._unsaid: dict[str, int] = {}
        self._pause: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._known)

    def add(self, connection: ProducerConnection, opening: asyncio.Task[Any]) -> None:
        """Take a newcomer; one that came before has to go if there are too many.

        Args:
            connection: The newcomer.
            opening: Gives it a transport; with TLS that takes as long as the peer likes.
        """
        while len(self._known) >= self._count_max:
            self.turn_away_one()
        self._known[connection] = opening

    def remove(self, connection: ProducerConnection) -> None:
        """Forget one: it is open, or gone."""
        self._known.pop(connection, None)

    def turn_away_one(self) -> bool:
        """Close the oldest, if there is any; those of the job that lack a proof last."""
        if not self._known:
            return False
        oldest = next(iter(self._known))
        # A connection that named the job is probably a worker's that was held up.
        chosen = next((each for each in self._known if not each.is_introduced), oldest)
        self._turn_away(chosen, "others want to connect, and it has not proved itself")
        return True

    def turn_all_away(self, reason: str) -> list[ProducerConnection]:
        """Close all, and return them."""
        known = list(self._known)
        for connection in known:
            self._turn_away(connection, reason)
        return known

    def on_ended(self, peer: str, reason: str | None) -> None:
        """Log that one came to nothing; at most one line a second, with the sums."""
        text = str(reason)
        if self._pause is not None:
            if text not in self._unsaid and len(self._unsaid) >= _REASONS_MAX:
                text = "other reasons"
            self._unsaid[text] = self._unsaid.get(text, 0) + 1
            return
        self._log.warning("connection closed", peer=peer, reason=text, was_open=False)
        self._say_later()

    def close(self) -> None:
        """Say what is still to be said."""
        if self._pause is not None:
            self._pause.cancel()
            self._say()

    def _say_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._pause = loop.call_later(_LOG_PAUSE_S, self._say_and_go_on)

    def _say_and_go_on(self) -> None:
        if self._say():
            self._say_later()

    def _say(self) -> bool:
        self._pause = None
        reasons, self._unsaid = self._unsaid, {}
        if reasons:
            count = sum(reasons.values())
            self._log.warning(
                "connections closed", count=count, reasons=reasons, was_open=False
            )
        return bool(reasons)

    def _turn_away(self, connection: ProducerConnection, reason: str) -> None:
        opening = self._known.pop(connection)
        connection.end(reason)
        connection.abort()
        opening.cancel()
