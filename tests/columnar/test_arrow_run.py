"""Arrow runs are runs, and make rows only when asked."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.encode import BatchMaker
from aiomailbox.columnar.forms import DictForm, NamedTupleForm, RecordForm, record_form
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordTypeError,
    TimestampError,
    UnsupportedColumnError,
)
from aiomailbox.operators.core.fields import FieldSelector, FieldsSelector
from aiomailbox.records.record_classes import record_class

UTC_MICROS = pa.timestamp("us", "UTC")
MOMENTS = st.datetimes(timezones=st.just(UTC))


def run_of(columns: dict[str, Any], form: RecordForm | None = None) -> ArrowRun:
    batch = pa.record_batch(columns)
    return ArrowRun(batch, RowMaker(batch.schema, form or NamedTupleForm()))


def test_rows_without_columns_stay_rows_when_some_are_taken() -> None:
    """Arrow makes of no columns a batch without rows."""
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    run = ArrowRun(batch, RowMaker(batch.schema, DictForm()))
    taken = {
        "taken": run.take([2, 0]),
        "selected": run.select(np.array([True, False, True])),
        "cut": run.slice(1, 3),
    }
    for name, part in taken.items():
        assert (len(part), part.values) == (2, [{}, {}]), name
    assert sum(each.num_rows for each in BatchMaker().batches(run)) == 3


def test_no_rows_are_made_until_asked_for() -> None:
    run = run_of({"a": [1, 2, 3]})
    part = run.slice(1, 3).with_timestamps([7, 8])
    assert len(part) == 2
    assert part.size_bytes() == 16
    assert part.timestamps == [7, 8]
    assert part.timed_by("a").timestamps == [2, 3]
    assert part._rows is None
    assert part.values == [(2,), (3,)]
    assert part.values is part.values


def test_rows_that_were_made_are_kept_by_slices_and_other_times() -> None:
    run = run_of({"a": [1, 2, 3]})
    first = run.values
    assert run.with_timestamps([1, 2, 3]).values is first
    assert run.slice(1, 2).values[0] is first[1]


@given(st.lists(st.none() | MOMENTS, max_size=20), st.data())
def test_moments_are_exact_wherever_a_run_is_cut(
    moments: list[datetime | None], data: Any
) -> None:
    run = run_of({"t": pa.array(moments, UTC_MICROS)})
    start = data.draw(st.integers(0, len(moments)))
    stop = data.draw(st.integers(start, len(moments)))
    assert [row.t for row in run.slice(start, stop).values] == moments[start:stop]


@given(st.lists(MOMENTS, max_size=20))
def test_event_times_are_milliseconds_rounded_down(moments: list[datetime]) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    expected = [(moment - epoch) // timedelta(milliseconds=1) for moment in moments]
    run = run_of({"t": pa.array(moments, UTC_MICROS)})
    assert run.timed_by("t").timestamps == expected


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us", "UTC")])
def test_event_times_may_be_in_a_dictionary(kind: pa.DataType) -> None:
    times = pa.array([5000, -1000, 5000], kind)
    assert run_of({"t": times.dictionary_encode()}).timed_by("t").timestamps == (
        run_of({"t": times}).timed_by("t").timestamps
    )


NESTED = st.none() | st.lists(
    st.none()
    | st.fixed_dictionaries({"t": st.none() | MOMENTS, "n": st.integers(0, 9)}),
    max_size=3,
)


@given(st.lists(NESTED, max_size=12), st.data())
def test_nested_values_are_cut_where_the_run_is(values: list[Any], data: Any) -> None:
    kind = pa.list_(pa.struct([("t", UTC_MICROS), ("n", pa.int64())]))
    run = run_of({"v": pa.array(values, kind)}, record_form(dict))
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    assert [row["v"] for row in run.slice(start, stop).values] == values[start:stop]


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (pa.array([5, None], pa.int64()), "None"),
        (pa.array([1.5, 2.5]), "double"),
        (pa.array([1, 2], pa.timestamp("us")), "time zone"),
        (pa.array([1, 2**62], pa.timestamp("s", "UTC")), "column 't'.*64 bits"),
        (pa.DictionaryArray.from_arrays([1, 0], pa.array([5, None])), "None"),
    ],
)
def test_what_is_no_event_time_is_refused(column: Any, problem: str) -> None:
    with pytest.raises(TimestampError, match=problem):
        run_of({"t": column}).timed_by("t")


def test_a_column_that_is_not_there_is_named() -> None:
    run = run_of({"a": [1]})
    with pytest.raises(TimestampError, match="'b'"):
        run.timed_by("b")
    with pytest.raises(RecordTypeError, match="'b'"):
        run.column("b")


def test_a_named_tuple_pickles_into_a_process_that_has_not_made_its_class() -> None:
    data = pickle.dumps(record_class(("x", "y"))(1, "two"))
    script = f"import pickle; print(pickle.loads({data!r}).y)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    assert done.stdout == "two\n"


@dataclass
class Inner:
    n: int


@dataclass
class Outer:
    name: str
    inner: list[Inner | None]
    note: str = "none"


class Pair(NamedTuple):
    b: int
    a: int


def test_classes_take_columns_by_name_and_nested_classes_by_annotation() -> None:
    columns = {
        "inner": pa.array([[{"n": 1}, None]], pa.list_(pa.struct([("n", pa.int64())]))),
        "name": ["x"],
    }
    assert run_of(columns, record_form(Outer)).values == [Outer("x", [Inner(1), None])]
    assert run_of({"a": [1], "b": [2]}, record_form(Pair)).values == [Pair(b=2, a=1)]


@pytest.mark.parametrize("name", ["two words", "class", "_private", "1st"])
def test_a_name_that_is_no_field_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedColumnError, match="Rename"):
        run_of({name: [1]})
    assert run_of({name: [1]}, record_form(dict)).values == [{name: 1}]


def test_what_is_no_kind_of_record_is_refused() -> None:
    for records in ("rows", list, 5):
        with pytest.raises(InvalidArgumentError, match="records"):
            record_form(records)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([-1, 5, None], pa.timestamp("us", "Europe/Berlin")),
        pa.array([-1500, 5, None], pa.timestamp("ns", "UTC")),
        pa.array([-1, 5, None], pa.date32()),
        pa.array([["a"], ["b", "c"], None]),
        pa.array(["a", "b", None]),
    ],
    ids=lambda values: str(values.type),
)
def test_values_of_a_dictionary_are_those_of_a_plain_column(values: pa.Array) -> None:
    places = pa.array([9, 9, 0, 1, None, 2, 1, 0, 9], pa.int16()).slice(2, 6)
    column = pa.DictionaryArray.from_arrays(places, values)
    few = pa.DictionaryArray.from_arrays(places.slice(1, 2), values)
    plain = [run_of({"v": each.dictionary_decode()}) for each in (column, few)]
    found = [run_of({"v": each}) for each in (column, few)]
    for one, other in zip(found, plain, strict=True):
        assert list(map(repr, one.values)) == list(map(repr, other.values))


def test_records_do_not_share_the_lists_of_a_dictionary() -> None:
    values = pa.array([["a"]])
    column = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), values)
    first, second = run_of({"v": column}).values
    first.v.append("b")
    assert second.v == ["a"]


@pytest.mark.parametrize("fields", ["abc", "abcd", "abcdefg"])
@pytest.mark.parametrize("count", [7, 70_000])
def test_keys_of_many_fields_and_records_are_those_of_rows(
    fields: str, count: int
) -> None:
    """Codes of all fields together may not fit into 64 bits."""
    random = np.random.default_rng(7)
    run = run_of({name: random.permutation(count) for name in fields})
    found = run.key_codes(
        FieldsSelector(tuple(FieldSelector(f, "key") for f in fields))
    )
    assert (found is None) is (count ** len(fields) > 2**63)
    if found is not None:
        expected = list(zip(*(run.column(f).to_pylist() for f in fields), strict=True))
        assert [found.distinct[code] for code in found.codes] == expected
