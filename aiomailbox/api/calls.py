"""Streams whose records are sent in calls of async functions, many at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    TypedDict,
    Unpack,
    overload,
)

from aiomailbox import connectors
from aiomailbox.api.adapted import itself
from aiomailbox.api.build import check_name
from aiomailbox.api.definition import own_copy
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.graph.transformation import OperatorFactory
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.core.user_code import (
    OnError,
    check_on_error,
    fail,
    warn_if_resultless,
)
from aiomailbox.operators.joins.lookup import LookupJoinOperator
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.cache import Cache
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.retry import Retry
from aiomailbox.signatures import check_count, check_type, explained
from aiomailbox.typevars import T, U, V

if TYPE_CHECKING:
    # A stream leads to this class, and this class to a stream: only in their types.
    from aiomailbox.api.stream import DataStream


# Its older name is also that of a verb.
OLD_NAMES: Final = explained(
    buffer="capacity=...",
    key_buffer="key_capacity=...",
    run_in=' Leave it out: a function that blocks belongs into map(..., run_in="thread").',
)


class CallSettings(TypedDict, Generic[T], total=False):
    """The arguments that both verbs have, whatever they return."""

    concurrency: int
    timeout: timedelta | float | None
    deadline: timedelta | float | None
    retry: Retry | None
    limit: RateLimit | None
    cache: Cache | None
    on_error: OnError
    capacity: int | None
    journal: bool
    id: str | Callable[[T], Any] | None


class MapSettings(CallSettings[T], Generic[T], total=False):
    """Those of `map_async`."""

    ordered: bool | Literal["key"]
    key: str | Callable[[T], Any] | None
    weight: float | Callable[[T], float] | None
    key_capacity: int | None


class LookupSettings(CallSettings[T], Generic[T], total=False):
    """Those of `lookup_join`."""

    ordered: bool


class Calls(Generic[T]):
    """The verbs of a stream that call async functions; see `DataStream`."""

    _key: Callable[[Any], Any] | None

    if TYPE_CHECKING:

        def _derive(
            self, name: str, factory: OperatorFactory, **facts: Any
        ) -> DataStream[Any]: ...

    @overload
    def map_async(
        self,
        function: Callable[[T], Awaitable[U]],
        *,
        batch: None = None,
        into: None = None,
        columns: None = None,
        **settings: Unpack[MapSettings[T]],
    ) -> DataStream[U]: ...

    @overload
    def map_async(
        self,
        function: Callable[[list[T]], Awaitable[Sequence[U | Exception]]],
        *,
        batch: Batch,
        into: None = None,
        columns: None = None,
        **settings: Unpack[MapSettings[T]],
    ) -> DataStream[U]: ...

    @overload
    def map_async(
        self,
        function: Callable[[Any], Awaitable[Any]],
        *,
        batch: Batch | None = None,
        into: str,
        columns: Sequence[str] | None = None,
        **settings: Unpack[MapSettings[T]],
    ) -> DataStream[Any]: ...

    @OLD_NAMES
    def map_async(
        self,
        function: Callable[[Any], Awaitable[Any]],
        *,
        concurrency: int = 16,
        ordered: bool | Literal["key"] = True,
        key: str | Callable[[T], Any] | None = None,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        weight: float | Callable[[T], float] | None = None,
        batch: Batch | None = None,
        cache: Cache | None = None,
        on_error: OnError = fail,
        capacity: int | None = None,
        key_capacity: int | None = None,
        journal: bool = False,
        id: str | Callable[[T], Any] | None = None,  # noqa: A002 -- the user's word
        into: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> DataStream[Any]:
        """Call an async function for each record, many calls at a time.

        Args:
            function: ``async def function(record)``, or an object whose ``__call__`` is
                that; it can also have ``open``/``close``, or support ``async with``.
            concurrency: The maximum number of concurrent calls in the whole job.
            ordered: True emits results in the order of the records; False as they complete,
                but never across a watermark; ``"key"`` in order per key.
            key: The key for ``ordered="key"``, and for adding up the units of a ``limit``:
                a field's name or a function. A keyed stream uses its own key.
            timeout: The time limit of one attempt: a timedelta or seconds.
            deadline: The time limit of all attempts for a record, including their delays.
            retry: How often, and after which delays, a failed call is repeated.
            limit: A rate limit, shared by all operators that name it.
            weight: How many units of the limit a record uses: a number, or a function.
            batch: Pass several records to one call, which gets and returns a list. An
                exception in that list is the failure of its record alone.
            cache: Make equal calls only once.
            on_error: How to handle a record after the last attempt.
            capacity: The maximum number of records held in the whole job; by default, 4 times
                those that can be in calls.
            key_capacity: With ``ordered="key"``, how many records may wait for their key.
            journal: Record the outcomes of calls, so that no finished call is made again
                after a crash. The job needs a checkpoint directory.
            id: Identifies the call for a record, in the journal and in
                `current_call().idempotency_key <current_call>`: a field's name or a
                function. It gives a str, int, bytes or UUID, or a tuple of these.
            into: Keep the record, and add the result as a field of this name. Columns
                stay columns, except where no column can hold the results. Dicts stay
                dicts, other records become NamedTuples.
            columns: With ``into``, the fields that the function needs; it gets a record
                of these only. By default, those of the record class that its type hint
                names, or else all. Include the fields that ``key``, ``id``, ``weight``
                and ``cache`` read; otherwise whole rows are made of the columns.

        Raises:
            RecordTypeError: If the records are known to have a field ``into`` already, or
                to lack a field named in ``columns``.
            InvalidArgumentError: If an argument has an invalid value.
            WrongTypeError: If an argument has the wrong type.

        Example:
            >>> import asyncio
            >>> import aiomailbox as am
            >>> async def double(number):
            ...     await asyncio.sleep(0.001)
            ...     return 2 * number
            >>> env = am.StreamExecutionEnvironment()
            >>> am.run(env.from_collection([1, 2]).map_async(double).collect())
            [2, 4]
        """
        if ordered == "key" and key is None:
            key = self._key
        kind, added = AsyncMapOperator, dict[str, Any]()
        if into is not None:
            kind = connectors.AsyncColumnOperator
            added = {"into": check_name(into, "into"), "columns": columns}
        elif columns is not None:
            raise InvalidArgumentError(
                "columns",
                "without into= a result replaces the whole record",
                'Add into="name", or write select(...) before.',
            )
        factory = partial(
            own_copy,
            kind,
            function,
            **added,
            concurrency=check_count(concurrency, "concurrency"),
            ordered=ordered,
            key=key,
            timeout=timeout,
            deadline=deadline,
            retry=retry,
            limit=limit,
            weight=weight,
            batch=batch,
            cache=cache,
            on_error=check_on_error(on_error),
            capacity=capacity,
            key_capacity=key_capacity,
            journal=journal,
            id=id,
            partition_key=self._key,
        )
        stream = self._derive(
            "map_async",
            factory,
            functions=(function,),
            serial=False,
            limit=limit,
            has_journal=journal,
        )
        warn_if_resultless(function, "map_async")
        return stream

    @overload
    def lookup_join(
        self,
        lookup: Callable[[Any], Awaitable[V | None]],
        *,
        key: str | Callable[[T], Any],
        join: None = None,
        left: Literal[False] = False,
        batch: None = None,
        **settings: Unpack[LookupSettings[T]],
    ) -> DataStream[tuple[T, V]]: ...

    @overload
    def lookup_join(
        self,
        lookup: Callable[[Any], Awaitable[V | None]],
        *,
        key: str | Callable[[T], Any],
        join: None = None,
        left: bool,
        batch: None = None,
        **settings: Unpack[LookupSettings[T]],
    ) -> DataStream[tuple[T, V | None]]: ...

    @overload
    def lookup_join(
        self,
        lookup: Callable[[list[Any]], Awaitable[Sequence[V | Exception | None]]],
        *,
        key: str | Callable[[T], Any],
        join: None = None,
        left: Literal[False] = False,
        batch: Batch,
        **settings: Unpack[LookupSettings[T]],
    ) -> DataStream[tuple[T, V]]: ...

    @overload
    def lookup_join(
        self,
        lookup: Callable[[list[Any]], Awaitable[Sequence[V | Exception | None]]],
        *,
        key: str | Callable[[T], Any],
        join: None = None,
        left: bool,
        batch: Batch,
        **settings: Unpack[LookupSettings[T]],
    ) -> DataStream[tuple[T, V | None]]: ...

    @overload
    def lookup_join(
        self,
        lookup: Callable[[Any], Awaitable[Any]],
        *,
        key: str | Callable[[T], Any],
        join: Callable[[T, Any], U],
        left: bool = False,
        batch: Batch | None = None,
        **settings: Unpack[LookupSettings[T]],
    ) -> DataStream[U]: ...

    @OLD_NAMES
    def lookup_join(
        self,
        lookup: Callable[[Any], Awaitable[Any]],
        *,
        key: str | Callable[[T], Any],
        join: Callable[[T, Any], Any] | None = None,
        left: bool = False,
        cache: Cache | None = None,
        concurrency: int = 16,
        ordered: bool = True,
        timeout: timedelta | float | None = None,
        deadline: timedelta | float | None = None,
        retry: Retry | None = None,
        limit: RateLimit | None = None,
        batch: Batch | None = None,
        on_error: OnError = fail,
        capacity: int | None = None,
        journal: bool = False,
        id: str | Callable[[T], Any] | None = None,  # noqa: A002 -- the user's word
    ) -> DataStream[Any]:
        """Join each record with the result of an async function for its key.

        Args:
            lookup: ``async def lookup(key)``, which returns None if it finds nothing.
                Otherwise as the function of `DataStream.map_async`.
            key: A field's name, or a function of a record.
            join: ``(record, found)`` → the result; None for a tuple of both.
            left: Whether records for which nothing was found are kept, joined with None.
            cache: Caches what was found: ``Cache(size=..., ttl=...)``.
            concurrency: The maximum number of concurrent lookups in the whole job.
            ordered: Whether results are emitted in the order of the records.
            timeout: The time limit of one attempt: a timedelta or seconds.
            deadline: The time limit of all attempts for a record, including their delays.
            retry: How often, and after which delays, a failed lookup is repeated.
            limit: A rate limit, shared by all operators that name it.
            batch: Look up several keys in one call, which gets and returns a list.
            on_error: How to handle a record whose lookup or join failed.
            capacity: The maximum number of records held in the whole job.
            journal: Record what lookups found; as in `DataStream.map_async`.
            id: Identifies the lookup for a record: a field's name or a function; as in
                `DataStream.map_async`.

        Example:
            >>> import aiomailbox as am
            >>> async def country_of(city):
            ...     return {"Oslo": "Norway"}.get(city)
            >>> env = am.StreamExecutionEnvironment()
            >>> cities = env.from_collection(["Oslo", "Atlantis", "Oslo"])
            >>> joined = cities.lookup_join(
            ...     country_of, key=str.title, left=True, cache=am.Cache(ttl=60)
            ... )
            >>> am.run(joined.collect())
            [('Oslo', 'Norway'), ('Atlantis', None), ('Oslo', 'Norway')]
        """
        factory = partial(
            own_copy,
            LookupJoinOperator,
            lookup,
            key=key,
            join=join,
            keep_unmatched=left,
            cache=cache,
            concurrency=check_count(concurrency, "concurrency"),
            ordered=ordered,
            timeout=timeout,
            deadline=deadline,
            retry=retry,
            limit=limit,
            batch=batch,
            on_error=check_on_error(on_error),
            capacity=capacity,
            journal=journal,
            id=id,
            partition_key=self._key,
        )
        stream = self._derive(
            "lookup join",
            factory,
            functions=(lookup,),
            serial=False,
            limit=limit,
            has_journal=journal,
        )
        warn_if_resultless(lookup, "lookup_join")
        return stream

    def rate_limit(
        self,
        limit: RateLimit,
        *,
        weight: float | Callable[[T], float] | None = None,
    ) -> DataStream[T]:
        """Limit how many records pass in any span of time, in their order.

        Excess records wait and hold back the source; none is dropped.

        Args:
            limit: The rate; all operators of the job that name the same limit share it.
            weight: How many units a record uses: a number, or a function; None for 1.

        Raises:
            WrongTypeError: If ``limit`` is not a `RateLimit`.

        Example:
            >>> import aiomailbox as am
            >>> env = am.StreamExecutionEnvironment()
            >>> slow = env.from_collection([1, 2, 3]).rate_limit(am.RateLimit(1000))
            >>> am.run(slow.collect())
            [1, 2, 3]
        """
        check_type(limit, RateLimit, "limit", "Write am.RateLimit(100).")
        limited: DataStream[T] = self.map_async(itself, limit=limit, weight=weight)
        limited._operator.asks_for_rows = "rate_limit"
        return limited.name("rate_limit")
