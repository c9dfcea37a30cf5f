"""Which call a record means: its id, and what the function gets of it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol
from zlib import crc32

import msgspec

from aiomailbox.errors import IllegalStateError
from aiomailbox.journal.entries import record_key
from aiomailbox.state.serializers import ObjectSerializer

__all__ = ["AsyncCall", "Identity", "RecordIds", "announce", "current_call"]

_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_FINGERPRINT: Final = struct.Struct("<II")


class HasIdentity(Protocol):
    """A row of a call."""

    identity: Identity | None


class AsyncCall:
    """What a call of an async function may know of itself; see `current_call`.

    Attributes:
        attempt: From 1; resumes from where it was when the job was started again.
    """

    __slots__ = ("_rows", "_scope", "attempt")

    def __init__(self, scope: str, rows: Sequence[HasIdentity], attempt: int) -> None:
        self._scope = scope
        self._rows = rows
        self.attempt: int = attempt

    @property
    def ids(self) -> tuple[Any, ...]:
        """The ids of the call's records; one, unless there are batches."""
        return tuple(row.identity.id for row in self._rows if row.identity is not None)

    @property
    def idempotency_key(self) -> str:
        """Names the call to a server: 32 hexadecimal digits.

        It is the same in every attempt, after every restart of the job and at every
        parallelism; that of another job, operator or id is another one.

        Raises:
            IllegalStateError: If the call is for a batch, whose records may be together
                with others next time.
        """
        if len(self._rows) != 1:
            raise IllegalStateError(
                f"the call is for {len(self._rows)} records: use idempotency_keys, which "
                "has a key for each"
            )
        return self.idempotency_keys[0]

    @property
    def idempotency_keys(self) -> tuple[str, ...]:
        """The key of each record of the call, in their order."""
        return tuple(_idempotency_key(self._scope, one) for one in self.ids)


# The parts of an `AsyncCall`: few functions ask for it.
_current: ContextVar[tuple[str, Sequence[HasIdentity], int]] = ContextVar("call")


def current_call() -> AsyncCall:
    """Return what an async function that runs may know of its call.

    It is there wherever the function's call leads: in tasks that it starts, too.

    Raises:
        IllegalStateError: If no function of a ``map_async(id=...)`` is being called.

    Example:
        >>> import aiomailbox as am
        >>> async def pay(order):
        ...     return am.current_call().idempotency_key
        >>> env = am.StreamExecutionEnvironment()
        >>> orders = env.from_collection(["a", "b"])
        >>> keys = am.run(orders.map_async(pay, id=lambda order: order).collect())
        >>> len(set(keys)), len(keys[0])
        (2, 32)
    """
    try:
        return AsyncCall(*_current.get())
    except LookupError:
        raise IllegalStateError(
            "there is no call: current_call() is for functions of map_async, and of "
            "lookup_join, that has id="
        ) from None


def announce(scope: str, rows: Sequence[HasIdentity], attempt: int) -> None:
    """Say which call comes next in this task; see `AsyncCall`."""
    _current.set((scope, rows, attempt))


class Identity:
    """One record's id.

    Attributes:
        id: As the user's field or function gave it.
        key: Names the record in a journal.
        fingerprint: Of the record: 8 bytes.
        segment: Where the journal has what its call came to, or None.
    """

    __slots__ = ("fingerprint", "id", "key", "segment")

    def __init__(self, identity: Any, key: bytes, fingerprint: bytes) -> None:
        self.id: Any = identity
        self.key: bytes = key
        self.fingerprint: bytes = fingerprint
        self.segment: int | None = None


class RecordIds:
    """Reads the ids of records.

    Args:
        read: Reads one.
        scope: What the ids belong to: they are another job's, or operator's, there.
        with_fingerprints: Whether records of one id are compared.
    """

    __slots__ = ("_read", "_with_fingerprints", "scope")

    def __init__(
        self, read: Callable[[Any], Any], scope: str, *, with_fingerprints: bool
    ) -> None:
        self._read = read
        self._with_fingerprints = with_fingerprints
        self.scope: str = scope

    def identify(self, value: Any) -> Identity:
        """Return a record's identity.

        Raises:
            WrongTypeError: If its id is none.
            StateError: If the record has no form as bytes, and fingerprints are taken.

        Raises whatever the user's function raises.
        """
        identity = self._read(value)
        key = record_key(identity)
        return Identity(
            identity, key, fingerprint_of(value) if self._with_fingerprints else b""
        )


def fingerprint_of(value: Any) -> bytes:
    """Return 8 bytes that equal values have in common, in any process.

    They tell of a mistake, not of malice: a checksum is enough.

    Raises:
        StateError: If it holds something of an unknown type.

    Example:
        >>> fingerprint_of({"a": 1, "b": {2, 3}}) == fingerprint_of(
        ...     {"b": {3, 2}, "a": 1}
        ... )
        True
    """
    try:
        encoded = _encode(value)
    except (TypeError, OverflowError, UnicodeEncodeError):
        encoded = _encode(_canonical(value))
    return _FINGERPRINT.pack(len(encoded), crc32(encoded))


def _canonical(value: Any) -> Any:
    """Return a value that differs where this one does, and that can be encoded."""
    kind = type(value)
    if kind is dict:
        pairs = [(_encode(_canonical(key)), key) for key in value]
        return [[one, _canonical(value[key])] for one, key in sorted(pairs, key=_first)]
    if kind is set or kind is frozenset:
        return sorted(_encode(_canonical(item)) for item in value)
    if kind is list or kind is tuple:
        return [_canonical(item) for item in value]
    try:
        _encode(value)
    except (TypeError, OverflowError, UnicodeEncodeError):
        return ObjectSerializer().encode(value)
    return value


def _first(pair: tuple[bytes, Any]) -> bytes:
    return pair[0]


def _idempotency_key(scope: str, identity: Any) -> str:
    digest = hashlib.blake2b(scope.encode(), digest_size=16)
    digest.update(record_key(identity))
    return digest.hexdigest()
