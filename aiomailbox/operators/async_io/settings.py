"""How calls are made: the arguments of an async operator, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from aiomailbox.durations import duration_s
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.user_code import check_sync_function
from aiomailbox.policies.arguments import check_count, check_number
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.cache import Cache
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.retry import Retry

__all__ = ["CallSettings", "Order", "Weight", "check_bounds", "check_key", "share"]

Order = bool | Literal["key"]
Weight = float | Callable[[Any], float] | None

_BUFFER_PER_CALL: Final = 4
_KEY_BUFFER_PER_CALL: Final = 16
_KEY_BUFFER_MIN: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """What is said about the calls, apart from how many and in which order.

    Attributes:
        read_id: Reads a record's id, if there is one.

    Raises:
        InvalidArgumentError: If a duration or a weight is out of its range, a weight is
            given without a limit, or a journal without ids.
        WrongTypeError: If an argument is of another type.
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
        check_number(self.weight, "weight", minimum=0)
        self.limit.check_weight(self.weight * self.batch_size)


def check_bounds(
    concurrency: Any, buffer: int | None, key_buffer: int | None, batch_size: int
) -> tuple[int, int, int]:
    """Return the bounds of a job: calls, rows held, rows waiting behind their key.

    Raises:
        InvalidArgumentError: If one is below 1, or the buffer below the concurrency.
        WrongTypeError: If one is not an int.
    """
    check_count(concurrency, "concurrency")
    if buffer is None:
        buffer = _BUFFER_PER_CALL * concurrency * batch_size
    elif check_count(buffer, "buffer") < concurrency:
        raise InvalidArgumentError(
            "buffer",
            f"{buffer} rows are too few for {concurrency} calls at once",
            "Use at least concurrency, better a few times as many.",
        )
    if key_buffer is None:
        key_buffer = max(_KEY_BUFFER_PER_CALL * concurrency, _KEY_BUFFER_MIN)
    check_count(key_buffer, "key_buffer")
    return concurrency, buffer, key_buffer


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
