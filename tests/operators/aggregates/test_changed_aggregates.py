"""Laws of accumulators that outlive their program: they are found by name and kind.

In every place that keeps accumulators, on the heap and in RocksDB: named aggregates may
change their order, and nothing else without being told so.
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.columnar.cells import needs_rows
from aiomailbox.errors import CorruptStreamError, JobFailedError, StateError
from aiomailbox.operators.aggregates.functions import (
    aggregates,
    collect_list,
    count,
    max_,
    mean,
    min_,
    sum_,
)
from aiomailbox.operators.aggregates.ordered import (
    count_distinct,
    first,
    last,
    quantile,
    top_n,
)
from aiomailbox.operators.keyed.operators import (
    KeyedAggregateOperator,
    KeyedReduceOperator,
)
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.state.accumulators import AccumulatorSchema, conversion
from aiomailbox.state.backends import HeapStateBackend, RocksDBStateBackend
from aiomailbox.testing import OneInputHarness
from tests.operators.aggregates.kept import (
    AFTER,
    BEFORE,
    COLUMNS,
    KEPT_BY_0_1,
    PLACES,
    ROWS,
    Largest,
    Row,
    cut,
    own_fields,
    went_on,
    written,
)

KEPT = json.loads(KEPT_BY_0_1.read_text())
BACKENDS = [HeapStateBackend(), RocksDBStateBackend()]
# What both keys have, of all rows.
ALL = {"a": (4, 24.0, 6.0), "b": (4, 10.0, 2.5)}

by_place = pytest.mark.parametrize("place", PLACES)
by_backend = pytest.mark.parametrize("backend", BACKENDS, ids=["heap", "rocksdb"])


def kept_by_0_1(name: str, place: str) -> bytes:
    return base64.b64decode(KEPT[name][place])


def refusal(place: str, data: bytes, aggregate: Any, **settings: Any) -> str:
    """Return how it is refused; state that a function asks for, in the user's name."""
    with pytest.raises((StateError, am.UserFunctionError)) as caught:
        went_on(place, data, aggregate, **settings)
    error = caught.value.__cause__ or caught.value
    assert type(error) is StateError
    return str(error)


@by_backend
@by_place
def test_aggregates_in_another_order_go_on_with_what_they_had(
    place: str, backend: Any
) -> None:
    turned = aggregates(average=mean("v"), total=sum_("v"), n=count())
    data = cut(place, written(), state_backend=backend)
    results = own_fields(went_on(place, data, turned, state_backend=backend), turned)
    assert {expected[::-1] for expected in ALL.values()} <= results


@by_backend
@by_place
def test_what_is_kept_again_is_in_the_new_order(place: str, backend: Any) -> None:
    turned = aggregates(average=mean("v"), total=sum_("v"), n=count())
    data = cut(place, written(), state_backend=backend)
    harness = OneInputHarness(PLACES[place](turned), keyed=True, state_backend=backend)
    harness.restore(decode_snapshot(data))
    with harness:
        again = encode_snapshot(harness.snapshot())
    results = own_fields(went_on(place, again, turned), turned)
    assert {expected[::-1] for expected in ALL.values()} <= results


@by_place
def test_another_kind_under_a_name_is_refused_with_both_lists(place: str) -> None:
    other = aggregates(n=count(), total=max_("v"), average=mean("v"))
    message = refusal(place, cut(place, written()), other)
    assert "[n: count, total: sum_, average: mean]" in message
    assert "[n: count, total: max_, average: mean]" in message
    assert "'total' was sum_ and is max_" in message


@by_place
def test_a_renamed_aggregate_is_refused(place: str) -> None:
    renamed = aggregates(n=count(), sum=sum_("v"), average=mean("v"))
    message = refusal(place, cut(place, written()), renamed)
    assert "'total' is gone; 'sum' is new" in message
    assert "allow_unmatched_state=True" in message


@by_backend
@by_place
def test_with_leave_a_new_aggregate_begins_empty_and_an_old_one_is_dropped(
    place: str, backend: Any
) -> None:
    other = aggregates(highest=max_("v"), n=count())
    data = cut(place, written())
    assert "'highest' is new" in refusal(place, data, other, state_backend=backend)
    results = own_fields(
        went_on(place, data, other, allow_unmatched=True, state_backend=backend), other
    )
    # The count goes on, and the maximum is that of the rows after the cut.
    assert {(4.0, 4), (5.0, 4)} <= results


