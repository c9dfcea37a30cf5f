"""State objects: the current key's content, by kind, and its expiry."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from aiomailbox.clock import Clock
from aiomailbox.errors import StateError, safe_repr
from aiomailbox.signatures import Misnamed
from aiomailbox.state.accumulators import named_function
from aiomailbox.state.cells import Cell, ContentCell, ContentTable
from aiomailbox.state.descriptors import (
    AggregateFunction,
    ReduceFunction,
    StateTtlConfig,
    StateVisibility,
    TtlUpdate,
)
from aiomailbox.state.lent import (
    LENT_DEFAULT,
    UPDATE_VALUE,
    Lent,
    lend,
    lend_default,
)
from aiomailbox.state.snapshot import IMMUTABLE_TYPES, copy_content

_SCALARS: Final = (int, float, str, bool, bytes)
_OF_VALUE: Final = {"set": "update(value)", "put": "update(value)", "get": "value()"}
_OF_LIST: Final = {
    "append": "add(value)",
    "extend": "add_all(values)",
    "value": "get()",
}
_OF_MAP: Final = {"set": "put(key, value)", "update": "put_all(entries)"}


def _instead(problem: str, remedy: str) -> Any:
    """Return a special method that says how the content is reached."""

    def refuse(handle: object, *_: object) -> NoReturn:
        """Say it.

        Raises:
            TypeError: Always.
        """
        message = f"{problem}: write {remedy}"
        raise TypeError(message)

    return refuse


_BY_BRACKETS: Final = _instead(
    "map state has no [...]", "state.get(key) and state.put(key, value)"
)


class OfValue:
    """Value state is no value."""

    __slots__ = ()
    if not TYPE_CHECKING:
        __bool__ = _instead("value state itself is no value", "state.value()")


class OfList:
    """List state is no list."""

    __slots__ = ()
    if not TYPE_CHECKING:
        __bool__ = _instead("list state itself is no list", "if state.get()")
        __iter__ = _instead("list state itself is no list", "for one in state.get()")
        __len__ = _instead("list state itself is no list", "len(state.get())")
        __contains__ = _instead("list state itself is no list", "value in state.get()")


class OfMap:
    """Map state is no dict."""

    __slots__ = ()
    if not TYPE_CHECKING:
        __bool__ = _instead("map state itself is no dict", "if not state.is_empty()")
        __iter__ = _instead("map state itself is no dict", "for key in state.keys()")
        __len__ = _instead("map state itself is no dict", "len(state.keys())")
        __contains__ = _instead("map state itself is no dict", "state.contains(key)")
        __getitem__ = _BY_BRACKETS
        __setitem__ = _BY_BRACKETS


class _Handle(Misnamed):
    """State of one content of the current key.

    Args:
        cell: Where it is.
    """

    __slots__ = ("_cell",)
    _called = "state"
    _meant: ClassVar[Mapping[str, str]] = {}

    def __init__(self, cell: ContentCell) -> None:
        self._cell = cell

    def clear(self) -> None:
        """Forget all there is."""
        self._cell.forget()


class ValueHandle(OfValue, _Handle):
    """One value of the current key.

    Args:
        cell: Where it is.
        default: The value of keys without one; each gets a copy of its own.
    """

    __slots__ = ("_default", "_shares_default")
    _meant = _OF_VALUE

    def __init__(self, cell: ContentCell, default: Any) -> None:
        super().__init__(cell)
        self._default = default
        self._shares_default = type(default) in IMMUTABLE_TYPES

    def value(self) -> Any:
        """Return the value, or a copy of the descriptor's default."""
        value = self._cell.read()
        if value is not None:
            return value
        # A copy of a mutable default: changed in place it would change for all keys.
        return self._default if self._shares_default else copy_content(self._default)

    def update(self, value: Any) -> None:
        """Replace the value; None clears it."""
        if value is None:
            self._cell.forget()
        else:
            self._cell.write(value)


