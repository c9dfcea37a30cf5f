"""Random pipelines into a DataFrame: columns, rows, and a plain reference are equal."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import aiomailbox as am
from tests.columnar.test_pipelines import (
    EPOCH,
    JOINS,
    SCHEMA,
    TOO_LATE,
    as_text,
    check_by_hand,
    in_batches,
    is_paired,
    program,
    programs,
    reference,
    tame_rows,
    timed,
    wild_rows,
)
from tests.columnar.test_sinks import can_be_written, stream_of

pytestmark = pytest.mark.spark

ENDS = (
    *("records", "distinct", "rolling", "tumbling", "sliding", "sessions"),
    *("all tumbling", *JOINS),
)
NOTHING = {"n": None, "x": None, "money": None, "text": None}
LIMITS: list[dict[str, Any]] = [
    {"key": "a", "part": 0, **NOTHING},
    {"key": "a", "part": 1, **NOTHING, "x": math.nan, "money": Decimal("0.10")},
    {"key": "b", "part": -1, **NOTHING, "x": -0.0, "n": 2**53 + 1},
    {"key": "b", "part": 0, **NOTHING, "money": Decimal("-9999999.99"), "text": ""},
]
PLAIN = ("key", "part", "n", "x", "money", "text", "at")


async def frame(
    spark: Any,
    source: Any,
    what: dict[str, Any],
    *,
    as_rows: bool,
    schema: Any = None,
    path: Path | None = None,
) -> tuple[Any, list[dict[str, Any]]]:
    """Return the schema of the results and the results, or an error's name and none."""
    env = am.StreamExecutionEnvironment(parallelism=1)
    results, _ = program(stream_of(env, source, as_rows=as_rows), what)
    try:
        df = await results.to_spark(spark, schema=schema, path=path)
    except am.JobFailedError as error:
        return type(error.__cause__).__name__, []
    except am.AioMailboxError as error:
        return type(error).__name__, []
    return df.schema, [_plain(row) for row in df.toArrow().to_pylist()]


def _plain(value: Any) -> Any:
    """Return a value with times in UTC, and zero as the only decimal zero."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC)
    return value + 0 if isinstance(value, Decimal) else value


def as_by_hand(row: dict[str, Any], what: dict[str, Any]) -> Any:
    """Return a row of a DataFrame in the form of the reference's results."""
    end = what["end"]
    if end in {"records", "distinct"}:
        return tuple(row[name] for name in PLAIN)
    if end in JOINS:
        return tuple(row.values())
    if end == "rolling" and not is_paired(what):
        return {name: value for name, value in row.items() if name != "key"}
    key = row.pop("key", {})
    key = tuple(key.values()) if isinstance(key, dict) else (key,)
    if is_paired(what):
        return key, row["value"]
    return key, row.pop("window_start"), row.pop("window_end"), row


def plain_record(row: dict[str, Any]) -> tuple[Any, ...]:
    at = EPOCH + dt.timedelta(milliseconds=row["at"])
    return tuple(_plain({**row, "at": at})[name] for name in PLAIN)


@pytest.mark.parametrize("end", ENDS)
@given(
    programs,
    st.lists(st.one_of(tame_rows, wild_rows), min_size=9, max_size=20),
    st.lists(st.integers(0, TOO_LATE - 1), min_size=24, max_size=24),
    st.lists(st.integers(1, 15), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=3)
def test_a_dataframe_has_the_same_from_columns_rows_and_a_plain_loop(
    spark: Any,
    end: str,
    what: dict[str, Any],
    records: list[dict[str, Any]],
    jitter: list[int],
    lengths: list[int],
    only_tame: bool,
    as_files: bool,
) -> None:
    what = {**what, "end": end}
    records = [*records[:3], *LIMITS, *records[3:]]
    if only_tame:
        records = [r for r in records if r["n"] is None or abs(r["n"]) < 10]
        records = [r for r in records if r["x"] is None or 0.1 <= r["x"] < 10]
    rows = timed(records, jitter, lengths[0])
    parts = in_batches(rows, lengths)
    source = [pa.RecordBatch.from_pylist(part, SCHEMA) for part in parts]
    by_hand, _ = reference(parts, what)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "out") if as_files else None
        schema, found = am.run(
            frame(spark, source or SCHEMA.empty_table(), what, as_rows=False, path=path)
        )
    if can_be_written(what):
        # Rows do not know that integers had fewer than 64 bits: they are told.
        known = None if isinstance(schema, str) else schema
        forced = am.run(
            frame(
                spark, source or SCHEMA.empty_table(), what, as_rows=True, schema=known
            )
        )
        assert forced[0] == schema
        assert sorted(map(as_text, forced[1])) == sorted(map(as_text, found))
    if isinstance(schema, str):
        # Without a record nobody knows the columns, and a sum may exceed 64 bits.
        assert schema == "RecordTypeError" or not by_hand
        return
    if what["end"] in {"records", "distinct"}:
        by_hand = list(map(plain_record, by_hand))
    check_by_hand(
        [as_by_hand(row, what) for row in found], by_hand, what, only_tame=only_tame
    )