@by_backend
@by_place
def test_with_leave_what_has_no_match_at_all_begins_anew(
    place: str, backend: Any
) -> None:
    other = aggregates(highest=max_("v"), lowest=min_("v"))
    results = own_fields(
        went_on(
            place,
            cut(place, written()),
            other,
            allow_unmatched=True,
            state_backend=backend,
        ),
        other,
    )
    if "triggered" in place:
        # Nothing was in the windows any more: two of the rows are of a key that had
        # one, and no fourth has come.
        assert results <= {(4.0, 4.0), (5.0, 0.5)}
    else:
        assert {(4.0, 4.0), (5.0, 0.5)} <= results


@by_backend
@by_place
def test_positional_accumulators_of_the_same_aggregates_go_on(
    place: str, backend: Any
) -> None:
    data = kept_by_0_1("named", place)
    results = went_on(place, data, written(), state_backend=backend)
    assert set(ALL.values()) <= own_fields(results, written())


@by_place
def test_positional_accumulators_of_one_aggregate_go_on(place: str) -> None:
    results = went_on(place, kept_by_0_1("alone", place), sum_("v"))
    # Where results have their keys, they do.
    totals = {getattr(one, "value", one) for one in results}
    assert {24.0, 10.0} <= totals


@pytest.mark.parametrize("place", ROWS)
def test_accumulators_of_a_function_of_ones_own_go_on(place: str) -> None:
    results = went_on(place, kept_by_0_1("own", place), Largest())
    assert {10.5, 5.0} <= set(results)
    results = went_on(place, cut(place, Largest()), Largest())
    assert {10.5, 5.0} <= set(results)


@by_place
@pytest.mark.parametrize(
    "other",
    [
        aggregates(average=mean("v"), total=sum_("v"), n=count()),
        aggregates(n=count(), total=sum_("v")),
        aggregates(n=count(), total=sum_("v"), average=mean("v"), more=sum_("v")),
        aggregates(n=count(), total=collect_list("v"), average=mean("v")),
        aggregates(n=count(), total=top_n(1, by="v"), average=mean("v")),
    ],
    ids=["other order", "one less", "one more", "list", "other function"],
)
def test_positional_accumulators_that_do_not_fit_are_refused(
    place: str, other: Any
) -> None:
    if place in COLUMNS and needs_rows(other):
        place = "running"
    message = refusal(place, kept_by_0_1("named", place), other)
    assert "[int, float, float, int]" in message
    assert "average: mean" in message or "total: sum_" in message


class LargestOfAll(Largest):
    """Another function, by its name."""


class Renamed(Largest):
    """The same function under another name, and it says so."""

    accumulator_kind = "Largest"


@pytest.mark.parametrize("place", ROWS)
def test_a_function_of_ones_own_is_known_by_its_class_or_by_what_it_says(
    place: str,
) -> None:
    data = cut(place, Largest())
    message = refusal(place, data, LargestOfAll())
    assert "it was Largest and is LargestOfAll" in message
    assert {10.5, 5.0} <= set(went_on(place, data, Renamed()))
    assert "sum_" in refusal(place, data, sum_("v"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (first("v", by="v"), last("v", by="v")),
        (top_n(2, by="v"), top_n(3, by="v")),
        (quantile(0.5, "v"), quantile(0.5, "v", accuracy=0.1)),
        (sum_("v"), mean("v")),
        (count_distinct("v"), count()),
        (aggregates(n=count()), aggregates(m=count())),
        (aggregates(n=count()), count()),
    ],
    ids=repr,
)
def test_each_kind_tells_what_it_could_not_go_on_with(before: Any, after: Any) -> None:
    data = cut("running", aggregates(it=before))
    message = refusal("running", data, aggregates(it=after))
    assert "'it' was" in message or "is new" in message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (count(), count(where=lambda row: row.v > 3)),
        (sum_("v"), sum_(lambda row: row.v)),
        (quantile(0.5, "v"), quantile(0.9, "v")),
    ],
    ids=repr,
)
def test_a_kind_goes_on_whatever_it_reads(before: Any, after: Any) -> None:
    data = cut("running", aggregates(it=before))
    assert went_on("running", data, aggregates(it=after))