class LentValueHandle(ValueHandle):
    """One value of the current key, whose default is an object that can change.

    Args:
        cell: Where it is.
        default: The value of keys without one; each gets a copy of its own.
        lent: The copy that was returned last.
    """

    __slots__ = ("_lent",)

    def __init__(self, cell: ContentCell, default: Any, lent: Lent) -> None:
        super().__init__(cell, default)
        self._lent = lent

    def value(self) -> Any:
        """Return the value, or a copy of the descriptor's default."""
        value = self._cell.read()
        if value is not None:
            return value
        lent = self._lent
        if (
            lent.value is not None
            and not lent.is_silent
            and lent.value != self._default
        ):
            lent.tell(LENT_DEFAULT, UPDATE_VALUE)
        lent.value = copied = copy_content(self._default)
        return copied

    def update(self, value: Any) -> None:
        """Replace the value; None clears it."""
        self._lent.value = None
        super().update(value)


def elements_of(values: Iterable[Any]) -> list[Any]:
    """Return the elements that are given to list state, as a new list.

    Raises:
        TypeError: If that is one value, which would be taken apart.
    """
    if isinstance(values, str | bytes | dict):
        message = (
            f"list state takes a list of elements, and {type(values).__name__} would be "
            "taken apart: write state.add(value) for one"
        )
        raise TypeError(message)
    return list(values)


def refuse_list(value: list[Any]) -> NoReturn:
    """Say that a list is added as one element, where elements are declared to be none.

    Raises:
        TypeError: Always.
    """
    message = (
        f"the list {safe_repr(value)[:80]} would be one element of list state: write "
        "state.update(values) to replace all elements, or state.add_all(values)"
    )
    raise TypeError(message)


class ListHandle(OfList, _Handle):
    """A list of the current key.

    Args:
        cell: Where it is.
        lent: The list that was returned last.
        element: The declared type of its elements.
    """

    __slots__ = ("_is_scalar", "lent")
    _meant = _OF_LIST

    def __init__(self, cell: ContentCell, lent: Lent, element: object = None) -> None:
        super().__init__(cell)
        self.lent = lent
        # By identity: a type may be no type, and compare as it likes.
        self._is_scalar = any(element is one for one in _SCALARS)

    def clear(self) -> None:
        """Forget all elements."""
        self.lent.value = None
        self._cell.forget()

    def get(self) -> list[Any]:
        """Return the elements as a new list; empty when there are none."""
        # A new list: changing it must not change the state.
        return lend(self.lent, list(self._cell.read() or ()))

    def add(self, value: Any) -> None:
        """Append an element."""
        self.lent.value = None
        elements = self._cell.read()
        if elements is None:
            # Who adds lists begins with one.
            if self._is_scalar and type(value) is list:
                refuse_list(value)
            self._cell.write([value])
        else:
            # Changed in place; a store that keeps bytes writes whatever may have been
            # changed.
            elements.append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements."""
        added = elements_of(values)
        self.lent.value = None
        elements = self._cell.read()
        if elements is not None:
            elements.extend(added)
        elif added:
            self._cell.write(added)

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements."""
        elements = elements_of(values)
        self.lent.value = None
        if elements:
            self._cell.write(elements)
        else:
            self._cell.forget()


