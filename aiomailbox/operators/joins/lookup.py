"""Joins each record with what an asynchronous function finds for its key."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.operators.async_io.calls import Entry
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.async_io.rows import RowFlow
from aiomailbox.operators.core.failures import USER_ERRORS
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.user_code import check_sync_function
from aiomailbox.operators.joins.keyed import pair
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.policies.cache import Cache

__all__ = ["LookupJoinOperator"]


class LookupJoinOperator(AsyncMapOperator):
    """Joins each record with what an asynchronous function returns for its key.

    Args:
        lookup: Called with a key, or with a list of keys if there are batches; returns
            what it found, None for nothing. Otherwise as in `AsyncMapOperator`.
        key: A field's name or a function of a record.
        join: ``(record, found)`` → the result; both in a tuple if left out.
        keep_unmatched: Whether a record for which nothing was found is joined with
            None; otherwise it leads to nothing.
        cache: Keeps what was found, also that nothing was, by the lookup's key.
        **calls: The other arguments of `AsyncMapOperator`.

    Raises:
        InvalidArgumentError: If the cache has a key of its own, or another argument
            has a value that cannot work.
        WrongTypeError: If an argument is of another type.

    Concept:
        Flink SQL, ``AsyncLookupJoinRunner`` with its lookup cache.

    Example:
        >>> import asyncio
        >>> from aiomailbox.testing import OneInputHarness
        >>> async def country_of(city):
        ...     return {"Oslo": "Norway"}.get(city)
        >>> async def main():
        ...     operator = LookupJoinOperator(country_of, key=str.title, concurrency=10)
        ...     async with OneInputHarness(operator) as harness:
        ...         await harness.run(harness.process_run, ["oslo", "atlantis"])
        ...         await harness.run(harness.end_input)
        ...         return harness.values
        >>> asyncio.run(main())
        [('oslo', 'Norway')]
    """

    def __init__(
        self,
        lookup: Callable[[Any], Any],
        *,
        key: KeySelector,
        join: Callable[[Any, Any], Any] | None = None,
        keep_unmatched: bool = False,
        cache: Cache | None = None,
        **calls: Any,
    ) -> None:
        self._key_of = field_or_function(key, "key")
        if isinstance(cache, Cache):
            cache = _by_lookup_key(cache, self._key_of)
        if calls.get("ordered") == "key":
            calls["key"] = self._key_of
        super().__init__(lookup, cache=cache, **calls)
        self._join = check_sync_function(join or pair, "join", arity=2)
        self._keep_unmatched = keep_unmatched

    def _prepare(self) -> Pending:
        self.function.call = self._by_key(self.function.call)
        return super()._prepare()

    def _by_key(self, lookup: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
        key_of = self._key_of

        @functools.wraps(lookup)
        def look_up(record: Any) -> Any:
            return lookup(key_of(record))

        @functools.wraps(lookup)
        def look_up_all(records: list[Any]) -> Any:
            return lookup([key_of(record) for record in records])

        return look_up if self.settings.batch is None else look_up_all

    def _row_flow(self, *parts: Any) -> RowFlow:
        join, check = self._join, self.context.mutations
        if check is not None:
            join = check.watched_call(join)
        return _JoiningRowFlow(*parts, join=join, keep_unmatched=self._keep_unmatched)


class _JoiningRowFlow(RowFlow):
    """Joins a row with its call's result when that is there."""

    def __init__(
        self, *parts: Any, join: Callable[[Any, Any], Any], keep_unmatched: bool
    ) -> None:
        super().__init__(*parts)
        self._join = join
        self._keep_unmatched = keep_unmatched

    def _done(self, entry: Entry) -> None:
        if not entry.dropped:
            if entry.result is None and not self._keep_unmatched:
                entry.dropped = True
            else:
                try:
                    entry.result = self._join(entry.value, entry.result)
                except USER_ERRORS as error:
                    # Its call ended well, and that is what a journal has.
                    if not self._drop(entry, error, 1):
                        return
        super()._done(entry)


def _by_lookup_key(cache: Cache, key: Callable[[Any], Any]) -> Cache:
    if cache.key is not None:
        raise InvalidArgumentError(
            "cache",
            f"its key {cache.key!r} has no effect here: results are cached by the "
            "key that is looked up",
            "Write Cache(size=..., ttl=...).",
        )
    return dataclasses.replace(cache, key=key)
