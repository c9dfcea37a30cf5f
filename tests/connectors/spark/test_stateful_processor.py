"""A class written for Spark's transformWithState runs here unchanged."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import aiomailbox as am
from aiomailbox.connectors.spark.transform_with_state import TransformWithStateOperator
from aiomailbox.errors import (
    InvalidArgumentError,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.state.backends import HeapStateBackend, RocksDBStateBackend
from aiomailbox.testing import OneInputHarness


class Sessions(StatefulProcessor):
    """Collects a user's pages and closes the session ten after the last one."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")
        self.pages = handle.getListState("pages", "page string")
        self.visits = handle.getMapState("visits", "page string", "n long")
        self.is_closed = False

    def handleInputRows(  # noqa: N802 -- Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        (count,) = self.count.get() if self.count.exists() else (0,)
        for row in rows:
            count += 1
            self.pages.appendValue((row.page,))
            (seen,) = self.visits.getValue((row.page,)) or (0,)
            self.visits.updateValue((row.page,), (seen + 1,))
            for timer in self.handle.listTimers():
                self.handle.deleteTimer(timer)
            self.handle.registerTimer(row.time + 10)
        self.count.update((count,))
        return iter([])

    def handleExpiredTimer(  # noqa: N802 -- Spark's name
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        yield Row(
            user=key[0],
            ended=expiredTimerInfo.getExpiryTimeInMs(),
            watermark=timerValues.getCurrentWatermarkInMs(),
            pages=[page for (page,) in self.pages.get()],
            visits={page: n for (page,), (n,) in self.visits.iterator()},
            timers=list(self.handle.listTimers()),
        )
        self.pages.clear()
        self.visits.clear()
        self.count.clear()

    def close(self) -> None:
        self.is_closed = True


ROWS = [
    Row(user="ann", page="/", time=1),
    Row(user="bob", page="/", time=2),
    Row(user="ann", page="/buy", time=5),
    Row(user="ann", page="/", time=9),
    Row(user="bob", page="/help", time=30),
]


def rows_and_watermarks(harness: Any, rows: list[Row]) -> None:
    for row in rows:
        harness.process_element(row, row.time)
        harness.process_watermark(row.time - 1)


def sessions() -> TransformWithStateOperator:
    return TransformWithStateOperator("user", Sessions(), time_mode="EventTime")


def test_state_and_timers_are_those_of_the_key() -> None:
    with OneInputHarness(sessions(), keyed=True) as harness:
        rows_and_watermarks(harness, ROWS)
        harness.process_watermark(100)
        ann, bob = harness.values
    assert ann.asDict() == {
        "user": "ann", "ended": 19, "watermark": 29, "pages": ["/", "/buy", "/"],
        "visits": {"/": 2, "/buy": 1}, "timers": [19],
    }  # fmt: skip
    assert (bob.user, bob.ended, bob.pages) == ("bob", 40, ["/", "/help"])


@pytest.mark.parametrize("cut", range(len(ROWS) + 1))
def test_cut_by_a_snapshot_the_results_are_the_same(cut: int) -> None:
    with OneInputHarness(sessions(), keyed=True) as whole:
        rows_and_watermarks(whole, ROWS)
        whole.process_watermark(100)
    with OneInputHarness(sessions(), keyed=True) as first:
        rows_and_watermarks(first, ROWS[:cut])
        snapshot = pickle.loads(pickle.dumps(first.snapshot()))
    second = OneInputHarness(sessions(), keyed=True)
    second.restore(snapshot)
    with second:
        rows_and_watermarks(second, ROWS[cut:])
        second.process_watermark(100)
    assert first.values + second.values == whole.values


def test_the_processor_is_closed_with_the_operator() -> None:
    operator = sessions()
    with OneInputHarness(operator, keyed=True):
        assert not operator.processor.is_closed
    assert operator.processor.is_closed


async def test_it_runs_as_a_stream() -> None:
    env = am.StreamExecutionEnvironment()
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    rows = env.from_collection(ROWS).assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda row, _: row.time)
    )
    ended = rows.key_by("user").transform_with_state(Sessions(), time_mode="EventTime")
    found = await ended.collect()
    assert sorted((row.user, row.ended) for row in found) == [
        ("ann", 19),
        ("bob", 40),
    ]


