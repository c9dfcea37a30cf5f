"""As-of joins: each record meets the version that was valid at its event time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import TimestampError, WrongTypeError
from aiomailbox.operators.joins.keyed import ProcessJoinFunction
from aiomailbox.operators.joins.lookup import AsOfJoinOperator
from aiomailbox.records.events import OutputTag, StreamRecord, Watermark
from aiomailbox.testing import TwoInputHarness

LATE = OutputTag("late")


def first(record: Any) -> Any:
    return record[0]


def no_key(record: Any) -> int:
    return 0


def names(left: Any, right: Any) -> Any:
    return left[1], None if right is None else right[1]


class Joined:
    """Feeds records of one key, and restarts the operator after each step if asked."""

    def __init__(self, *, restarts: bool = False, **options: Any) -> None:
        self._options = options
        self._restarts = restarts
        self._watermark: int | None = None
        self.results: list[tuple[Any, int | None]] = []
        self.harness = self._open(None)

    def _open(self, state: Any) -> TwoInputHarness:
        operator = AsOfJoinOperator(first, first, names, **self._options)
        harness = TwoInputHarness(operator, keyed=True)
        if state is not None:
            harness.restore(state)
        harness.open()
        if self._watermark is not None:
            harness.first.process_watermark(self._watermark)
            harness.second.process_watermark(self._watermark)
        return harness

    def _done(self) -> None:
        self.results += [
            (element.value, element.timestamp)
            for element in self.harness.take_output()
            if isinstance(element, StreamRecord)
        ]
        if self._restarts:
            self.restart()

    def restart(self) -> None:
        state = self.harness.snapshot()
        self.harness.close()
        self.harness = self._open(state)

    def left(self, name: str, stamp: int) -> None:
        self.harness.first.process_element(("k", name), stamp)
        self._done()

    def right(self, name: str, stamp: int) -> None:
        self.harness.second.process_element(("k", name), stamp)
        self._done()

    def watermark(self, timestamp: int) -> None:
        self.harness.first.process_watermark(timestamp)
        self.harness.second.process_watermark(timestamp)
        self._watermark = timestamp
        self._done()

    def versions(self) -> list[int]:
        self.harness.context.keyed_state.set_current_key("k")
        operator: Any = self.harness.operator
        return sorted(operator._right.buffer.keys())


@pytest.mark.parametrize("restarts", [False, True])
def test_a_record_meets_the_newest_version_that_is_not_younger(restarts: bool) -> None:
    joined = Joined(restarts=restarts)
    joined.left("b", 25)
    joined.left("a", 20)
    joined.right("v30", 30)
    joined.right("v20", 20)
    joined.right("v10", 10)
    joined.left("before", 9)
    assert joined.results == []
    joined.watermark(24)
    assert joined.results == [(("a", "v20"), 20)]
    joined.watermark(40)
    assert joined.results[1:] == [(("b", "v20"), 25)]


def test_a_record_without_a_version_stays_if_that_is_wanted() -> None:
    joined = Joined(keep_unmatched=True)
    joined.left("a", 5)
    joined.right("v", 6)
    joined.watermark(10)
    assert joined.results == [(("a", None), 5)]


def test_records_of_one_time_keep_their_order() -> None:
    joined = Joined()
    joined.right("v", 1)
    for name in "cab":
        joined.left(name, 2)
    joined.watermark(2)
    assert [value[0] for value, _ in joined.results] == ["c", "a", "b"]


def test_of_versions_with_one_time_the_last_counts() -> None:
    joined = Joined()
    joined.right("old", 1)
    joined.right("new", 1)
    joined.left("a", 1)
    joined.watermark(1)
    assert joined.results == [(("a", "new"), 1)]


@pytest.mark.parametrize("restarts", [False, True])
def test_the_watermark_leaves_one_version_of_the_past(restarts: bool) -> None:
    joined = Joined(restarts=restarts)
    for stamp in (10, 20, 30, 40):
        joined.right(f"v{stamp}", stamp)
    joined.watermark(9)
    assert joined.versions() == [10, 20, 30, 40]
    joined.watermark(35)
    assert joined.versions() == [30, 40]
    joined.left("a", 36)
    joined.watermark(100)
    assert joined.versions() == [40]
    assert joined.results == [(("a", "v30"), 36)]


def test_a_late_record_goes_to_the_side_output_or_is_counted() -> None:
    joined = Joined(left_late=LATE)
    joined.right("v", 1)
    joined.watermark(5)
    joined.left("late", 5)
    joined.left("in time", 6)
    assert joined.harness.side_output(LATE) == [StreamRecord(("k", "late"), 5)]
    joined.watermark(6)
    assert joined.results == [(("in time", "v"), 6)]
    dropping = Joined()
    dropping.watermark(5)
    dropping.left("late", 5)
    assert (
        dropping.harness.context.metrics.counter("num_late_records_dropped").value == 1
    )


def test_a_late_version_counts_for_records_still_to_come() -> None:
    joined = Joined()
    joined.right("v10", 10)
    joined.watermark(20)
    joined.right("v15", 15)
    joined.right("v5", 5)
    assert joined.versions() == [10, 15]
    joined.left("a", 21)
    joined.watermark(21)
    assert joined.results == [(("a", "v15"), 21)]
    assert joined.versions() == [15]


@given(
    st.lists(
        st.tuples(st.sampled_from(["left", "right", "watermark"]), st.integers(0, 9)),
        max_size=40,
    )
)
def test_results_are_those_of_a_batch_join(steps: list[tuple[str, int]]) -> None:
    """Records come up to 9 ms out of order; watermarks promise no more than that."""
    joined = Joined(restarts=True, keep_unmatched=True)
    lefts: list[tuple[int, str]] = []
    versions: dict[int, str] = {}
    now = 100
    for number, (kind, amount) in enumerate(steps):
        if kind == "watermark":
            now += amount
            joined.watermark(now - 10)
        elif kind == "left":
            lefts.append((now - amount, f"l{number}"))
            joined.left(f"l{number}", now - amount)
        else:
            versions[now - amount] = f"v{number}"
            joined.right(f"v{number}", now - amount)
    joined.watermark(1_000)
    lefts.sort(key=lambda item: item[0])
    batch = []
    for stamp, name in lefts:
        valid = max((time for time in versions if time <= stamp), default=None)
        batch.append(((name, None if valid is None else versions[valid]), stamp))
    assert joined.results == batch
    snapshot: Any = joined.harness.snapshot()
    assert not any(timers.event for timers in snapshot.timers.values())
    assert len(joined.versions()) <= 1
    operator: Any = joined.harness.operator
    assert operator._left.buffer.is_empty()


@pytest.mark.real_time
def test_many_versions_of_a_key_are_not_all_looked_at_for_each_record() -> None:
    """It would take a hundred times the time for ten times as many."""

    def joined_s(count: int) -> float:
        rows = list(range(1, count + 1))
        with TwoInputHarness(AsOfJoinOperator(no_key, no_key), keyed=True) as harness:
            began = time.thread_time()
            harness.second.process_run(rows, rows)
            harness.first.process_run(rows, rows)
            for one in (harness.first, harness.second):
                one.process_watermark(count)
            seconds = time.thread_time() - began
            assert harness.values == [(row, row) for row in rows]
        return seconds

    # The least of some: others may use the processor and its caches meanwhile.
    few_s = min(joined_s(2_000) for _ in range(3))
    assert min(joined_s(20_000) for _ in range(2)) < 40 * few_s


def test_results_come_before_their_watermark_and_keys_apart() -> None:
    operator = AsOfJoinOperator(first, first, names)
    with TwoInputHarness(operator, keyed=True) as harness:
        harness.second.process_run([("a", "va"), ("b", None)], [1, 1])
        harness.first.process_run([("b", 1), ("a", 2), ("c", 3)], [2, 3, 3])
        harness.second.process_watermark(5)
        assert harness.output == []
        harness.first.process_watermark(5)
        assert harness.output == [
            StreamRecord((1, None), 2),
            StreamRecord((2, "va"), 3),
            Watermark(5),
        ]


class Slow(ProcessJoinFunction):
    """Waits before it emits."""

    async def process_element(
        self, left: Any, right: Any, context: Any, out: Any
    ) -> None:
        await asyncio.sleep(1)
        out.collect((left[1], right, context.right_timestamp))


async def test_an_async_function_holds_the_watermark_back() -> None:
    operator = AsOfJoinOperator(first, first, Slow(), keep_unmatched=True)
    async with TwoInputHarness(operator, keyed=True) as harness:
        run = harness.run
        await run(harness.first.process_run, [("a", 1), ("a", 2)], [1, 2])
        await run(harness.second.process_watermark, 5)
        await run(harness.first.process_watermark, 5)
        assert harness.output == [
            StreamRecord((1, None, None), 1),
            StreamRecord((2, None, None), 2),
            Watermark(5),
        ]


def test_wrong_arguments_and_records_without_time_are_refused() -> None:
    with pytest.raises(WrongTypeError, match="left_late"):
        AsOfJoinOperator(first, first, left_late="late")  # type: ignore[arg-type]
    operator = AsOfJoinOperator(first, first)
    with (
        TwoInputHarness(operator, keyed=True) as harness,
        pytest.raises(TimestampError, match="right record"),
    ):
        harness.second.process_element(("a", 1))
