"""Functions of whole batches, in every form, sync, in a thread and async."""

from __future__ import annotations

import asyncio
import threading
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import aiomailbox as am
from aiomailbox.errors import RecordTypeError

TABLE = pa.table({"n": list(range(3000)), "ms": [i * 10 for i in range(3000)]})
TIMES = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ms")


def by_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    assert isinstance(batch, pa.RecordBatch)
    return pa.record_batch({"n": pc.multiply(batch["n"], 2)})


def by_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([by_arrow(batch)])


def by_pandas(frame: Any) -> Any:
    return (frame[["n"]] * 2)[["n"]]


def by_numpy(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"n": columns["n"] * 2}


def by_polars(frame: Any) -> Any:
    return frame.select(frame["n"] * 2)


@pytest.mark.parametrize(
    ("form", "function"),
    [
        ("arrow", by_arrow),
        ("arrow", by_table),
        ("pandas", by_pandas),
        ("numpy", by_numpy),
        ("polars", by_polars),
    ],
)
@pytest.mark.parametrize("as_rows", [False, True])
async def test_each_form_goes_in_and_out(
    form: Any, function: Any, as_rows: bool
) -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(TABLE, TIMES)
    if as_rows:
        stream = stream.map(lambda record: record)
    doubled = stream.map_batches(function, form=form)
    doubled = doubled.filter(pc.field("n") < 10)
    assert [record.n for record in await doubled.collect()] == [0, 2, 4, 6, 8]
    doubled.sink_to(print)
    assert ("rows: map makes them" in env.explain()) is as_rows


async def test_an_async_function_is_done_before_the_watermark_that_follows() -> None:
    async def later(batch: pa.RecordBatch) -> pa.RecordBatch:
        await asyncio.sleep(1)
        return batch

    env = am.StreamExecutionEnvironment()
    windows = (
        env.from_arrow(TABLE, TIMES)
        .map_batches(later)
        .window_all(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .aggregate(am.count())
    )
    assert await windows.collect() == [100] * 30


@pytest.mark.real_time
async def test_a_function_in_a_thread_leaves_the_loop_alone() -> None:
    seen: set[int] = set()

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.add(threading.get_ident())
        return batch

    env = am.StreamExecutionEnvironment()
    assert (
        await env.from_arrow(TABLE).map_batches(work, run_in="thread").count() == 3000
    )
    assert threading.get_ident() not in seen


async def test_another_number_of_records_needs_event_times() -> None:
    env = am.StreamExecutionEnvironment()

    def half(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.equal(pc.bit_wise_and(batch["n"], 1), 0))

    untimed = env.from_arrow(TABLE).map_batches(half)
    assert await untimed.count() == 1500
    timed = env.from_arrow(TABLE, TIMES).map_batches(half, timestamps="ms")
    windows = timed.window_all(am.TumblingEventTimeWindows.of(am.seconds(1)))
    assert await windows.aggregate(am.count()).collect() == [50] * 30
    with pytest.raises(am.JobFailedError) as caught:
        await env.from_arrow(TABLE, TIMES).map_batches(half).collect()
    text = "".join(map(str, [caught.value, caught.value.__cause__]))
    text += "".join(getattr(caught.value.__cause__, "__notes__", []))
    assert "event times are unknown" in text
    assert "batch 1" in text
    assert "half" in text


async def test_what_is_no_batch_is_refused_and_errors_name_the_users_line() -> None:
    env = am.StreamExecutionEnvironment()
    with pytest.raises(am.JobFailedError, match="returned int") as caught:
        await env.from_arrow(TABLE).map_batches(lambda batch: 7).collect()
    assert "'map_batches'" in "".join(caught.value.__cause__.__notes__)

    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no")

    with pytest.raises(am.JobFailedError, match=r"test_map_batches\.py"):
        await env.from_arrow(TABLE).map_batches(broken).collect()


def test_wrong_arguments_are_refused_where_they_are_written() -> None:
    stream = am.StreamExecutionEnvironment().from_arrow(TABLE)
    with pytest.raises(am.InvalidArgumentError, match="unknown"):
        stream.map_batches(by_arrow, form="excel")  # type: ignore[arg-type]

    async def later(batch: Any) -> Any:
        return batch

    with pytest.raises(am.InvalidArgumentError, match=r"run_in.*is asynchronous"):
        stream.map_batches(later, run_in="thread")


KEPT = {
    "whole": pa.array([2**62 + 1, None]),
    "at": pa.array([0, None], pa.timestamp("us", "UTC")),
    "money": pa.array([Decimal("1.50"), None]),
    "word": pa.array(["a", None]),
    "marks": pa.array([[1], None]),
    "pairs": pa.array([[("x", 1)], None], pa.map_(pa.string(), pa.int64())),
}


async def test_arrays_that_are_returned_as_they_were_are_the_columns_they_were() -> (
    None
):
    table = pa.table({"n": [1.0, 2.0], **KEPT})

    def twice(columns: dict[str, Any]) -> dict[str, Any]:
        return {**columns, "n": columns["n"] * 2}

    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(table).map_batches(twice, form="numpy")
    found = [batch async for batch in stream.arrow_batches()]
    expected = table.set_column(0, "n", pa.array([2.0, 4.0]))
    assert pa.Table.from_batches(found).equals(expected)


@pytest.mark.parametrize("run_in", ["loop", "thread"])
async def test_the_dict_of_arrays_may_be_changed_and_returned(run_in: Any) -> None:
    def change(columns: dict[str, Any]) -> dict[str, Any]:
        columns["n"] = columns["n"] * 2
        columns["new"] = columns.pop("old")
        columns["more"] = columns["n"] + 1
        return columns

    table = pa.table({"n": [1.0, 2.0], "old": ["a", None]})
    env = am.StreamExecutionEnvironment()
    changed = env.from_arrow(table, records=dict).map_batches(
        change, form="numpy", run_in=run_in
    )
    assert await changed.collect() == [
        {"n": 2.0, "new": "a", "more": 3.0},
        {"n": 4.0, "new": None, "more": 5.0},
    ]


async def test_an_array_cannot_be_changed_in_place() -> None:
    def change(columns: dict[str, Any]) -> dict[str, Any]:
        columns["whole"][0] = 7
        return columns

    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(pa.table(KEPT)).map_batches(change, form="numpy")
    with pytest.raises(am.JobFailedError, match="read-only"):
        await stream.collect()


@pytest.mark.parametrize(
    ("form", "column", "function"),
    [
        (
            "pandas",
            pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", None])),
            lambda batch: batch,
        ),
        ("numpy", pa.array([1, 2]), lambda batch: {"n": np.array([1, "a"], object)}),
        ("pandas", KEPT["pairs"], lambda batch: batch),
    ],
)
async def test_what_a_form_cannot_hold_names_operator_and_batch(
    form: Any, column: Any, function: Any
) -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(pa.table({"n": column})).map_batches(function, form=form)
    with pytest.raises(am.JobFailedError) as caught:
        await stream.collect()
    error = caught.value.__cause__
    assert isinstance(error, RecordTypeError)
    (note,) = [each for each in error.__notes__ if "for batch 1 of 2 records" in each]
    assert "operator 'map_batches'" in note


def filled_again(columns: dict[str, Any], kept: np.ndarray) -> dict[str, Any]:
    doubled = kept[: len(columns["n"])]
    return {"n": np.multiply(columns["n"], 2, out=doubled)}


def filled_behind_a_view(columns: dict[str, Any], kept: np.ndarray) -> dict[str, Any]:
    doubled = filled_again(columns, kept)["n"][:]
    doubled.flags.writeable = False
    return {"n": doubled}


def filled_frame(frame: Any, kept: np.ndarray) -> Any:
    doubled = filled_again({"n": frame["n"].to_numpy()}, kept)["n"]
    return type(frame)({"n": doubled}, copy=False)


@pytest.mark.parametrize("run_in", ["loop", "thread"])
@pytest.mark.parametrize(
    ("form", "function"),
    [
        ("numpy", filled_again),
        ("numpy", filled_behind_a_view),
        ("pandas", filled_frame),
    ],
)
async def test_an_array_may_be_filled_again_for_the_next_batch(
    form: Any, function: Any, run_in: Any
) -> None:
    kept = np.empty(3000)
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(TABLE.to_batches(100)).map_batches(
        lambda given: function(given, kept), form=form, run_in=run_in
    )
    batches = [batch async for batch in stream.disable_chaining().arrow_batches()]
    found = pa.Table.from_batches(batches)["n"].to_pylist()
    assert found == [2.0 * n for n in range(3000)]


@pytest.mark.parametrize("run_in", ["loop", "thread"])
async def test_batches_that_are_records_are_processed_one_by_one(run_in: Any) -> None:
    seen: list[int] = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.num_rows)
        return batch

    parts = [pa.record_batch({"n": [1, 2]}), pa.table({"n": [3]}), {"n": 4}, {"n": 5}]
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(parts).map_batches(note, run_in=run_in)
    found = [each async for each in stream.select("n").arrow_batches()]
    assert pa.Table.from_batches(found)["n"].to_pylist() == [1, 2, 3, 4, 5]
    assert seen[:2] == [2, 1]
    assert sum(seen) == 5