def test_aggregates_inside_of_others_are_matched_in_the_same_way() -> None:
    inner = aggregates(n=count(), total=sum_("v"))
    data = cut("running", aggregates(both=inner, highest=max_("v")))
    turned = aggregates(highest=max_("v"), both=aggregates(total=sum_("v"), n=count()))
    results = own_fields(went_on("running", data, turned), turned)
    assert (10.5, (24.0, 4)) in results
    other = aggregates(highest=max_("v"), both=aggregates(least=min_("v"), n=count()))
    assert "'total' is gone; 'least' is new" in refusal("running", data, other)
    results = own_fields(went_on("running", data, other, allow_unmatched=True), other)
    assert (10.5, (4.0, 4)) in results


def test_a_reduced_record_is_no_accumulator_nor_the_other_way_round() -> None:
    def largest(old: Row, new: Row) -> Row:
        return max(old, new)

    with OneInputHarness(KeyedReduceOperator("key", largest), keyed=True) as harness:
        harness.process_run(BEFORE)
        data = encode_snapshot(harness.snapshot())
    assert "was reduce" in refusal_of(data, KeyedAggregateOperator("key", sum_("v")))
    data = cut("running", sum_("v"))
    assert "is reduce" in refusal_of(data, KeyedReduceOperator("key", largest))


def refusal_of(data: bytes, operator: Any) -> str:
    harness = OneInputHarness(operator, keyed=True)
    with pytest.raises(StateError) as caught:
        harness.restore(decode_snapshot(data, [Row]))
    return str(caught.value)


def test_what_a_snapshot_says_of_its_accumulators_is_not_trusted() -> None:
    aggregate = aggregates(total=sum_("v"), n=count())
    said = AccumulatorSchema(
        "aggregates",
        parts=(("n", AccumulatorSchema("count")), ("total", AccumulatorSchema("sum_"))),
    )
    convert = conversion("totals", said, aggregate, allow_unmatched=False)
    assert convert is not None
    assert convert([3, 1.5]) == [1.5, 3]
    for accumulator in ([3], [3, 1.5, 2], {"n": 3}, None):
        with pytest.raises(CorruptStreamError, match="totals"):
            convert(accumulator)


async def take(place: str, aggregate: Any) -> None:
    """Leave a savepoint of a job that has aggregated `BEFORE`."""
    results: list[Any] = []

    async def rows() -> Any:
        for row in BEFORE:
            yield row
        await asyncio.Event().wait()

    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(None, mode=am.CheckpointingMode.AT_LEAST_ONCE)
    source = env.from_source(am.AsyncIterableSource(rows)).uid("rows")
    running = source.key_by("key").aggregate(aggregate).uid("totals")
    arrived = asyncio.Event()

    def keep(result: Any) -> None:
        results.append(result)
        if len(results) == len(BEFORE):
            arrived.set()

    running.sink_to(keep)
    async with env.start("totals") as job:
        await arrived.wait()
        await job.trigger_savepoint(place)
        await job.cancel()


async def resume(place: str, aggregate: Any, **settings: Any) -> list[Any]:
    results: list[Any] = []

    async def rows() -> Any:
        for row in AFTER:
            yield row

    env = am.StreamExecutionEnvironment()
    source = env.from_source(am.AsyncIterableSource(rows)).uid("rows")
    running = source.key_by("key").aggregate(aggregate).uid("totals")
    running.sink_to(results.append)
    await env.execute("totals", restore_from=place, **settings)
    return results


async def test_a_job_names_the_operator_that_it_refuses_and_takes_leave(
    tmp_path: Path,
) -> None:
    place = str(tmp_path / "savepoint")
    await take(place, aggregates(n=count(), total=sum_("v")))
    [operator] = [one for one in am.Savepoint(place).operators() if one.uid == "totals"]
    assert [one.types for one in operator.states] == [
        {"accumulator": "n: count, total: sum_"}
    ]
    turned = aggregates(total=sum_("v"), n=count())
    final = {one.key: (one.total, one.n) for one in await resume(place, turned)}
    assert final == {key: (total, n) for key, (n, total, _) in ALL.items()}
    other = aggregates(n=count(), highest=max_("v"))
    with pytest.raises((JobFailedError, StateError)) as caught:
        await resume(place, other)
    notes = getattr(caught.value, "__notes__", [])
    message = "\n".join([str(caught.value), str(caught.value.__cause__), *notes])
    assert "'totals'" in message
    assert "[n: count, total: sum_]" in message
    assert "[n: count, highest: max_]" in message
    results = await resume(place, other, allow_unmatched_state=True)
    final = {one.key: (one.n, one.highest) for one in results}
    assert final == {"a": (4, 4.0), "b": (4, 5.0)}
