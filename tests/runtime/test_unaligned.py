"""Checkpoints whose barriers overtake data: it is part of them, and of what is restored."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.checkpoint.reader import CheckpointFiles
from aiomailbox.errors import JobFailedError, StateError
from aiomailbox.exchange.core.contract import decode_in_flight
from aiomailbox.runtime.peers.record_types import element_codec

KEYS = 7
COUNT = 2_000
EXPECTED = {key: list(range(key, COUNT, KEYS)) for key in range(KEYS)}


class FailsAt:
    """Raises at some values, each time once."""

    def __init__(self, *values: int) -> None:
        self.waiting = list(values)

    def __call__(self, value: int) -> int:
        if value in self.waiting:
            self.waiting.remove(value)
            raise RuntimeError(f"stumbled over {value}")
        return value


class Remembers(am.KeyedProcessFunction):
    """Keeps all values of a key in the order in which they came; slow at times."""

    def __init__(
        self, fails: FailsAt, results: dict[int, list[int]], pause: float = 0.1
    ) -> None:
        self.fails, self.results, self.pause = fails, results, pause

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_list(am.ListStateDescriptor("seen", int))

    async def process_element(self, value: int, context: Any, out: Any) -> None:
        if value % 50 == 0:
            await asyncio.sleep(self.pause)
        self.fails(value)
        self.seen.add(value)
        self.results[value % KEYS] = list(self.seen.get())


def environment(interval: float | None = 0.05, **settings: Any) -> Any:
    env = am.StreamExecutionEnvironment(parallelism=settings.pop("parallelism", 2))
    settings.setdefault("unaligned", True)
    every = None if interval is None else am.seconds(interval)
    env.enable_checkpointing(every, **settings)
    return env.configure(restart=am.restart.fixed_delay(20, 0.01))


def remembered(
    env: Any, fails: FailsAt, results: dict[int, list[int]], **options: Any
) -> None:
    (
        env.from_collection(list(range(COUNT)))
        .set_parallelism(1)
        .key_by(lambda value: value % KEYS)
        .process(Remembers(fails, results, **options))
        .uid("remembers")
        .sink_to(lambda value: None)
    )


@pytest.mark.parametrize("timeout", [0, 0.15])
async def test_every_record_counts_once_in_its_order_however_often_the_job_fails(
    timeout: float,
) -> None:
    results: dict[int, list[int]] = {}
    env = environment(aligned_timeout=am.seconds(timeout))
    chance = random.Random(f"{timeout}")
    fails = FailsAt(*chance.sample(range(100, COUNT), 8))
    remembered(env, fails, results, pause=0.5)
    async with env.start() as job:
        await job.result()
        assert job.restarts == 8
        assert len(job.checkpoints()) > 3
    assert results == EXPECTED


def kept_in_flight(place: str) -> dict[str, list[Any]]:
    """Return the records in flight of a checkpoint, by channel and in their order."""
    codec = element_codec([], has_arrow=False)
    channels = CheckpointFiles.at(place).restored([]).snapshot.channels
    found: dict[str, list[Any]] = defaultdict(list)
    for end in ("received: ", "sent: "):
        for name, data in channels.items():
            if name.startswith(end):
                for element in decode_in_flight(codec, data):
                    found[name.removeprefix(end)] += getattr(element, "values", [])
    return found


async def test_what_a_barrier_overtakes_is_in_the_checkpoint_and_comes_first_again(
    tmp_path: Path,
) -> None:
    results: dict[int, list[int]] = {}

    def program() -> Any:
        env = environment(
            None, directory=tmp_path, retention=am.Retention.ON_CANCELLATION
        )
        remembered(env, FailsAt(), results, pause=1.0)
        return env

    async with program().start("slow") as job:
        while not results:
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        before = asyncio.get_running_loop().time()
        completed = await job.trigger_checkpoint()
        assert asyncio.get_running_loop().time() - before < 1
        await job.cancel()
    in_flight = kept_in_flight(completed.place)
    assert len(in_flight) == 2
    for values in in_flight.values():
        assert len(values) > 100
        for key in {value % KEYS for value in values}:
            of_key = [value for value in values if value % KEYS == key]
            start = EXPECTED[key].index(of_key[0])
            assert of_key == EXPECTED[key][start : start + len(of_key)]
    results.clear()
    async with program().start("slow", restore_from="latest") as job:
        await job.result()
    assert results == EXPECTED


async def test_a_slow_consumer_holds_up_aligned_checkpoints_only() -> None:
    """At 5 % of its producer: one has to wait for the queue, the other for a record."""
    taken: dict[bool, float] = {}
    for unaligned in (False, True):
        results: dict[int, list[int]] = {}
        env = environment(None, unaligned=unaligned)
        remembered(env, FailsAt(), results, pause=1.0)
        async with env.start() as job:
            while not results:
                await asyncio.sleep(0.1)
            loop = asyncio.get_running_loop()
            started = loop.time()
            await job.trigger_checkpoint()
            taken[unaligned] = loop.time() - started
            await job.cancel()
    assert taken[True] < 2 < 5 < taken[False]


async def test_the_order_of_each_producer_is_kept_when_several_feed_a_task() -> None:
    results: dict[int, list[int]] = {}
    env = environment(aligned_timeout=am.seconds(0.12))
    even, odd = (
        env.from_collection(list(range(first, COUNT, 2))).set_parallelism(1)
        for first in (0, 1)
    )
    fails = FailsAt(*random.Random("two").sample(range(100, COUNT), 6))
    (
        even.union(odd)
        .key_by(lambda value: value % KEYS)
        .process(Remembers(fails, results))
        .sink_to(lambda value: None)
    )
    async with env.start() as job:
        await job.result()
        assert job.restarts == 6
    assert {key: sorted(values) for key, values in results.items()} == EXPECTED
    for values in results.values():
        for rest in (0, 1):
            of_one = [value for value in values if value % 2 == rest]
            assert of_one == sorted(of_one)


@pytest.mark.parametrize("edge", ["rescale", "rebalance", "broadcast", "shuffle"])
async def test_edges_of_every_kind_lose_nothing(edge: str) -> None:
    """Where barriers must not overtake they align, and overtake again behind it."""
    results: dict[int, list[int]] = {}
    env = environment()
    source = env.from_collection(list(range(COUNT))).set_parallelism(1)
    between = (
        getattr(source, edge)()
        .map(lambda value: value)
        .set_parallelism(1 if edge == "broadcast" else 2)
    )
    fails = FailsAt(*random.Random(edge).sample(range(100, COUNT), 4))
    (
        between.key_by(lambda value: value % KEYS)
        .process(Remembers(fails, results))
        .sink_to(lambda value: None)
    )
    async with env.start() as job:
        await job.result()
        # Two that stumble at once are one failure.
        assert job.restarts >= 2
    assert {key: sorted(values) for key, values in results.items()} == EXPECTED


class Opaque:
    """Has no form as bytes."""

    def __init__(self, value: int) -> None:
        self.value = value


async def test_records_that_cannot_be_kept_are_not_overtaken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results: dict[int, list[int]] = {}
    fails = FailsAt(700, 1_500)

    class Opens(am.KeyedProcessFunction):
        def open(self, context: Any) -> None:
            self.inner = Remembers(fails, results, pause=0.02)
            self.inner.open(context)

        async def process_element(self, value: Any, context: Any, out: Any) -> None:
            await self.inner.process_element(value.value, context, out)

    env = environment()
    (
        env.from_collection(list(range(COUNT)))
        .set_parallelism(1)
        .map(Opaque)
        .set_parallelism(1)
        .key_by(lambda one: one.value % KEYS)
        .process(Opens())
        .sink_to(lambda value: None)
    )
    async with env.start() as job:
        await job.result()
        assert job.restarts == 2
        assert job.checkpoints()
    assert results == EXPECTED
    assert "cannot be serialized" in caplog.text


@pytest.mark.parametrize("parallelism", [1, 3, 5])
async def test_what_was_in_flight_is_spread_over_another_number_of_subtasks(
    tmp_path: Path, parallelism: int
) -> None:
    def program(parallelism: int) -> Any:
        env = environment(
            None,
            directory=tmp_path,
            retention=am.Retention.ON_CANCELLATION,
            parallelism=parallelism,
        )
        env.configure(restart=am.restart.none())
        remembered(env, FailsAt(), results, pause=0.2)
        return env

    results: dict[int, list[int]] = {}
    async with program(2).start("one") as job:
        while not results:
            await asyncio.sleep(0.05)
        taken = await job.trigger_checkpoint()
        await job.cancel()
    assert any(kept_in_flight(taken.place).values())
    results.clear()
    await program(parallelism).execute("one", restore_from="latest")
    assert results == EXPECTED


@pytest.mark.parametrize(
    "edge", ["rebalance", "shuffle", "global_", "partition_custom"]
)
async def test_every_kind_of_exchange_spreads_what_was_in_flight(
    tmp_path: Path, edge: str
) -> None:
    seen: set[int] = set()

    async def slow(value: int) -> int:
        if value % 50 == 0:
            await asyncio.sleep(0.2)
        seen.add(value)
        return value

    def program(parallelism: int) -> Any:
        env = environment(
            None,
            directory=tmp_path,
            retention=am.Retention.ON_CANCELLATION,
            parallelism=parallelism,
        )
        numbers = env.from_collection(list(range(COUNT))).set_parallelism(1)
        options = ()
        if edge == "partition_custom":
            options = (lambda key, count: key % count, lambda value: value)
        spread = getattr(numbers, edge)(*options)
        spread.map(slow).uid("slow").disable_chaining().sink_to(lambda value: None)
        return env

    async with program(2).start("one") as job:
        while not seen:
            await asyncio.sleep(0.05)
        taken = await job.trigger_checkpoint()
        await job.cancel()
    before = set(seen)
    assert sum(map(len, kept_in_flight(taken.place).values())) > 100
    await program(3).execute("one", restore_from="latest")
    assert seen == set(range(COUNT)) > before


async def test_records_in_flight_on_an_exchange_that_is_gone_are_refused(
    tmp_path: Path,
) -> None:
    def program(*, has_keys: bool) -> Any:
        env = environment(
            None, directory=tmp_path, retention=am.Retention.ON_CANCELLATION
        )
        env.configure(restart=am.restart.none())
        numbers = env.from_collection(list(range(COUNT))).set_parallelism(1).uid("in")
        if has_keys:
            slow = Remembers(FailsAt(), results, 0.2)
            found = numbers.key_by(lambda value: value % KEYS).process(slow)
        else:
            found = numbers.map(lambda value: value).set_parallelism(1)
        found.uid("out").sink_to(lambda value: None)
        return env

    results: dict[int, list[int]] = {}
    async with program(has_keys=True).start("one") as job:
        while not results:
            await asyncio.sleep(0.05)
        await job.trigger_checkpoint()
        await job.cancel()
    with pytest.raises(JobFailedError, match="take a savepoint") as caught:
        await program(has_keys=False).execute("one", restore_from="latest")
    assert isinstance(caught.value.__cause__, StateError)


def test_explain_says_on_which_edges_barriers_never_overtake() -> None:
    env = environment()
    numbers = env.from_collection([1]).set_parallelism(1)
    numbers.broadcast().map(lambda value: value).key_by(lambda value: value).reduce(
        max
    ).sink_to(print)
    text = env.explain()
    assert text.count("barriers never overtake here") == 1
    assert "all consumers get the same records" in text
    env.enable_checkpointing(None)
    assert "overtake" not in env.explain()


@pytest.mark.parametrize(
    "settings",
    [{"unaligned": False}, {}, {"aligned_timeout": am.seconds(0.05)}],
    ids=["aligned", "unaligned", "timed"],
)
async def test_mb_103_checkpoints_go_on_when_some_channels_have_ended(
    settings: dict[str, Any],
) -> None:
    """MB-103."""
    results: dict[int, list[int]] = {}
    env = environment(None, **settings)
    short, long = (
        env.from_collection(values).set_parallelism(1)
        for values in (list(range(14)), list(range(14, COUNT)))
    )
    fails = FailsAt()
    (
        short.union(long)
        .key_by(lambda value: value % KEYS)
        .process(Remembers(fails, results))
        .sink_to(lambda value: None)
    )
    async with env.start() as job:
        while sum(map(len, results.values())) < 300:
            await asyncio.sleep(0.05)
        for _ in range(3 if settings.get("unaligned", True) else 1):
            await job.trigger_checkpoint()
        # An aligned one has waited until all was processed.
        fails.waiting += [COUNT - 1]
        await job.result()
        assert job.restarts == int(settings.get("unaligned", True))
    assert {key: sorted(values) for key, values in results.items()} == EXPECTED
