"""Tells of changes to objects that a state has returned: these changes are lost."""

from __future__ import annotations

from typing import Any, Final

from aiomailbox.errors import safe_repr
from aiomailbox.logs import library_log
from aiomailbox.state.cells import CurrentKey


class Lent:
    """The object that a state has returned last: a copy, of which changes are lost.

    All objects of a state share it, for users may ask for a new one with each record.

    Args:
        state: The state's name.
        current: Names the operator.

    Attributes:
        value: The object; None if there was none, or something was written after it.
        length: Its length when it was returned, of list state; else None.
        is_silent: Whether there is no more to say.
        noted: Of map state the default that was returned last, for which key and key of
            the map, and how long it was; None if something was written after it.
    """

    __slots__ = (
        "_current",
        "_defaults_left",
        "_has_told_of_key",
        "_state",
        "is_silent",
        "length",
        "noted",
        "value",
    )

    def __init__(self, state: str, current: CurrentKey) -> None:
        self._state = state
        self._current = current
        self.value: Any = None
        self.length: int | None = None
        self.is_silent: bool = False
        self.noted: tuple[Any, Any, Any, int] | None = None
        self._defaults_left = _DEFAULTS_MAX
        self._has_told_of_key = False

    def lend_default(self, map_key: Any, default: Any) -> None:
        """Note the default that map state returns, of the first few."""
        key = self._current.key
        # Of one record several may be changed before the first of them is put.
        if (before := self.noted) is not None and (
            before[0] is not key or before[1] == map_key
        ):
            self._look_at_default()
        self._defaults_left -= 1
        self.noted = None
        if self._defaults_left >= 0:
            self.noted = key, map_key, default, len(default)

    def tell_of_key(self, map_key: Any, key_type: type) -> None:
        """Warn, once, of a key that no entry of a map state can have."""
        if self._has_told_of_key:
            return
        self._has_told_of_key = True
        library_log().warning(
            "a map state is asked for a key of another type than was declared, which it "
            "does not have",
            state=self._state,
            operator=self._current.place or None,
            key=safe_repr(map_key)[:80],
            declared=key_type.__name__,
            remedy="use keys of one type, such as str(key) in get() and in put()",
        )

    def _look_at_default(self) -> None:
        noted, self.noted = self.noted, None
        # By its length, as a list: who changes a default adds something to it.
        if noted is not None and len(noted[2]) != noted[3]:
            self.tell(LENT_DEFAULT, PUT_VALUE)

    def look(self) -> None:
        """Let go of the list of list state, and warn if it was changed in vain.

        By its length: that costs nearly nothing, and sorting such a list is no mistake.
        """
        if self.noted is not None:
            self._look_at_default()
        if self.length is None or self.value is None:
            return
        if len(self.value) != self.length:
            self.tell(LENT_LIST, ADD_VALUE)
        self.value = None

    def tell(self, what: str, remedy: str) -> None:
        """Warn that a change is lost; once is enough."""
        if self.is_silent:
            return
        self.is_silent = True
        library_log().warning(
            f"{what} was changed and not written: the change is lost",
            state=self._state,
            operator=self._current.place or None,
            remedy=remedy,
        )


# What is said of changes that are lost.
LENT_DEFAULT: Final = "the default of a state"
LENT_VALUE: Final = "a value that a state has returned"
LENT_LIST: Final = "the list that a state has returned"
ADD_VALUE: Final = (
    "write state.add(value), or state.update(values) with the changed list; "
    "list(state.get()) is a list of your own"
)
UPDATE_VALUE: Final = "write state.update(value) after changing the value"
PUT_VALUE: Final = "write state.put(key, value) after changing the value"
# Of map state so many defaults are looked at: who forgets to put one does so at once.
_DEFAULTS_MAX: Final = 64
_CHANGEABLE: Final = frozenset({dict, list, set})


def lend(lent: Lent, elements: list[Any]) -> list[Any]:
    """Return a new list, and warn if the one before it was changed in vain."""
    if lent.value is not None:
        lent.look()
    lent.value, lent.length = elements, len(elements)
    return elements


def lend_default(lent: Lent | None, map_key: Any, default: Any) -> None:
    """Note a default that map state returns, if it is watched and can change."""
    if lent is not None and not lent.is_silent and type(default) in _CHANGEABLE:
        lent.lend_default(map_key, default)
