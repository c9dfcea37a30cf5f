"""Running results per key."""

from __future__ import annotations

import asyncio
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import (
    KeyTypeError,
    RecordTypeError,
    StateError,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.operators.aggregates.functions import aggregates, count, sum_
from aiomailbox.operators.core.user_code import dead_letter, skip
from aiomailbox.operators.keyed.operators import (
    KeyedAggregateOperator,
    KeyedReduceOperator,
)
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.operators.stateless.operators import MapOperator
from aiomailbox.records.events import OutputTag, StreamRecord, Watermark
from aiomailbox.testing import OneInputHarness, redistributed


def first(record: Any) -> Any:
    return record[0]


def added(one: Any, other: Any) -> Any:
    return one[0], one[1] + other[1]


def reducing(**options: Any) -> KeyedReduceOperator:
    return KeyedReduceOperator(first, added, **options)


def aggregating(**options: Any) -> KeyedAggregateOperator:
    return KeyedAggregateOperator(first, sum_(lambda record: record[1]), **options)


def restored(
    make: Any, state: OperatorSnapshot | None, **settings: Any
) -> OneInputHarness:
    harness = OneInputHarness(make(), keyed=True, **settings)
    harness.restore(state)
    harness.open()
    return harness


RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-9, 9)))


@given(records=RECORDS, cut=st.integers(0, 20))
def test_every_record_leads_to_its_keys_sum_so_far_also_across_a_restart(
    records: list[tuple[str, int]], cut: int
) -> None:
    expected = {
        key: list(accumulate(number for k, number in records if k == key))
        for key in "abc"
    }
    sums = [expected[key].pop(0) for key, _ in records]
    for make, values in (
        (
            reducing,
            [(key, total) for (key, _), total in zip(records, sums, strict=True)],
        ),
        (aggregating, sums),
    ):
        before = OneInputHarness(make(), keyed=True)
        before.open()
        before.process_run(records[:cut])
        after = restored(make, before.snapshot())
        before.process_run([("a", 99)])
        after.process_run(records[cut:])
        assert before.values[: len(records[:cut])] + after.values == values


def test_results_have_the_event_times_of_their_records() -> None:
    with OneInputHarness(reducing(), keyed=True) as harness:
        harness.process_run([("a", 1), ("a", 2)], [5, 3])
        harness.process_watermark(5)
        assert harness.output == [
            StreamRecord(("a", 1), 5),
            StreamRecord(("a", 3), 3),
            Watermark(5),
        ]


def test_an_empty_run_emits_nothing() -> None:
    with OneInputHarness(reducing(), keyed=True) as harness:
        harness.process_run([])
        assert harness.output == []


def test_several_aggregates_are_emitted_as_one_record() -> None:
    operator = KeyedAggregateOperator(
        first, aggregates(n=count(), total=sum_(lambda record: record[1]))
    )
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", 1), ("b", 5), ("a", 2)])
        assert harness.values == [("a", 1, 1), ("b", 1, 5), ("a", 2, 3)]
        assert harness.values[-1].total == 3


def test_a_key_may_be_a_field() -> None:
    operator = KeyedAggregateOperator("k", count())
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([{"k": "a"}, {"k": "a"}])
        assert harness.values == [1, 2]
        with pytest.raises(RecordTypeError, match="no field 'k'") as caught:
            harness.process_run([{"k": "a"}, {"q": "a"}])
        assert caught.value.__notes__ == ["in operator 'operator'"]


@pytest.mark.parametrize("make", [reducing, aggregating])
@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("a", None),
        ("a", 1),
        (1, True),
        (1, 1.0),
        (1, 2**63),
        (1.0, float("nan")),
        (("a", 1), ("a", "b")),
        (("a", 1), ("a",)),
        ("a", ["a"]),
    ],
)
def test_a_key_of_another_type_is_refused_and_the_operator_named(
    make: Any, good: Any, bad: Any
) -> None:
    with OneInputHarness(make(), keyed=True, operator_name="sums") as harness:
        harness.process_run([(good, 1)])
        harness.process_run([(good, 1)])
        with pytest.raises(KeyTypeError, match="operator 'sums'"):
            harness.process_run([(good, 1), (bad, 1)])


@pytest.mark.parametrize("bad", [None, [1], {"a": 1}, object()])
def test_a_first_key_that_cannot_be_one_is_refused(bad: Any) -> None:
    with (
        OneInputHarness(reducing(), keyed=True, operator_name="sums") as harness,
        pytest.raises(KeyTypeError, match="operator 'sums'"),
    ):
        harness.process_run([(bad, 1)])


def test_a_key_function_that_raises_fails_the_operator_with_its_line() -> None:
    with (
        OneInputHarness(reducing(), keyed=True) as harness,
        pytest.raises(UserFunctionError, match=r"test_keyed\.py"),
    ):
        harness.process_run([("a", 1), ()])