class Base(StatefulProcessor):
    """Does nothing."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def handleInputRows(  # noqa: N802 -- Spark's name
        self,
        key: Any,
        rows: Any,
        timerValues: Any,  # noqa: N803
    ) -> Any:
        return iter([])

    def close(self) -> None: ...


def test_rows_of_a_run_come_key_by_key_with_the_time_that_it_is() -> None:
    class Show(Base):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            now = timerValues.getCurrentProcessingTimeInMs()
            yield (key, list(rows), now, timerValues.getCurrentWatermarkInMs())

    for mode, times in {"None": (-1, -1), "ProcessingTime": (50, 0)}.items():
        operator = TransformWithStateOperator(str.lower, Show(), time_mode=mode)
        with OneInputHarness(operator, keyed=True) as harness:
            harness.set_processing_time(50)
            harness.process_run(["a", "b", "A"])
            assert harness.values == [
                (("a",), ["a", "A"], *times), (("b",), ["b"], *times),
            ]  # fmt: skip


def test_timers_in_processing_time_fire_when_it_has_come() -> None:
    class Remind(Base):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            for _ in rows:
                now = timerValues.getCurrentProcessingTimeInMs()
                self.handle.registerTimer(now + 100)
            return iter([])

        def handleExpiredTimer(  # noqa: N802 -- Spark's name
            self,
            key: Any,
            timerValues: Any,  # noqa: N803
            expiredTimerInfo: Any,  # noqa: N803
        ) -> Any:
            return iter([(key, expiredTimerInfo.getExpiryTimeInMs())])

    operator = TransformWithStateOperator(str, Remind(), time_mode="processing_time")
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_element("a")
        harness.set_processing_time(99)
        assert harness.values == []
        harness.set_processing_time(101)
        assert harness.values == [(("a",), 100)]


def test_state_lives_as_long_as_its_ttl() -> None:
    class Short(Base):
        def init(self, handle: Any) -> None:
            self.last = handle.getValueState("last", "v string", ttlDurationMs=100)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            (row,) = rows
            yield (self.last.get(), row)
            self.last.update((row,))

    operator = TransformWithStateOperator(str.lower, Short())
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_element("a")
        harness.set_processing_time(50)
        harness.process_element("A")
        harness.set_processing_time(500)
        harness.process_element("a")
        assert harness.values == [(None, "a"), (("a",), "A"), (None, "a")]


@pytest.mark.parametrize("backend", [HeapStateBackend, RocksDBStateBackend])
def test_a_state_can_be_deleted_for_all_keys_in_init(backend: Any) -> None:
    class First(Base):
        def init(self, handle: Any) -> None:
            self.old = handle.getListState("old", "v string")
            self.kept = handle.getListState("kept", "v string")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            yield (list(self.old.get()), list(self.kept.get()))
            for row in rows:
                self.old.appendValue((row,))
                self.kept.appendList([(row,)])

    class Second(First):
        def init(self, handle: Any) -> None:
            handle.deleteIfExists("old")
            handle.deleteIfExists("never was")
            super().init(handle)

    with OneInputHarness(
        TransformWithStateOperator(str.lower, First()), keyed=True
    ) as first:
        first.process_element("a")
        snapshot = first.snapshot()
    second = OneInputHarness(
        TransformWithStateOperator(str.lower, Second()),
        keyed=True,
        state_backend=backend(),
    )
    second.restore(snapshot)
    with second:
        second.process_element("A")
        assert second.values == [([], [("a",)])]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda self: self.handle.registerTimer(5), "has no timers"),
        (lambda self: self.handle.getValueState("v").update("text"), "holds tuples"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(wrong: Any, message: str) -> None:
    class Wrong(Base):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            wrong(self)

    operator = TransformWithStateOperator(str, Wrong())
    with (
        OneInputHarness(operator, keyed=True) as harness,
        pytest.raises(UserFunctionError, match=message),
    ):
        harness.process_element("a")


def test_wrong_arguments_are_refused_when_they_are_written() -> None:
    keyed = am.StreamExecutionEnvironment().from_collection(["a"]).key_by(str)
    with pytest.raises(WrongTypeError, match="is a class"):
        keyed.transform_with_state(Sessions)
    with pytest.raises(WrongTypeError, match="no method init"):
        keyed.transform_with_state(object())
    with pytest.raises(InvalidArgumentError, match="time_mode"):
        keyed.transform_with_state(Sessions(), time_mode="noon")


def test_the_factory_can_be_pickled() -> None:
    factory = partial(TransformWithStateOperator, "user", Sessions())
    assert pickle.loads(pickle.dumps(factory))().time_mode == "none"
