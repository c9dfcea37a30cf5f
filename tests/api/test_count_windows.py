"""Windows of a number of records, and the records with the smallest and largest value."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import aiomailbox as am
from aiomailbox.errors import InvalidArgumentError, UserFunctionError, WrongTypeError
from aiomailbox.records.events import MAX_TIMESTAMP

Pair = tuple[str, int]


@dataclass(frozen=True)
class Sale:
    shop: str
    price: int
    number: int = 0


SALES = [
    Sale("north", 5, 0),
    Sale("south", 4, 1),
    Sale("north", 9, 2),
    Sale("north", 5, 3),
    Sale("north", 9, 4),
]


def stream_of(records: list[Any], **settings: Any) -> am.DataStream[Any]:
    return am.StreamExecutionEnvironment(**settings).from_collection(records)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=30),
    st.integers(1, 5),
    st.none() | st.integers(1, 5),
)
def test_a_key_has_a_window_for_every_so_many_records(
    records: list[Pair], size: int, slide: int | None
) -> None:
    expected = []
    for key in "ab":
        mine = [value for found, value in records if found == key]
        every = slide or size
        for end in range(every, len(mine) + 1, every):
            expected.append((key, mine[max(end - size, 0) : end]))
    windows = (
        stream_of(records)
        .key_by(lambda record: record[0])
        .count_window(size, slide)
        .apply(lambda key, _, found: [(key, [value for _, value in found])])
    )
    assert sorted(am.run(windows.collect())) == sorted(expected)


async def test_without_a_key_all_records_are_counted() -> None:
    numbers = stream_of(list(range(7)), parallelism=2).rebalance().map(lambda n: n)
    sums = numbers.count_window_all(3).aggregate(am.count())
    assert await sums.collect() == [3, 3]
    assert await stream_of([1, 2, 3]).count_window_all(2, 1).reduce(
        lambda a, b: a + b
    ).collect() == [1, 3, 5]


class Times(am.ProcessFunction[int, int | None]):
    def process_element(self, value: int, context: Any, out: Any) -> None:
        out.collect(context.timestamp)


async def test_results_have_the_last_timestamp_there_is() -> None:
    windows = stream_of([1, 2]).count_window_all(2).reduce(lambda a, b: a + b)
    assert await windows.process(Times()).collect() == [MAX_TIMESTAMP]


async def test_count_windows_go_on_after_a_savepoint(tmp_path: Path) -> None:
    seen = asyncio.Event()

    def look(number: int) -> int:
        if number == 5:
            seen.set()
        return number

    def sums(inbox: am.Inbox[int]) -> tuple[Any, list[int]]:
        env, found = am.StreamExecutionEnvironment(), list[int]()
        mode = am.CheckpointingMode.AT_LEAST_ONCE
        env.enable_checkpointing(None, directory=tmp_path, mode=mode)
        keyed = env.from_source(inbox).uid("in").map(look).key_by(lambda n: n % 2)
        windows = keyed.count_window(3, 2).reduce(lambda a, b: a + b).uid("windows")
        windows.sink_to(found.append)
        return env, found

    inbox = am.Inbox[int]()
    env, found = sums(inbox)
    async with env.start() as job:
        for number in (1, 3, 5):
            await inbox.put(number)
        await seen.wait()
        saved = await job.stop_with_savepoint(tmp_path / "savepoint")
    assert found == [4]
    again = am.Inbox[int]()
    env, found = sums(again)
    async with env.start(restore_from=saved.place) as job:
        await again.put(7)
        again.close()
        await job.result()
    assert found == [3 + 5 + 7]


@pytest.mark.parametrize(("size", "slide"), [(0, None), (1, 0), (-1, 1)])
def test_a_number_below_one_is_refused(size: int, slide: int | None) -> None:
    with pytest.raises(InvalidArgumentError, match=r"size|slide"):
        stream_of([1]).count_window_all(size, slide)


async def test_of_equal_records_the_first_or_the_last_is_kept() -> None:
    keyed = stream_of(SALES).key_by("shop")

    async def numbers(stream: am.DataStream[Sale]) -> list[int]:
        return [sale.number for sale in await stream.collect() if sale.shop == "north"]

    assert await numbers(keyed.max_by("price")) == [0, 2, 2, 2]
    assert await numbers(keyed.max_by("price", first=False)) == [0, 2, 2, 4]
    assert await numbers(keyed.min_by("price")) == [0, 0, 0, 0]
    assert await numbers(keyed.min_by("price", first=False)) == [0, 0, 3, 3]
    windows = keyed.count_window(4)
    assert await numbers(windows.max_by("price")) == [2]
    windows = keyed.count_window(4)
    assert await numbers(windows.min_by(lambda sale: sale.price, first=False)) == [3]


async def test_a_value_that_cannot_be_compared_is_an_error_of_its_record() -> None:
    records: list[Any] = [("a", 1), ("a", None), ("a", 0)]
    keyed = stream_of(records).key_by(lambda record: record[0])
    with pytest.raises(am.JobFailedError) as failed:
        await keyed.min_by(lambda record: record[1]).collect()
    assert isinstance(failed.value.__cause__, UserFunctionError)
    kept = keyed.min_by(lambda record: record[1], on_error=am.skip)
    assert await kept.collect() == [("a", 1), ("a", 0)]


def test_a_field_that_no_record_has_is_refused_where_it_is_written() -> None:
    env = am.StreamExecutionEnvironment()
    sales = env.from_collection(SALES, output_type=Sale).key_by("shop")
    with pytest.raises(InvalidArgumentError, match="cost"):
        sales.max_by("cost")
    with pytest.raises(InvalidArgumentError, match="cost"):
        sales.count_window(2).min_by("cost")
    with pytest.raises(WrongTypeError, match="first"):
        sales.max_by("price", first="yes")  # type: ignore[arg-type]