class MapHandle(OfMap, _Handle):
    """A map of the current key.

    Args:
        cell: Where it is.
        lent: The default that was returned last; None if that is not looked at.
        key_type: The declared type of its keys.
    """

    __slots__ = ("_key_type", "_lent")
    _meant = _OF_MAP

    def __init__(
        self, cell: ContentCell, lent: Lent | None = None, key_type: Any = None
    ) -> None:
        super().__init__(cell)
        self._lent = lent
        # Numbers of several types may be equal; text is equal to no number.
        self._key_type: Any = key_type if key_type is str else None

    def clear(self) -> None:
        """Forget all there is."""
        if self._lent is not None:
            self._lent.noted = None
        self._cell.forget()

    def get(self, map_key: Any, default: Any = None) -> Any:
        """Return the value of ``map_key``, or ``default``."""
        entries = self._cell.read()
        found = default if entries is None else entries.get(map_key, default)
        if found is default:
            key_type = self._key_type
            if key_type is not None and not isinstance(map_key, key_type):
                if self._lent is not None:
                    self._lent.tell_of_key(map_key, key_type)
            elif default is not None:
                lend_default(self._lent, map_key, default)
        return found

    def put(self, map_key: Any, value: Any) -> None:
        """Set the value of ``map_key``."""
        if self._lent is not None:
            self._lent.noted = None
        entries = self._cell.read()
        if entries is None:
            self._cell.write({map_key: value})
        else:
            entries[map_key] = value

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set several values."""
        for map_key, value in entries.items():
            self.put(map_key, value)

    def remove(self, map_key: Any) -> None:
        """Forget ``map_key``; a no-op if it is not there."""
        entries = self._cell.read()
        if entries is not None:
            entries.pop(map_key, None)
            # An empty map is no content, so that the key can be forgotten.
            if not entries:
                self._cell.forget()

    def contains(self, map_key: Any) -> bool:
        """Say whether ``map_key`` is there."""
        return map_key in (self._cell.read() or ())

    def items(self) -> list[tuple[Any, Any]]:
        """Return all entries."""
        return list((self._cell.read() or {}).items())

    def keys(self) -> list[Any]:
        """Return all keys of the map."""
        return list(self._cell.read() or ())

    def values(self) -> list[Any]:
        """Return all values of the map."""
        return list((self._cell.read() or {}).values())

    def is_empty(self) -> bool:
        """Say whether the map has no entry."""
        return not self._cell.read()


def refuse_nothing(function: Callable[[Any, Any], Any]) -> NoReturn:
    """Say that a function that folds values into state returned None.

    Raises:
        StateError: Always: the state would be empty again.
    """
    raise StateError(
        f"{named_function(function)} returned None, with which the state would be empty "
        "again. Return what the values were folded into."
    )


class ReducingHandle(_Handle):
    """One value of the current key that others are folded into."""

    __slots__ = ("_reduce",)

    def __init__(self, cell: ContentCell, reduce: ReduceFunction) -> None:
        super().__init__(cell)
        self._reduce = reduce

    def get(self) -> Any:
        """Return the value, or None when nothing was added."""
        return self._cell.read()

    def add(self, value: Any) -> None:
        """Fold ``value`` in."""
        old = self._cell.read()
        if old is not None:
            value = self._reduce(old, value)
            if value is None:
                refuse_nothing(self._reduce)
        self._cell.write(value)


class AggregatingHandle(_Handle):
    """One accumulator of the current key."""

    __slots__ = ("_function",)

    def __init__(self, cell: ContentCell, function: AggregateFunction) -> None:
        super().__init__(cell)
        self._function = function

    def get(self) -> Any:
        """Return the accumulator's result, or None when nothing was added."""
        accumulator = self._cell.read()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add ``value`` to the accumulator."""
        accumulator = self._cell.read()
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        accumulator = self._function.add(value, accumulator)
        if accumulator is None:
            refuse_nothing(self._function.add)
        self._cell.write(accumulator)


# State that expires: every content carries the time at which it was last touched.
#
# Theory of operation: a value, a reduced value and an accumulator are kept as one pair
# ``(content, touched)``, a list as pairs, a map as a dict of pairs. Reading an expired
# content removes it. What is never read is found by a sweep: every write looks at a few
# other keys, so that a state as large as its live keys stays that large.


_SWEPT_PER_WRITE = 2


class Expiry:
    """When content of one state has expired, and whether it is still visible then.

    Args:
        config: The state's time to live.
        kind: The state's kind: what its contents look like.
        clock: Wall-clock time.
    """

    def __init__(self, config: StateTtlConfig, kind: str, clock: Clock) -> None:
        self._clock = clock
        self._ttl_ms = config.ttl_ms
        self._is_pair = kind not in {"list", "map"}
        self.refreshes_on_read: bool = config.update is TtlUpdate.ON_READ_AND_WRITE
        self.returns_expired: bool = (
            config.visibility is StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
        )
        # As long as it has lived, what has expired may still be read.
        self._grace_ms = config.ttl_ms if self.returns_expired else 0

    def now_ms(self) -> int:
        """Return wall-clock time, milliseconds."""
        return self._clock.now_ms()

    def is_expired(self, touched_ms: int, now_ms: int) -> bool:
        """Say whether content that was touched then is expired now."""
        # With `<=`, as in Flink: at exactly its time to live it has expired.
        return touched_ms + self._ttl_ms <= now_ms

    def size_of(self, content: Any) -> int:
        """Return how many elements or entries there are that expire one by one."""
        return 1 if self._is_pair else len(content)

    def live(self, content: Any, now_ms: int) -> Any:
        """Return what of a content has not expired, or None if all of it has."""
        if self._is_pair:
            return None if self.is_expired(content[1], now_ms) else content
        if isinstance(content, dict):
            kept: Any = {
                key: pair
                for key, pair in content.items()
                if not self.is_expired(pair[1], now_ms)
            }
        else:
            kept = [pair for pair in content if not self.is_expired(pair[1], now_ms)]
        return kept or None

    def readable(self, content: Any, now_ms: int) -> Any:
        """Return what of a content a sweep leaves, or None if that is nothing."""
        return self.live(content, now_ms - self._grace_ms)


class Sweep:
    """Walks over all keys of a state, a few at a time, and drops what has expired.

    Where expired content may still be read, it drops what has been expired for as long
    again as the time to live.

    Cost:
        Two keys, or elements of a list or map, per call on average, and one list of all
        keys per round.
    """

    def __init__(self, table: ContentTable, expiry: Expiry) -> None:
        self._table = table
        self._expiry = expiry
        self._keys: Iterator[Any] = iter(())
        # Elements that were looked at in advance: as many calls look at nothing.
        self._owed = 0

    def step(self) -> None:
        """Look at the next keys."""
        self._owed -= _SWEPT_PER_WRITE
        if self._owed >= 0:
            return
        now_ms = self._expiry.now_ms()
        while self._owed < 0:
            key = next(self._keys, None)
            if key is None:
                self._owed = 0
                self._keys = iter(self._table.keys_to_sweep())
                return
            self._owed += self._drop_expired(key, now_ms)

    def _drop_expired(self, key: Any, now_ms: int) -> int:
        """Drop what has expired of a key; return how much there was to look at."""
        table, expiry = self._table, self._expiry
        looked_at = 0
        for namespace in table.namespaces_of(key):
            content = table.read(key, namespace)
            if content is None:
                continue
            looked_at += expiry.size_of(content)
            kept = expiry.readable(content, now_ms)
            if kept is None:
                table.forget(key, namespace)
            # A key in use never expires as a whole, and what is in it may for years.
            elif expiry.size_of(kept) < expiry.size_of(content):
                table.write(key, namespace, kept)
        return looked_at or 1


class TtlCell:
    """A `Cell` whose content expires as a whole.

    Args:
        cell: Keeps ``(content, touched)``.
        expiry: When that has expired.
        sweep: Drops what is never read.
    """

    __slots__ = ("_cell", "_expiry", "_sweep")

    def __init__(self, cell: Cell, expiry: Expiry, sweep: Sweep) -> None:
        self._cell = cell
        self._expiry = expiry
        self._sweep = sweep

    def read(self) -> Any:
        """Return the content, or None if there is none or it may not be seen."""
        pair = self._cell.read()
        if pair is None:
            return None
        content, touched = pair
        expiry = self._expiry
        now_ms = expiry.now_ms()
        if expiry.is_expired(touched, now_ms):
            # Removed when it is read, also if it is still returned.
            self._cell.forget()
            return content if expiry.returns_expired else None
        if expiry.refreshes_on_read:
            self._cell.write((content, now_ms))
        return content

    def write(self, content: Any) -> None:
        """Set the content, touched now."""
        self._cell.write((content, self._expiry.now_ms()))
        self._sweep.step()

    def forget(self) -> None:
        """Remove the content."""
        self._cell.forget()


class _Elements(_Handle):
    """The part that list and map state with a time to live share."""

    __slots__ = ("_expiry", "_sweep")

    def __init__(self, cell: Cell, expiry: Expiry, sweep: Sweep) -> None:
        super().__init__(cell)
        self._expiry = expiry
        self._sweep = sweep

    def _keep(self, content: Any) -> None:
        if content:
            self._cell.write(content)
        else:
            self._cell.forget()

    def _put_in(self, added: Any, extend: Callable[[Any, Any], None]) -> None:
        """Put elements into what there is."""
        pairs = self._cell.read()
        if pairs is None:
            self._keep(added)
        else:
            extend(pairs, added)
        self._sweep.step()


class TtlListHandle(OfList, _Elements):
    """A list of the current key whose elements expire one by one."""

    __slots__ = ("lent",)
    _meant = _OF_LIST

    def __init__(self, cell: Cell, expiry: Expiry, sweep: Sweep, lent: Lent) -> None:
        super().__init__(cell, expiry, sweep)
        self.lent = lent

    def clear(self) -> None:
        """Forget all elements."""
        self.lent.value = None
        super().clear()

    def get(self) -> list[Any]:
        """Return the elements as a new list; empty when there are none."""
        pairs = self._cell.read()
        if not pairs:
            return lend(self.lent, [])
        expiry = self._expiry
        now_ms = expiry.now_ms()
        live = [pair for pair in pairs if not expiry.is_expired(pair[1], now_ms)]
        seen = pairs if expiry.returns_expired else live
        if expiry.refreshes_on_read:
            self._keep([(element, now_ms) for element, _ in live])
        elif len(live) < len(pairs):
            self._keep(live)
        return lend(self.lent, [element for element, _ in seen])

    def add(self, value: Any) -> None:
        """Append an element."""
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements."""
        now_ms = self._expiry.now_ms()
        added = [(value, now_ms) for value in elements_of(values)]
        self.lent.value = None
        self._put_in(added, list.extend)

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements."""
        now_ms = self._expiry.now_ms()
        self.lent.value = None
        self._keep([(value, now_ms) for value in elements_of(values)])
        self._sweep.step()


class TtlMapHandle(OfMap, _Elements):
    """A map of the current key whose entries expire one by one."""

    __slots__ = ("_lent",)
    _meant = _OF_MAP

    def __init__(self, cell: Cell, expiry: Expiry, sweep: Sweep, lent: Lent) -> None:
        super().__init__(cell, expiry, sweep)
        self._lent = lent

    def clear(self) -> None:
        """Forget all there is."""
        self._lent.noted = None
        super().clear()

    def get(self, map_key: Any, default: Any = None) -> Any:
        """Return the value of ``map_key``, or ``default``."""
        found = self._look([map_key])
        if found:
            return found[0][1]
        lend_default(self._lent, map_key, default)
        return default

    def put(self, map_key: Any, value: Any) -> None:
        """Set the value of ``map_key``."""
        self.put_all({map_key: value})

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set several values."""
        now_ms = self._expiry.now_ms()
        added = {key: (value, now_ms) for key, value in entries.items()}
        self._lent.noted = None
        self._put_in(added, dict.update)

    def remove(self, map_key: Any) -> None:
        """Forget ``map_key``; a no-op if it is not there."""
        pairs = self._cell.read()
        if pairs is not None:
            pairs.pop(map_key, None)
            self._keep(pairs)

    def contains(self, map_key: Any) -> bool:
        """Say whether ``map_key`` is there."""
        return bool(self._look([map_key]))

    def items(self) -> list[tuple[Any, Any]]:
        """Return all entries."""
        return self._look(list(self._cell.read() or ()))

    def keys(self) -> list[Any]:
        """Return all keys of the map."""
        return [key for key, _ in self.items()]

    def values(self) -> list[Any]:
        """Return all values of the map."""
        return [value for _, value in self.items()]

    def is_empty(self) -> bool:
        """Say whether the map has no entry, expired or not; that is no access to any.

        Concept:
            Flink, ``TtlMapState.isEmpty``, which asks the map that it wraps.
        """
        return not self._cell.read()

    def _look(self, map_keys: Iterable[Any]) -> list[tuple[Any, Any]]:
        """Read entries: drop those that have expired, refresh the others."""
        pairs = self._cell.read()
        if not pairs:
            return []
        expiry = self._expiry
        now_ms = expiry.now_ms()
        found = []
        for key in map_keys:
            if key not in pairs:
                continue
            value, touched = pairs[key]
            if expiry.is_expired(touched, now_ms):
                del pairs[key]
                if not expiry.returns_expired:
                    continue
            elif expiry.refreshes_on_read:
                pairs[key] = (value, now_ms)
            found.append((key, value))
        self._keep(pairs)
        return found