def test_a_reduce_function_that_raises_fails_the_operator_with_its_line() -> None:
    with (
        OneInputHarness(reducing(), keyed=True) as harness,
        pytest.raises(UserFunctionError, match=r"test_keyed\.py"),
    ):
        harness.process_run([("a", 1), ("a", "x")])


@pytest.mark.parametrize("stamps", [None, [1, 2, 3, 4, 5]])
def test_a_record_that_fails_is_skipped_and_its_key_stays_as_it_was(
    stamps: Any,
) -> None:
    with OneInputHarness(reducing(on_error=skip), keyed=True) as harness:
        records = [("a", 1), ("a", "x"), ("b", 1), ("a", 2), ("a", None)]
        harness.process_run(records, stamps)
        assert harness.values == [("a", 1), ("b", 1), ("a", 3)]
        if stamps:
            assert [record.timestamp for record in harness.output] == [1, 3, 4]
        assert harness.context.metrics.counter("skipped").value == 2


def test_a_record_that_fails_becomes_a_dead_letter() -> None:
    failed = OutputTag("failed")
    operator = aggregating(on_error=dead_letter(failed))
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", 1), ("a", "x"), ("a", 2)], [1, 2, 3])
        assert harness.values == [1, 3]
        (letter,) = harness.side_output(failed)
        assert letter.timestamp == 2
        assert letter.value.record == ("a", "x")


class AsyncSum:
    def create_accumulator(self) -> int:
        return 0

    async def add(self, value: Any, accumulator: int) -> int:
        await asyncio.sleep(1)
        return accumulator + int(value[1])

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, one: int, other: int) -> int:
        return one + other


async def test_async_functions_are_awaited_one_at_a_time() -> None:
    async def reduce(one: Any, other: Any) -> Any:
        await asyncio.sleep(1)
        return added(one, other)

    records = [("a", 1), ("b", 5), ("a", 2), ("a", "x")]
    for operator, expected in (
        (
            KeyedReduceOperator(first, reduce, on_error=skip),
            [("a", 1), ("b", 5), ("a", 3)],
        ),
        (KeyedAggregateOperator(first, AsyncSum(), on_error=skip), [1, 5, 3]),
    ):
        async with OneInputHarness(operator, keyed=True) as harness:
            await harness.run(harness.process_run, records, [1, 2, 3, 4])
            assert harness.values == expected
            assert [record.timestamp for record in harness.output] == [1, 2, 3]


async def test_a_cancelled_async_function_leaves_its_key_as_it_was() -> None:
    async with OneInputHarness(
        KeyedAggregateOperator(first, AsyncSum()), keyed=True
    ) as harness:
        await harness.run(harness.process_run, [("a", 1)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await harness.run(harness.process_run, [("a", 7)])
        await harness.run(harness.process_run, [("a", 1)])
        assert harness.values == [1, 2]


@pytest.mark.parametrize("make", [reducing, aggregating])
def test_state_moves_with_its_keys_to_other_subtasks(make: Any) -> None:
    # Of 128 key groups "a" is in 81 and "b" in 22.
    pieces = []
    for index, key in ((0, "b"), (1, "a")):
        harness = restored(make, None, parallelism=2, subtask_index=index)
        harness.process_run([(key, 1)])
        pieces.append(harness.snapshot())
    together = restored(make, redistributed(pieces, 1)[0])
    together.process_run([("a", 1), ("b", 1)])
    totals = [value[1] if make is reducing else value for value in together.values]
    assert totals == [2, 2]
    for index, keys in enumerate((1, 1, 0)):
        spread = redistributed(pieces, 3)
        apart = restored(make, spread[index], parallelism=3, subtask_index=index)
        assert apart.context.keyed_state.key_count() == keys


def test_the_state_of_another_kind_of_operator_is_refused() -> None:
    harness = restored(reducing, None)
    harness.process_run([("a", 1)])
    with pytest.raises(StateError, match=r"has no keys.*uid"):
        OneInputHarness(MapOperator(str)).restore(harness.snapshot())
    with pytest.raises(StateError, match="max_parallelism"):
        restored(reducing, harness.snapshot(), max_parallelism=64)


def test_what_cannot_work_is_refused_when_it_is_written() -> None:
    with pytest.raises(WrongTypeError, match="reduce_function"):
        KeyedReduceOperator(first, lambda one: one)  # type: ignore[arg-type, misc]
    with pytest.raises(WrongTypeError, match="key"):
        KeyedReduceOperator(3, added)  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match="create_accumulator"):
        KeyedAggregateOperator(first, max)  # type: ignore[arg-type]
