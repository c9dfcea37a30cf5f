"""All queries, and what Spark SQL says to the same question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiomailbox as am
from examples.nexmark.model import Event
from examples.nexmark.queries import joins, per_bid, statistics, windows
from examples.nexmark.spark_sql import SQL

QueryFunction = Callable[[am.DataStream[Event]], am.DataStream[Any]]


@dataclass(frozen=True)
class Query:
    """A query.

    Attributes:
        build: Makes the results' stream of that of the events.
        sql: The same in Spark SQL; None if the two cannot be compared.
        key_fields: The results' first fields that say which earlier result a result
            replaces: 0 where results are final.
        why_not: Why it cannot be compared.
    """

    build: QueryFunction
    sql: str | None
    key_fields: int = 0
    why_not: str = ""

    @property
    def name(self) -> str:
        """Return its name, as ``q5``."""
        return self.build.__name__

    @property
    def title(self) -> str:
        """Return what it asks for."""
        return (self.build.__doc__ or "").partition(":")[0]

    def final(self, results: list[Any]) -> list[Any]:
        """Return the results that no later one replaces."""
        if not self.key_fields:
            return results
        last = {result[: self.key_fields]: result for result in results}
        return list(last.values())


_FUNCTIONS: tuple[QueryFunction, ...] = (
    per_bid.q0, per_bid.q1, per_bid.q2, joins.q3, joins.q4, windows.q5, joins.q6,
    windows.q7, windows.q8, joins.q9, per_bid.q10, windows.q11, windows.q12, per_bid.q13,
    per_bid.q14, statistics.q15, statistics.q16, statistics.q17, statistics.q18,
    statistics.q19, joins.q20, per_bid.q21, per_bid.q22,
)  # fmt: skip
_KEY_FIELDS = {"q4": 1, "q18": 2, "q19": 2}
_WHY_NOT = {"q12": "its windows are of processing time: when bids happen to arrive"}

QUERIES = {
    function.__name__: Query(
        function,
        SQL.get(function.__name__),
        _KEY_FIELDS.get(function.__name__, 0),
        _WHY_NOT.get(function.__name__, ""),
    )
    for function in _FUNCTIONS
}
