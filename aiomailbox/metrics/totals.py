"""What each key has used, in a bounded number of places."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import msgspec

__all__ = ["KeyTotal", "KeyTotals"]

_KEYS_MAX: Final = 1_000
_SHOWN_MAX: Final = 10
_TEXT_MAX: Final = 60


class KeyTotal(msgspec.Struct, frozen=True):
    """What the calls of one key have used.

    Attributes:
        key: The key, as text; ``"(others)"`` for those that there was no place for.
        units: The units of the limit.
    """

    key: str
    units: float


class KeyTotals:
    """Adds up units by key; what a thousand keys have no place for is one sum.

    Example:
        >>> totals = KeyTotals()
        >>> totals.add("ann", 2.0)
        >>> totals.add("bob", 5.0)
        >>> totals.add("ann", 1.0)
        >>> [(total.key, total.units) for total in totals.top()]
        [("'bob'", 5.0), ("'ann'", 3.0)]
    """

    def __init__(self) -> None:
        self._units: dict[Hashable, float] = {}
        self._others = 0.0

    def add(self, key: Hashable, units: float) -> None:
        """Add what a call has used."""
        if key in self._units or len(self._units) < _KEYS_MAX:
            self._units[key] = self._units.get(key, 0.0) + units
        else:
            self._others += units

    def top(self) -> list[KeyTotal]:
        """Return the keys that have used most, then the others together."""
        found = sorted(self._units.items(), key=lambda item: -item[1])
        totals = [KeyTotal(_text(key), units) for key, units in found[:_SHOWN_MAX]]
        others = self._others + sum(units for _, units in found[_SHOWN_MAX:])
        return [*totals, KeyTotal("(others)", others)] if others else totals


def _text(key: Hashable) -> str:
    text = repr(key)
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."
