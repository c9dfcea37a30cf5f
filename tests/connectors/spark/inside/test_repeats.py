"""What a stage emits follows from its input: a repeated task repeats it, to the byte."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import aiomailbox as am
from tests.connectors.spark.inside.stage_runs import StageRuns, ranges

pytestmark = pytest.mark.real_time

COLUMNS = pa.schema([("id", pa.int64()), ("value", pa.int64())])


async def dawdle(row: Any) -> Any:
    """Return the row after a time that nobody can foresee."""
    await asyncio.sleep(random.SystemRandom().random() / 200)
    return row


def numbered(number: int) -> Any:
    """Return what gives each record its place, so that the order shows."""
    seen = iter(range(10_000_000))

    def function(row: Any) -> dict[str, int]:
        return {"id": row.id, "value": 10_000_000 * number + next(seen)}

    return function


@pytest.mark.parametrize("ordered", [True, False, "key"])
def test_calls_that_end_in_any_order_give_the_same_results_in_each_attempt(
    ordered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @am.pipeline
    def pipeline(rows: Any) -> Any:
        key = "id" if ordered == "key" else None
        called = rows.map_async(dawdle, concurrency=64, ordered=ordered, key=key)
        dealt = called.rebalance().map(lambda row: row)
        again = dealt.map_async(dawdle, concurrency=64, ordered=ordered, key=key)
        return again.rebalance().map(numbered(1))

    stages = StageRuns(pipeline, COLUMNS, monkeypatch)
    partitions = ranges((0, 1500), (5000, 6700))
    first = stages.results(partitions)
    assert sum(map(len, first)) == 3200
    assert stages.results(partitions) == first


class Patient:
    """Ends the call of the first row when the last one is called."""

    def open(self, context: Any) -> None:
        self.is_last = asyncio.Event()

    async def __call__(self, row: Any) -> Any:
        if row.id == 2999:
            self.is_last.set()
        if row.id == 0:
            await self.is_last.wait()
        return row


def test_a_call_that_hangs_in_the_last_stage_holds_no_other_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor its result, however many places there are."""

    @am.pipeline
    def pipeline(rows: Any) -> Any:
        called = rows.map_async(Patient(), concurrency=8, ordered=False)
        return called.map(lambda row: {"id": row.id, "value": 0})

    (rows,) = StageRuns(pipeline, COLUMNS, monkeypatch).results(ranges((0, 3000)))
    assert sorted(row["id"] for row in rows) == [*range(3000)]
    assert rows.index({"id": 0, "value": 0}) > 2900


def timed(rows: Any) -> Any:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    return rows.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda row: row.id)
    )


def test_producers_are_interleaved_in_the_same_way_in_each_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row of the shuffle ends at the same record, however long the runs were."""

    @am.pipeline
    def pipeline(rows: Any) -> Any:
        called = timed(rows).map_async(dawdle, concurrency=64, ordered=False)
        return called.rebalance().map(numbered(1))

    stages = StageRuns(pipeline, COLUMNS, monkeypatch)
    # A watermark follows each batch.
    partitions = [
        [
            batch
            for start in range(0, 4000, 100)
            for [batch] in ranges((start, start + 100))
        ]
        for _ in range(2)
    ]
    first = stages.results(partitions)
    assert sum(map(len, first)) == 8000
    assert stages.results(partitions) == first
    assert stages.results(partitions) == first


def test_event_time_comes_to_consumers_at_the_same_records_in_each_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Late records are the same ones, though calls before took another time."""

    @am.pipeline
    def pipeline(rows: Any) -> Any:
        called = timed(rows).map_async(dawdle, concurrency=64, ordered=False)
        windows = called.key_by(lambda row: row.id % 3).window(
            am.TumblingEventTimeWindows.of(am.millis(100))
        )
        merged = windows.reduce(lambda one, other: one).rebalance()
        return merged.map(numbered(1))

    stages = StageRuns(pipeline, COLUMNS, monkeypatch)
    # The second partition is behind the first: what is late hangs on their interleaving.
    partitions = ranges((0, 3000), (0, 1000))
    first = stages.results(partitions)
    assert stages.results(partitions) == first


def test_a_speculative_attempt_beside_the_first_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both may call; who comes later reads what either has finished."""
    calls = tmp_path / "calls"
    calls.touch()
    place = str(calls)

    @am.pipeline
    def paying(rows: Any) -> Any:
        async def pay(row: Any) -> dict[str, int]:
            with Path(place).open("a") as file:
                file.write(f"{row.id}\n")
            await asyncio.sleep(0.001)
            return {"id": row.id, "value": 2 * row.id}

        return rows.map_async(pay, concurrency=8, journal=True, id="id").uid("pay")

    stages = StageRuns(paying, COLUMNS, monkeypatch, str(tmp_path / "journal"))
    [batches] = ranges((0, 2000))
    expected = [{"id": n, "value": 2 * n} for n in range(2000)]

    def rows_of(output: Any) -> list[Any]:
        return [row for batch in output for row in batch.to_pylist()]

    first = stages.run(0, 0, batches)
    begun = [next(first)]
    assert rows_of(stages.run(0, 0, batches, attempt=1)) == expected
    assert rows_of([*begun, *first]) == expected
    made = calls.read_text().split()
    assert {int(each) for each in made} == {*range(2000)}
    assert rows_of(stages.run(0, 0, batches, attempt=2)) == expected
    assert calls.read_text().split() == made
