"""Running aggregates over columns: equal to those over rows, whatever comes."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import aiomailbox as am
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.forms import NamedTupleForm
from aiomailbox.columnar.keys import Groups, stable_order
from aiomailbox.columnar.rolling import ColumnarAggregateOperator
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.operators.core.fields import (
    FieldSelector,
    FieldsSelector,
    field_or_function,
)
from aiomailbox.operators.keyed.operators import KeyedAggregateOperator
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.records.run import ListRun
from aiomailbox.testing import OneInputHarness

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("small", pa.int8()),
        ("ok", pa.bool_()),
        ("text", pa.string()),
        ("at", pa.timestamp("ms", "UTC")),
    ]
)
KEY = field_or_function("key", "key")
LARGE = 2**63 - 1
texts = st.sampled_from([None, "", "a", "b", "ä", "\U0001f600", "\uffff"])
moments = st.sampled_from(
    [None, *(datetime(year, 5, 1, tzinfo=UTC) for year in (1, 1969, 1970, 9999))]
)
floats = st.sampled_from(
    [0.0, -0.0, 1.5, -2.25, 1e300, -1e300, 0.1, math.inf, -math.inf, math.nan, None]
)
rows = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["a", "b", "c", "ä", ""]),
        "n": st.sampled_from([None, 0, 1, -1, 7, 2**52, 2**62, LARGE, -LARGE - 1]),
        "x": floats,
        "small": st.sampled_from([None, 1, -128, 127]),
        "ok": st.sampled_from([None, True, False]),
        "text": texts,
        "at": moments,
    }
)
# Of these no value asks for rows.
tame = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["a", "b", "c", "d"]),
        "n": st.one_of(st.none(), st.integers(-1000, 1000)),
        "x": st.one_of(st.none(), st.floats(0.001, 1e6)),
        "small": st.sampled_from([None, 1, -128, 127]),
        "ok": st.sampled_from([None, True, False]),
        "text": texts,
        "at": moments,
    }
)


def everything() -> Any:
    """Return an aggregate of all kinds."""
    return am.aggregates(
        count=am.count(),
        good=am.count(where="ok"),
        total=am.sum_("x"),
        whole=am.sum_("n"),
        some=am.sum_("x", where="ok"),
        average=am.mean("x"),
        fraction=am.mean("small"),
        least=am.min_("x"),
        most=am.max_("n"),
        first_text=am.min_("text"),
        last_text=am.max_("text", where="ok"),
        first=am.min_("at"),
        last=am.max_("at"),
    )


def sums() -> Any:
    """Return an aggregate that no fraction asks rows for."""
    return am.aggregates(total=am.sum_("x"), average=am.mean("x"), count=am.count())


def run_of(records: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> ArrowRun:
    batch = pa.RecordBatch.from_pylist(records, schema)
    maker = RowMaker(schema, NamedTupleForm())
    return ArrowRun(batch, maker, list(range(len(records))))


def outcome(operator: Any, runs: list[Any]) -> list[str]:
    """Return all results with their times, or what was raised in the end."""
    with OneInputHarness(operator, keyed=True) as harness:
        try:
            for run in runs:
                harness.operator.process_run(run)
        except am.AioMailboxError as error:
            return [*map(repr, harness.output), type(error).__name__]
        # Unlike ==, the text tells zeros, NaN and types apart.
        return [repr(each) for each in harness.output]


def parts(records: list[Any], borders: list[int]) -> list[list[Any]]:
    """Return the records, cut at these places."""
    places = sorted({0, len(records), *(b % (len(records) + 1) for b in borders)})
    return [records[start:stop] for start, stop in pairwise(places)]


@settings(max_examples=40)
@given(
    st.lists(rows, max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
    st.sampled_from([everything, sums]),
)
def test_columns_give_what_rows_give(
    records: list[Any], borders: list[int], aggregate: Any
) -> None:
    cut = parts(records, borders)
    operator = ColumnarAggregateOperator(KEY, aggregate())
    by_columns = outcome(operator, [run_of(part) for part in cut])
    assert operator._is_columnar or aggregate is everything
    runs = [run_of(part) for part in cut]
    by_rows = outcome(
        KeyedAggregateOperator(KEY, aggregate()),
        [ListRun(run.values, run.timestamps) for run in runs],
    )
    assert by_columns == by_rows


@settings(max_examples=40)
@given(
    st.lists(tame, min_size=1, max_size=60),
    st.lists(st.integers(0, 60), max_size=4),
    st.sampled_from([everything, lambda: am.sum_("x"), lambda: am.mean("n")]),
    st.booleans(),
)
def test_tame_values_stay_columns(
    records: list[Any], borders: list[int], aggregate: Any, pairs: bool
) -> None:
    cut = parts(records, borders)
    operator = ColumnarAggregateOperator(KEY, aggregate(), include_key=pairs)
    by_columns = outcome(operator, [run_of(part) for part in cut])
    assert operator._is_columnar
    runs = [run_of(part) for part in cut]
    assert by_columns == outcome(
        KeyedAggregateOperator(KEY, aggregate(), include_key=pairs),
        [ListRun(run.values, run.timestamps) for run in runs],
    )


class KeepingOutput:
    """Keeps runs as they come; nothing is read."""

    def __init__(self) -> None:
        self.runs: list[Any] = []

    def emit_run(self, run: Any) -> None:
        self.runs.append(run)


@settings(max_examples=40)
@given(
    st.lists(tame, min_size=1, max_size=60),
    st.lists(st.integers(0, 60), max_size=4),
    st.sampled_from([everything, lambda: am.sum_("x"), lambda: am.mean("n")]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_results_may_be_asked_for_late_in_any_order_or_never(
    records: list[Any],
    borders: list[int],
    aggregate: Any,
    pairs: bool,
    random: Random,
) -> None:
    cut = parts(records, borders)
    operator = ColumnarAggregateOperator(KEY, aggregate(), include_key=pairs)
    with OneInputHarness(operator, keyed=True) as harness:
        output: Any = KeepingOutput()
        harness.operator.output = output
        for part in cut:
            harness.operator.process_run(run_of(part))
            if random.random() < 0.2:
                assert output.runs[random.randrange(len(output.runs))].values
        for run in random.sample(output.runs, len(output.runs)):
            assert len(run) == len(run.values) == run.batch.num_rows
        found = [repr(value) for run in output.runs for value in run.values]
    by_rows = KeyedAggregateOperator(KEY, aggregate(), include_key=pairs)
    with OneInputHarness(by_rows, keyed=True) as harness:
        for part in cut:
            harness.operator.process_run(ListRun(run_of(part).values))
        assert found == list(map(repr, harness.values))
    assert operator._is_columnar


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([tame, rows]).flatmap(lambda s: s), max_size=40),
    st.integers(0, 40),
    st.booleans(),
    st.booleans(),
)
def test_a_snapshot_of_one_form_is_restored_in_the_other(
    records: list[Any], border: int, first_columns: bool, second_columns: bool
) -> None:
    border = min(border, len(records))

    def operator(columns: bool) -> Any:
        kind = ColumnarAggregateOperator if columns else KeyedAggregateOperator
        return kind(KEY, everything())

    def given_to(harness: Any, part: list[Any], columns: bool) -> None:
        run = run_of(part)
        harness.operator.process_run(
            run if columns else ListRun(run.values, run.timestamps)
        )

    with OneInputHarness(operator(first_columns), keyed=True) as harness:
        given_to(harness, records[:border], first_columns)
        snapshot = decode_snapshot(encode_snapshot(harness.snapshot()))
        given_to(harness, records[border:], first_columns)
        expected = [repr(each) for each in harness.output[border:]]
    second = OneInputHarness(operator(second_columns), keyed=True)
    second.restore(snapshot)
    with second as harness:
        given_to(harness, records[border:], second_columns)
        assert [repr(each) for each in harness.output] == expected


def test_keys_of_several_fields_are_tuples() -> None:
    selectors = (FieldSelector("key", "key"), FieldSelector("small", "key"))
    records = [
        {"key": "a", "n": 1, "x": 1.0, "small": 1, "ok": True},
        {"key": "b", "n": 2, "x": 2.0, "small": 1, "ok": True},
        {"key": "a", "n": 3, "x": 4.0, "small": 1, "ok": True},
        {"key": "a", "n": 3, "x": 8.0, "small": 2, "ok": True},
    ]
    key = FieldsSelector(selectors)
    operator = ColumnarAggregateOperator(key, am.aggregates(total=am.sum_("x")))
    assert outcome(operator, [run_of(records)]) == outcome(
        KeyedAggregateOperator(key, am.aggregates(total=am.sum_("x"))),
        [ListRun(run_of(records).values, [0, 1, 2, 3])],
    )
    assert operator._is_columnar


def test_a_sum_beyond_64_bits_goes_on_as_rows() -> None:
    record = {"key": "a", "n": LARGE, "x": 1.0, "small": 1, "ok": True}
    operator = ColumnarAggregateOperator(KEY, am.sum_("n"))
    runs = [run_of([record]), run_of([record]), run_of([record])]
    found = outcome(operator, runs)
    assert [text.partition("value=")[2].partition(",")[0] for text in found] == [
        str(LARGE),
        str(2 * LARGE),
        str(3 * LARGE),
    ]
    assert not operator._is_columnar


@pytest.mark.parametrize("skew", [1, 2, 500])
def test_floats_are_added_from_left_to_right_however_long_groups_are(skew: int) -> None:
    records = [
        {
            "key": "many" if i % skew else f"key-{i}",
            "n": 1,
            "x": 0.1 * (i * 7919 % 1000),
            "small": 1,
            "ok": True,
        }
        for i in range(5000)
    ]
    operator = ColumnarAggregateOperator(KEY, am.sum_("x"))
    run = run_of(records)
    assert outcome(operator, [run_of(records)]) == outcome(
        KeyedAggregateOperator(KEY, am.sum_("x")),
        [ListRun(run.values, run.timestamps)],
    )
    assert operator._is_columnar


@pytest.mark.parametrize("count", [1, 3, 1000, 1 << 16, 100_000, 1 << 31])
def test_groups_are_found_among_however_many_codes(count: int) -> None:
    codes = np.array([each * 7919 % count for each in (3, 1, 3, 0, 2, 1, 3)])
    groups = Groups(codes, count)
    used, lengths = np.unique(codes, return_counts=True)
    assert groups.used.tolist() == used.tolist()
    assert groups.lengths.tolist() == lengths.tolist()
    order, _ = stable_order(codes, count)
    assert order.tolist() == np.argsort(codes, kind="stable").tolist()


@pytest.mark.parametrize("values", [[1.5, 0.5, 1.5], [1.5, -0.0, 0.0], [1.5, math.nan]])
def test_fractions_are_keys_where_equal_ones_are_the_same(values: list[float]) -> None:
    records = [
        {"key": "a", "n": 1, "x": value, "small": 1, "ok": True} for value in values
    ]
    key = field_or_function("x", "key")
    operator = ColumnarAggregateOperator(key, am.count(), include_key=True)
    run = run_of(records)
    assert outcome(operator, [run_of(records)]) == outcome(
        KeyedAggregateOperator(key, am.count(), include_key=True),
        [ListRun(run.values, run.timestamps)],
    )
    assert operator._is_columnar is (values[1] == 0.5)


@pytest.mark.parametrize("keys", [("key",), ("key", "small")])
def test_results_with_their_keys_are_columns_whose_rows_are_pairs(
    keys: tuple[str, ...],
) -> None:
    records = [{"key": key, "n": 1, "small": 2} for key in "aba"]
    selectors = tuple(FieldSelector(name, "key") for name in keys)
    key: Any = selectors[0] if len(keys) == 1 else FieldsSelector(selectors)
    operator = ColumnarAggregateOperator(key, am.sum_("n"), include_key=True)
    with OneInputHarness(operator, keyed=True) as harness:
        operator.process_run(run_of(records))
        (run,) = harness.recorded.runs
        assert isinstance(run, ArrowRun)
        name = "a" if len(keys) == 1 else ("a", 2)
        assert run.values[2] == (name, 2)
        assert type(run.values[2]) is tuple


MOMENT = datetime(2013, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("words", [["a", None], [7, None], [MOMENT, None]])
def test_null_in_a_dictionary_is_no_value(words: list[Any]) -> None:
    """A dictionary-encoded column does not count it among its nulls."""
    indices = pa.array([0, 1, 0, 1, 1], pa.int8())
    batch = pa.record_batch(
        {
            "key": ["a", "a", "b", "b", "c"],
            "word": pa.DictionaryArray.from_arrays(indices, pa.array(words)),
        }
    )
    assert not batch["word"].null_count
    run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
    key, first = field_or_function("key", "key"), words[0]
    for make in (am.min_, am.max_):
        operator = ColumnarAggregateOperator(key, make("word"))
        with OneInputHarness(operator, keyed=True) as harness:
            operator.process_run(run)
            assert harness.values == [first, first, first, first, None]


@pytest.mark.parametrize("snapshot_of_columns", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [([1.5, 2.25], [3]), ([2], [1.5]), ([MOMENT], [MOMENT.replace(tzinfo=None)])],
)
def test_a_restored_key_keeps_its_type_beside_a_column_of_another(
    before: list[Any], after: list[Any], snapshot_of_columns: bool
) -> None:
    def fed(operator: Any, values: list[Any], snapshot: Any = None) -> Any:
        batch = pa.record_batch({"key": ["a"] * len(values), "n": values})
        run: Any = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
        if type(operator) is KeyedAggregateOperator:
            run = ListRun(run.values)
        harness = OneInputHarness(operator, keyed=True)
        harness.restore(snapshot)
        with harness:
            try:
                harness.operator.process_run(run)
            except am.AioMailboxError as error:
                return type(error)
            return list(map(repr, harness.values)), harness.snapshot()

    make = am.count if isinstance(before[0], datetime) else am.sum_
    aggregate = am.aggregates(least=am.min_("n"), most=am.max_("n"), n=am.count())
    if make is am.sum_:
        aggregate = am.aggregates(total=am.sum_("n"), average=am.mean("n"))
    kinds = [KeyedAggregateOperator, ColumnarAggregateOperator]
    _, snapshot = fed(kinds[snapshot_of_columns](KEY, aggregate), before)
    found = [fed(kind(KEY, aggregate), after, snapshot) for kind in kinds]
    if isinstance(found[0], tuple):
        found = [values for values, _ in found]
    assert found[0] == found[1]


def test_moments_without_a_zone_have_none_after_rows_either() -> None:
    """Keys of several fields are made columns of again, with all that is beside them."""
    batch = pa.record_batch(
        {
            "key": ["a", "a"],
            "n": [1, 2],
            "at": pa.array([MOMENT.replace(tzinfo=None)] * 2, pa.timestamp("us")),
        }
    )
    selectors = (FieldSelector("key", "key"), FieldSelector("n", "key"))
    aggregate = am.aggregates(least=am.min_("at"))
    operator = ColumnarAggregateOperator(FieldsSelector(selectors), aggregate)
    with OneInputHarness(operator, keyed=True) as harness:
        run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
        harness.operator.process_run(ListRun(run.values))
        assert not operator._is_columnar
        assert [value.least.tzinfo for value in harness.values] == [None, None]