async def test_what_is_no_function_of_a_batch_is_refused_where_it_is_written() -> None:
    async def several(batch: Any) -> Any:
        yield batch

    stream = am.StreamExecutionEnvironment().from_arrow(TABLE)
    with pytest.raises(am.UsageError, match=r"several .* is an asynchronous generator"):
        stream.map_batches(several)
    with pytest.raises(am.UsageError, match="timestamps: 3 is not the name"):
        stream.map_batches(by_arrow, timestamps=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "function"),
    [
        ("polars", lambda frame: frame),
        ("numpy", lambda columns: {name: columns[name].copy() for name in columns}),
    ],
)
async def test_no_form_makes_moments_of_dates(form: Any, function: Any) -> None:
    dates = pa.array([-86_400_000, None, 5], pa.date64())
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(pa.table({"d": dates}))
    same = stream.map_batches(function, form=form)
    assert list(map(repr, await same.collect())) == list(
        map(repr, await stream.collect())
    )


@pytest.mark.parametrize("first", ["a", None])
async def test_a_table_may_have_dictionaries_that_cannot_be_one(
    first: str | None,
) -> None:
    texts = [first, *map(str, range(199))]
    places = pa.array(range(100), pa.int8())
    parts = [
        pa.table({"word": pa.DictionaryArray.from_arrays(places, pa.array(some))})
        for some in (texts[:100], texts[100:])
    ]
    env = am.StreamExecutionEnvironment()
    stream = env.from_arrow(pa.table({"n": list(range(200))}))
    found = await stream.map_batches(lambda batch: pa.concat_tables(parts)).collect()
    assert [row.word for row in found] == texts
