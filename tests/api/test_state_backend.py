"""Where keyed state is kept: the same results everywhere, and nothing left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import InvalidArgumentError, WrongTypeError

MIB = 1 << 20


def rows(count: int, keys: int) -> list[tuple[str, int]]:
    return [(f"k{n * 7919 % keys}", n) for n in range(count)]


def key_of(row: tuple[str, int]) -> str:
    return row[0]


def value_of(row: tuple[str, int]) -> int:
    return row[1]


class Distinct(am.KeyedProcessFunction):
    """Emits how many values a key had; state of three kinds."""

    def open(self, context: Any) -> None:
        state = context.keyed_state
        self.seen = state.get_map(am.MapStateDescriptor("seen"))
        self.last = state.get_list(am.ListStateDescriptor("last"))
        self.count = state.get_value(am.ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.seen.put(value[1] % 10, True)
        self.last.add(value[1])
        self.count.update(self.count.value() + 1)
        out.collect(
            (value[0], self.count.value(), len(self.seen.keys()), self.last.get())
        )


def small_rocksdb(path: Path) -> am.RocksDBStateBackend:
    return am.RocksDBStateBackend(path, memory_bytes=MIB)


@pytest.fixture(autouse=True)
def tiny_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let contents leave the cache all the time."""
    monkeypatch.setattr("aiomailbox.state.rocksdb.store.GENERATION_MIN", 8)
    monkeypatch.setattr("aiomailbox.state.rocksdb.store._OVERHEAD_BYTES", 2**30)


@pytest.mark.parametrize(
    "work",
    [
        lambda stream: stream.reduce(lambda a, b: (a[0], a[1] + b[1])),
        lambda stream: stream.aggregate(
            am.aggregates(n=am.count(), s=am.sum_(value_of))
        ),
        lambda stream: stream.process(Distinct()),
        lambda stream: stream.window(
            am.SlidingEventTimeWindows.of(am.millis(400), am.millis(100))
        ).aggregate(am.sum_(value_of)),
        lambda stream: stream.window(
            am.EventTimeSessionWindows.with_gap(am.millis(150))
        ).reduce(lambda a, b: (a[0], a[1] + b[1])),
    ],
)
@pytest.mark.parametrize("parallelism", [1, 2])
async def test_both_backends_give_the_same_results(
    work: Any, parallelism: int, tmp_path: Path
) -> None:
    results = []
    for backend in (am.HeapStateBackend(), small_rocksdb(tmp_path)):
        env = am.StreamExecutionEnvironment(parallelism)
        env.configure(state_backend=backend)
        strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(
            am.millis(10)
        ).with_timestamp_assigner(value_of)
        stream = env.from_collection(rows(2000, 50), strategy).key_by(key_of)
        results.append(await work(stream).collect())
    heap, rocksdb = results
    assert len(heap) >= 50
    # Whether they are reprs decides nothing: rows of several types cannot be sorted.
    assert sorted(map(repr, heap)) == sorted(map(repr, rocksdb))
    assert list(tmp_path.iterdir()) == []


async def test_a_failed_job_removes_its_files(tmp_path: Path) -> None:
    def fail_late(old: Any, new: Any) -> Any:
        if new[1] == 1500:
            assert list(tmp_path.iterdir()), "the state is not on disk"
            raise RuntimeError("no more")
        return new

    env = am.StreamExecutionEnvironment()
    env.configure(state_backend=small_rocksdb(tmp_path))
    with pytest.raises(am.JobFailedError):
        await (
            env.from_collection(rows(2000, 50))
            .key_by(key_of)
            .reduce(fail_late)
            .collect()
        )
    assert list(tmp_path.iterdir()) == []


async def test_a_cancelled_job_removes_its_files_and_keeps_its_metrics(
    tmp_path: Path,
) -> None:
    env = am.StreamExecutionEnvironment()
    env.configure(state_backend=small_rocksdb(tmp_path))
    counts = (
        env.from_collection(rows(200_000, 5000)).key_by(key_of).aggregate(am.count())
    )
    reached = asyncio.Event()
    results: list[int] = []

    def keep(result: int) -> None:
        results.append(result)
        if len(results) == 10_000:
            reached.set()

    counts.name("counts").sink_to(keep)
    async with env.start() as job:
        await reached.wait()
        assert list(tmp_path.iterdir())
        await job.cancel()
        assert list(tmp_path.iterdir()) == []
        metrics = job.metrics().operators["counts"]
        # An estimate, and too high while entries are being written again.
        assert metrics["state_keys"] >= 4000
        assert metrics["state_bytes"] > 0


async def test_metrics_show_keys_and_bytes_of_state_on_the_heap() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    counts = env.from_collection(rows(1000, 100)).key_by(key_of).aggregate(am.count())
    counts.name("counts").sink_to(lambda _: None)
    async with env.start() as job:
        await job.result()
        metrics = job.metrics().operators["counts"]
    assert metrics["state_keys"] == 100
    assert metrics["state_bytes"] > 100 * 50


def test_explain_names_state_that_grows_for_ever() -> None:
    env = am.StreamExecutionEnvironment()
    keyed = env.from_collection([("a", 1)]).key_by(key_of)
    keyed.reduce(max).sink_to(print)
    keyed.aggregate(am.count()).sink_to(print)
    keyed.window(am.TumblingEventTimeWindows.of(am.seconds(1.0))).aggregate(
        am.count()
    ).sink_to(print)
    lines = env.explain().splitlines()
    named = [
        i for i, line in enumerate(lines) if "grows with the number of keys" in line
    ]
    assert len(named) == 2


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (lambda: am.RocksDBStateBackend(memory_bytes=1000), "memory_bytes"),
        (lambda: am.RocksDBStateBackend(memory_bytes=1e9), "memory_bytes"),  # type: ignore[arg-type]
        (lambda: am.RocksDBStateBackend(5), "path"),  # type: ignore[arg-type]
        (
            lambda: am.JobConfig(state_backend="rocksdb"),  # type: ignore[arg-type]
            "state_backend",
        ),
    ],
)
def test_wrong_settings_are_refused_where_they_are_written(
    make: Any, parameter: str
) -> None:
    with pytest.raises((InvalidArgumentError, WrongTypeError), match=parameter):
        make()


async def test_a_state_name_used_with_two_types_fails_with_both() -> None:
    class Twice(am.KeyedProcessFunction):
        def open(self, context: Any) -> None:
            context.keyed_state.get_value(am.ValueStateDescriptor("last", int))
            context.keyed_state.get_value(am.ValueStateDescriptor("last", str))

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            out.collect(value)

    env = am.StreamExecutionEnvironment()
    with pytest.raises(am.JobFailedError) as failed:
        await env.from_collection([("a", 1)]).key_by(key_of).process(Twice()).collect()
    assert "'last'" in str(failed.value.__cause__)
    assert "written as int and cannot be read as str" in str(failed.value.__cause__)
