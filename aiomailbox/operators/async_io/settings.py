"""How calls are made: the arguments of an async operator, checked."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from operator import itemgetter
from typing import Any, Final, Literal
from zlib import crc32

import msgspec

from aiomailbox.durations import duration_s
from aiomailbox.errors import IllegalStateError, InvalidArgumentError, WrongTypeError
from aiomailbox.journal.entries import record_key
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.user_code import check_sync_function
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.cache import Cache
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.retry import Retry
from aiomailbox.signatures import check_count, check_number
from aiomailbox.state.serializers import ObjectSerializer

Order = bool | Literal["key"]


Weight = float | Callable[[Any], float] | None


_CAPACITY_PER_CALL: Final = 4


_KEY_CAPACITY_PER_CALL: Final = 16


_KEY_CAPACITY_MIN: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """The settings of calls, apart from how many there are and in which order.

    Attributes:
        read_id: Reads a record's id, if there is one.

    Raises:
        InvalidArgumentError: If a duration or a weight is out of its range, a weight is
            given without a limit, or a journal without ids.
        WrongTypeError: If an argument has the wrong type.
    """

    timeout: timedelta | float | None = None
    deadline: timedelta | float | None = None
    retry: Retry | None = None
    limit: RateLimit | None = None
    weight: Weight = None
    batch: Batch | None = None
    cache: Cache | None = None
    journal: bool = False
    id: str | Callable[[Any], Any] | None = None
    read_id: Callable[[Any], Any] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        _check_wait(self.timeout, "timeout")
        _check_wait(self.deadline, "deadline")
        if self.timeout_s and self.deadline_s and self.deadline_s < self.timeout_s:
            raise InvalidArgumentError(
                "deadline",
                f"{self.deadline_s:g} s for all attempts is less than the timeout of "
                f"{self.timeout_s:g} s for one, which no attempt reaches",
                "Give a deadline= that is longer than timeout=, or leave one out.",
            )
        _check_type(self.retry, Retry, "retry", "am.Retry(attempts=4)")
        _check_type(self.limit, RateLimit, "limit", "am.RateLimit(100, per=1.0)")
        _check_type(self.batch, Batch, "batch", "am.Batch(size=50, within=0.02)")
        _check_type(self.cache, Cache, "cache", 'am.Cache("city", size=1_000)')
        if self.cache is not None and self.cache.key is None:
            raise InvalidArgumentError(
                "cache",
                "it has no key, which says which calls are equal",
                'Write am.Cache("city") or am.Cache(lambda record: record[0]).',
            )
        self._check_weight()
        self._check_journal()
        if self.id is not None:
            object.__setattr__(self, "read_id", field_or_function(self.id, "id"))

    @property
    def timeout_s(self) -> float | None:
        """How long one attempt may take, seconds."""
        return None if self.timeout is None else duration_s(self.timeout, "timeout")

    @property
    def deadline_s(self) -> float | None:
        """How long all attempts may take with their waits, seconds."""
        return None if self.deadline is None else duration_s(self.deadline, "deadline")

    @property
    def batch_size(self) -> int:
        """Rows of one call at most."""
        return 1 if self.batch is None else self.batch.size

    def _check_journal(self) -> None:
        if not isinstance(self.journal, bool):
            raise WrongTypeError(
                "journal", f"{self.journal!r} is not a bool", "Write journal=True."
            )
        if self.journal and self.id is None:
            raise InvalidArgumentError(
                "journal",
                "it finds finished calls by the ids of records, and there is no id=",
                "Name the field that identifies the call of a record, such as "
                'id="order_id", or pass a function. A record\'s position in its '
                "source is not known here, and cannot be its id.",
            )

    def _check_weight(self) -> None:
        if self.weight is None:
            return
        if self.limit is None:
            raise InvalidArgumentError(
                "weight",
                "it has no effect without a limit",
                "Give limit= too.",
            )
        if callable(self.weight):
            check_sync_function(self.weight, "weight", arity=1)
            return
        if isinstance(self.weight, str):
            raise WrongTypeError(
                "weight",
                f"{self.weight!r} is not a number",
                f"For a field, write lambda record: record[{self.weight!r}].",
            )
        check_number(self.weight, "weight", minimum=0)
        self.limit.check_weight(self.weight * self.batch_size)


def check_bounds(
    concurrency: Any, capacity: int | None, key_capacity: int | None, batch_size: int
) -> tuple[int, int, int]:
    """Return the bounds of a job: calls, rows held, rows waiting behind their key.

    Raises:
        InvalidArgumentError: If one is below 1, or the capacity below the concurrency.
        WrongTypeError: If one is not an int.
    """
    check_count(concurrency, "concurrency")
    if capacity is None:
        capacity = _CAPACITY_PER_CALL * concurrency * batch_size
    elif check_count(capacity, "capacity") < concurrency:
        raise InvalidArgumentError(
            "capacity",
            f"{capacity} rows are too few for {concurrency} calls at once",
            "Use at least concurrency, better a few times as many.",
        )
    if key_capacity is None:
        key_capacity = max(_KEY_CAPACITY_PER_CALL * concurrency, _KEY_CAPACITY_MIN)
    check_count(key_capacity, "key_capacity")
    return concurrency, capacity, key_capacity


def check_key(
    ordered: object, key: object, *, has_limit: bool
) -> Callable[[Any], Any] | None:
    """Return the function that reads the key by which order is kept, or units added up.

    Args:
        ordered: True, False, or ``"key"``, which needs a key.
        key: A field's name or a function.
        has_limit: Whether there are units to add up.

    Raises:
        InvalidArgumentError: If ``ordered`` is not known, or does not fit ``key``.
        WrongTypeError: If ``key`` is neither a field name nor a function.
    """
    if ordered is True or ordered is False:
        if key is None:
            return None
        if not has_limit:
            raise InvalidArgumentError(
                "key",
                f"it has no effect with ordered={ordered} and without a limit",
                'Write ordered="key", or leave it out.',
            )
        return field_or_function(key, "key")
    if ordered != "key":
        raise InvalidArgumentError(
            "ordered", f"{ordered!r} is not known", 'Use True, False or "key".'
        )
    if key is None:
        raise InvalidArgumentError(
            "key",
            'ordered="key" needs one',
            'Give key="name" or a function, or use it after key_by.',
        )
    return field_or_function(key, "key")


def share(total: int, parallelism: int, subtask_index: int) -> int:
    """Return a subtask's part of a bound of the job, at least 1.

    The parts add up to ``total``, unless there are more subtasks than that.

    Example:
        >>> [share(10, 4, index) for index in range(4)]
        [3, 3, 2, 2]
    """
    part = total // parallelism + (subtask_index < total % parallelism)
    return max(part, 1)


def _check_wait(value: timedelta | float | None, parameter: str) -> None:
    if value is not None and duration_s(value, parameter) == 0:
        raise InvalidArgumentError(
            parameter, "0 leaves no time", "Use a positive duration, or None."
        )


def _check_type(value: object, expected: type, parameter: str, example: str) -> None:
    if value is not None and not isinstance(value, expected):
        raise WrongTypeError(
            parameter,
            f"{value!r} is not a {expected.__name__}",
            f"Write {parameter}={example}.",
        )


# Which call a record means: its id, and what the function gets of it.


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode


_FINGERPRINT: Final = struct.Struct("<II")


class AsyncCall:
    """Facts about a call of an async function; see `current_call`.

    Attributes:
        attempt: From 1; resumes from where it was when the job was started again.
    """

    __slots__ = ("_rows", "_scope", "attempt")

    def __init__(self, scope: str, rows: Sequence[Any], attempt: int) -> None:
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
_current: ContextVar[tuple[str, Sequence[Any], int]] = ContextVar("call")


def current_call() -> AsyncCall:
    """Return what an async function that runs may know of its call.

    It works everywhere in the function's call, also in tasks that it starts.

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


def announce(scope: str, rows: Sequence[Any], attempt: int) -> None:
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

    def __init__(self, identity: Any, key: bytes, fingerprint: bytes) -> None:
        self.id: Any = identity
        self.key: bytes = key
        self.fingerprint: bytes = fingerprint
        self.segment: int | None = None


class RecordIds:
    """Reads the ids of records.

    Args:
        read: Reads one.
        with_fingerprints: Whether records of one id are compared.
    """

    def __init__(self, read: Callable[[Any], Any], *, with_fingerprints: bool) -> None:
        self._read = read
        self._with_fingerprints = with_fingerprints

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
        pairs.sort(key=itemgetter(0))
        return [[one, _canonical(value[key])] for one, key in pairs]
    if kind is set or kind is frozenset:
        return sorted(_encode(_canonical(item)) for item in value)
    if kind is list or kind is tuple:
        return [_canonical(item) for item in value]
    try:
        _encode(value)
    except (TypeError, OverflowError, UnicodeEncodeError):
        return ObjectSerializer().encode(value)
    return value


def _idempotency_key(scope: str, identity: Any) -> str:
    digest = hashlib.blake2b(scope.encode(), digest_size=16)
    digest.update(record_key(identity))
    return digest.hexdigest()
