"""Lookup joins: what is looked up, kept, joined and dropped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.errors import InvalidArgumentError, UserFunctionError, WrongTypeError
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.core.user_code import dead_letter, skip
from aiomailbox.operators.joins.lookup import LookupJoinOperator
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.cache import Cache
from aiomailbox.records.events import OutputTag, StreamRecord, Watermark
from aiomailbox.testing import OneInputHarness

COUNTRIES = {"oslo": "Norway", "rome": "Italy"}
DEAD = OutputTag("dead")


class Service:
    """Answers after a second; knows which keys it was asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.life: list[str] = []

    async def __aenter__(self) -> Service:
        self.life.append("open")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.life.append("close")

    async def __call__(self, key: Any) -> Any:
        self.asked.append(key)
        await asyncio.sleep(1)
        if isinstance(key, list):
            return [COUNTRIES.get(each) for each in key]
        if key == "bad":
            raise ValueError(key)
        return COUNTRIES.get(key)


def first(record: Any) -> Any:
    return record[0]


async def joined(
    records: list[Any], service: Service, **options: Any
) -> OneInputHarness:
    options = {"key": first, "concurrency": 10, **options}
    operator = LookupJoinOperator(service, **options)
    async with OneInputHarness(operator) as harness:
        await harness.run(harness.process_run, records, list(range(len(records))))
        await harness.run(harness.process_watermark, len(records))
        await harness.run(harness.end_input)
    return harness


async def test_records_are_joined_with_what_is_found() -> None:
    service = Service()
    records = [("oslo", 1), ("atlantis", 2), ("rome", 3)]
    harness = await joined(records, service)
    assert harness.output == [
        StreamRecord((("oslo", 1), "Norway"), 0),
        StreamRecord((("rome", 3), "Italy"), 2),
        Watermark(3),
    ]
    assert service.asked == ["oslo", "atlantis", "rome"]
    assert service.life == ["open", "close"]


async def test_records_stay_for_which_nothing_was_found_if_wanted() -> None:
    harness = await joined(
        [("atlantis", 1)],
        Service(),
        keep_unmatched=True,
        join=lambda record, found: (*record, found or "unknown"),
    )
    assert harness.values == [("atlantis", 1, "unknown")]


async def test_a_cache_asks_once_for_each_key_and_joins_each_record() -> None:
    service = Service()
    records = [("oslo", 1), ("oslo", 2), ("atlantis", 3), ("oslo", 4), ("atlantis", 5)]
    harness = await joined(records, service, cache=Cache(), keep_unmatched=True)
    assert harness.values == [
        (record, COUNTRIES.get(record[0]))  # Each record is its own.
        for record in records
    ]
    assert service.asked == ["oslo", "atlantis"]


async def test_a_cache_forgets_after_its_time_and_beyond_its_size() -> None:
    service = Service()
    cache = Cache(size=1, ttl=60)
    operator = LookupJoinOperator(service, key=first, concurrency=10, cache=cache)
    async with OneInputHarness(operator) as harness:

        async def feed(city: str) -> None:
            await harness.run(harness.process_element, (city, 0))
            await asyncio.sleep(2)
            await harness.run(harness.run_mail)

        await feed("oslo")
        await feed("oslo")
        assert service.asked == ["oslo"]
        harness.context.clock.advance(60)
        await feed("oslo")
        assert service.asked == ["oslo", "oslo"]
        await feed("rome")
        await feed("oslo")
        assert service.asked == ["oslo", "oslo", "rome", "oslo"]
        await harness.run(harness.end_input)
        assert len(harness.values) == 5


async def test_several_keys_can_be_looked_up_in_one_call() -> None:
    service = Service()
    records = [("oslo", 1), ("rome", 2), ("atlantis", 3)]
    harness = await joined(records, service, batch=Batch(size=3, within=1))
    assert service.asked == [["oslo", "rome", "atlantis"]]
    assert harness.values == [(("oslo", 1), "Norway"), (("rome", 2), "Italy")]


async def test_a_snapshot_holds_the_records_that_are_looked_up() -> None:
    records = [("oslo", 1), ("rome", 2)]
    service = Service()
    operator = LookupJoinOperator(service, key=first, concurrency=10)
    async with OneInputHarness(operator) as harness:
        await harness.run(harness.process_run, records, [1, 2])
        state = harness.snapshot()
    restored = OneInputHarness(LookupJoinOperator(service, key=first, concurrency=10))
    restored.restore(state)
    async with restored:
        await restored.run(restored.process_element, ("oslo", 3), 3)
        await restored.run(restored.end_input)
    assert restored.output == [
        StreamRecord((("oslo", 1), "Norway"), 1),
        StreamRecord((("rome", 2), "Italy"), 2),
        StreamRecord((("oslo", 3), "Norway"), 3),
    ]


def refuse_rome(record: Any, found: Any) -> Any:
    if found == "Italy":
        raise ValueError(found)
    return found


@pytest.mark.parametrize("cache", [None, Cache()])
async def test_on_error_applies_to_lookup_and_join(cache: Cache | None) -> None:
    records = [("oslo", 1), ("rome", 2), ("bad", 3), ("oslo", 4), ("rome", 5)]
    options: dict[str, Any] = {"join": refuse_rome, "cache": cache}
    harness = await joined(records, Service(), on_error=skip, **options)
    assert harness.values == ["Norway", "Norway"]
    harness = await joined(records, Service(), on_error=dead_letter(DEAD), **options)
    assert harness.values == ["Norway", "Norway"]
    letters = [letter.value.record for letter in harness.side_output(DEAD)]
    assert sorted(letters) == [("bad", 3), ("rome", 2), ("rome", 5)]


async def test_the_task_fails_when_the_join_raises() -> None:
    with pytest.raises(UserFunctionError, match="Italy"):
        await joined([("rome", 1)], Service(), join=refuse_rome)


async def test_order_may_be_kept_by_the_key_that_is_looked_up() -> None:
    service = Service()
    harness = await joined([("oslo", 1), ("oslo", 2)], service, ordered="key")
    assert [record[1] for record, _ in harness.values] == [1, 2]


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="its key 'city' has no effect here"):
        LookupJoinOperator(Service(), key=first, concurrency=1, cache=Cache("city"))
    with pytest.raises(InvalidArgumentError, match="it has no key"):
        AsyncMapOperator(Service(), concurrency=1, cache=Cache())
    with pytest.raises(WrongTypeError, match="join"):
        LookupJoinOperator(Service(), key=first, concurrency=1, join=len)
    with pytest.raises(WrongTypeError, match="join"):
        LookupJoinOperator(Service(), key=first, concurrency=1, join=Service())
    with pytest.raises(WrongTypeError, match="key"):
        LookupJoinOperator(Service(), key=None, concurrency=1)  # type: ignore[arg-type]
