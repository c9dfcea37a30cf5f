"""Collections and iterators, split, positioned and read to the end."""

from __future__ import annotations

import enum
import itertools
from typing import Any

import pytest

from aiomailbox.connectors.collection import (
    CollectionSource,
    IteratorSource,
    RangeSplit,
)
from aiomailbox.errors import InvalidArgumentError, UsageError, WrongTypeError


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
async def test_every_element_is_read_once_whatever_the_parallelism(
    drive: Any, parallelism: int
) -> None:
    driven = drive(CollectionSource(range(100)), parallelism=parallelism, records_max=9)
    assert sorted(await driven.read()) == list(range(100))
    assert driven.output.log.count(("end", "range-0")) == 1
    await driven.close()


async def test_a_new_reader_goes_on_behind_the_last_emitted_run(drive: Any) -> None:
    for runs in range(1, 7):
        source = CollectionSource(list(range(20)), timestamps=list(range(20)))
        first = drive(source, records_max=4)
        head = await first.read(runs_max=runs)
        second = drive(source, splits=first.reader.snapshot(), records_max=4)
        assert head + await second.read() == list(range(20))
        times = [
            time
            for _, run in first.output.runs + second.output.runs
            for time in run.timestamps
        ]
        assert times == list(range(20))


async def test_changing_the_list_later_changes_nothing(drive: Any) -> None:
    values = [1, 2, 3]
    driven = drive(CollectionSource(values))
    values.clear()
    assert await driven.read() == [1, 2, 3]


async def test_an_iterator_is_read_lazily_by_one_reader(drive: Any) -> None:
    taken = []

    def numbers() -> Any:
        for number in itertools.count():
            taken.append(number)
            yield number

    source = CollectionSource(numbers())
    assert source.parallelism_max == 1
    driven = drive(source, parallelism=2, records_max=5)
    await driven.read(runs_max=2)
    assert len(taken) == 10
    await driven.close()


async def test_an_early_end_closes_a_generator(drive: Any) -> None:
    closed = []

    def numbers() -> Any:
        try:
            yield from itertools.count()
        finally:
            closed.append(True)

    driven = drive(IteratorSource(numbers))
    await driven.read(runs_max=1)
    await driven.close()
    assert closed == [True]


async def test_a_factory_can_be_started_from_the_middle(drive: Any) -> None:
    source = IteratorSource(lambda: iter(range(10)))
    first = drive(source, records_max=3)
    head = await first.read(runs_max=2)
    assert first.reader.snapshot() == [RangeSplit("all", 6)]
    second = drive(source, splits=first.reader.snapshot(), records_max=3)
    assert head + await second.read() == list(range(10))


async def test_a_bare_iterator_runs_only_once(drive: Any) -> None:
    source = IteratorSource(iter([1]))
    assert await drive(source).read() == [1]
    with pytest.raises(UsageError, match="once"):
        await drive(source).read()


async def test_an_iterable_that_is_no_iterator_runs_again(drive: Any) -> None:
    source = CollectionSource({"a": 1}.keys())
    for _ in range(2):
        assert await drive(source).read() == ["a"]


async def test_a_class_is_a_function_that_makes_an_iterable(drive: Any) -> None:
    """A class of iterators has their methods, and is none itself."""
    forever = drive(IteratorSource(itertools.count, bounded=False), records_max=3)
    assert await forever.read(runs_max=2) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(WrongTypeError, match="values"):
        CollectionSource(list)  # type: ignore[arg-type]


async def test_an_enumeration_is_a_collection_of_its_members(drive: Any) -> None:
    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    assert await drive(IteratorSource(Color)).read() == [Color.RED, Color.BLUE]
    assert await drive(CollectionSource(Color)).read() == [Color.RED, Color.BLUE]


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(WrongTypeError, match="values"):
        CollectionSource("text")
    with pytest.raises(WrongTypeError, match="values"):
        CollectionSource(5)
    with pytest.raises(InvalidArgumentError, match="timestamps"):
        CollectionSource([1, 2], timestamps=[1])
    with pytest.raises(WrongTypeError, match="iterable"):
        IteratorSource(5)
