"""Aggregates with a condition, of different values, and of the first and last record."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

import aiomailbox as am


class Trade(NamedTuple):
    at: int
    price: float | None
    is_good: bool = True


def is_good(trade: Trade) -> bool:
    return trade.is_good


TRADES = st.lists(
    st.builds(
        Trade,
        st.integers(0, 5),
        st.none() | st.integers(0, 9).map(float),
        st.booleans(),
    ),
    max_size=12,
)

# Each with the same aggregate of all records.
CONDITIONAL: dict[str, tuple[Any, Any]] = {
    "count": (am.count(where=is_good), am.count()),
    "sum": (am.sum_("price", where=is_good), am.sum_("price")),
    "mean": (am.mean("price", where="is_good"), am.mean("price")),
    "min": (am.min_("price", where=is_good), am.min_("price")),
    "max": (am.max_("price", where=is_good), am.max_("price")),
    "list": (am.collect_list("price", where=is_good), am.collect_list("price")),
    "records": (am.collect_list(where=is_good), am.collect_list()),
    "distinct": (am.count_distinct("price", where=is_good), am.count_distinct("price")),
    "first": (am.first("price", by="at", where=is_good), am.first("price", by="at")),
    "last": (am.last(by="at", where=is_good), am.last(by="at")),
    "top": (am.top_n(3, by="at", where=is_good), am.top_n(3, by="at")),
    "quantile": (
        am.quantile(0.5, "price", where=is_good),
        am.quantile(0.5, "price"),
    ),
}


def result_of(aggregate: Any, records: list[Trade]) -> Any:
    return aggregate.get_result(added(aggregate, records))


def added(aggregate: Any, records: list[Trade]) -> Any:
    accumulator = aggregate.create_accumulator()
    for record in records:
        accumulator = aggregate.add(record, accumulator)
    return accumulator


@pytest.mark.parametrize("pair", CONDITIONAL.values(), ids=CONDITIONAL)
@settings(max_examples=30)
@given(trades=TRADES)
def test_a_condition_is_as_a_filter_before(
    pair: tuple[Any, Any], trades: list[Trade]
) -> None:
    conditional, plain = pair
    good = [trade for trade in trades if trade.is_good]
    assert result_of(conditional, trades) == result_of(plain, good)


@pytest.mark.parametrize("pair", CONDITIONAL.values(), ids=CONDITIONAL)
@settings(max_examples=30)
@given(trades=TRADES, more=TRADES)
def test_merged_is_as_added_one_after_the_other(
    pair: tuple[Any, Any], trades: list[Trade], more: list[Trade]
) -> None:
    aggregate = pickle.loads(pickle.dumps(pair[0]))
    merged = aggregate.merge(added(aggregate, trades), added(aggregate, more))
    assert aggregate.get_result(merged) == result_of(aggregate, trades + more)


@given(trades=TRADES)
def test_different_values_are_counted_without_none(trades: list[Trade]) -> None:
    prices = {trade.price for trade in trades} - {None}
    assert result_of(am.count_distinct("price"), trades) == len(prices)


@given(trades=TRADES)
def test_first_and_last_are_in_the_order_of_the_field(trades: list[Trade]) -> None:
    ordered = sorted(trades, key=lambda trade: trade.at)
    first, last = (ordered[0], ordered[-1]) if ordered else (None, None)
    assert result_of(am.first(by="at"), trades) == first
    assert result_of(am.last(by="at"), trades) == last


def test_a_value_that_cannot_be_compared_is_named() -> None:
    different = am.count_distinct(lambda record: record["tags"])
    with pytest.raises(am.RecordTypeError, match=r"\['x'\] of the record .*'tags'"):
        different.add({"tags": ["x"]}, different.create_accumulator())


def test_conditions_are_shown() -> None:
    text = repr(am.aggregates(a=am.sum_("price", where=is_good), b=am.count()))
    assert text == "aggregates(a=sum_('price', where=is_good), b=count())"
    assert repr(am.collect_list(where="good")) == "collect_list(where='good')"


@pytest.mark.parametrize(
    "build",
    [
        lambda: am.sum_("price", where=""),
        lambda: am.count_distinct("price", where=3),  # type: ignore[arg-type]
        lambda: am.first(by="at", where=""),
        lambda: am.top_n(1, by="at", where=""),
    ],
)
def test_a_condition_is_a_field_or_a_function(build: Any) -> None:
    with pytest.raises(am.UsageError, match="where"):
        build()


async def test_they_go_together_in_windows_and_sessions() -> None:
    env = am.StreamExecutionEnvironment()
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(5))
    trades = env.from_collection(
        [Trade(2_000, 10.5), Trade(1_000, 10.0), Trade(3_000, 11.0, False)],
        strategy.with_timestamp_assigner("at"),
    ).key_by(lambda trade: "x")
    wanted = am.aggregates(
        opening=am.first("price", by="at"),
        closing=am.last("price", by="at"),
        good=am.sum_("price", where="is_good"),
        prices=am.count_distinct("price"),
    )
    for windows in (
        am.TumblingEventTimeWindows.of(am.seconds(10)),
        am.EventTimeSessionWindows.with_gap(am.seconds(1)),
    ):
        (row,) = await trades.window(windows).aggregate(wanted).collect()
        assert (row.opening, row.closing, row.good, row.prices) == (10.0, 11.0, 20.5, 3)
