"""Expressions give the same for columns, for the rows made from them, and by hand."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings, strategies as st

import aiomailbox as am
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.evaluator import Evaluator
from aiomailbox.columnar.expressions import (
    Drop,
    ExpressionFilter,
    ProjectionOperator,
    Rename,
    Select,
    WithColumns,
)
from aiomailbox.columnar.forms import record_form
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordTypeError,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.core.user_code import skip
from aiomailbox.records.run import ListRun, Run
from aiomailbox.testing import OneInputHarness

PRICE, COUNT = pc.field("price"), pc.field("count")


class Order(NamedTuple):
    price: float | None
    count: int | None
    city: str | None


@dataclass
class OrderClass:
    price: float | None
    count: int | None
    city: str | None


_FINE = pa.struct({"t": pa.timestamp("ns"), "n": pa.uint64()})
SCHEMA = pa.schema(
    [("price", pa.float32()), ("count", pa.int16()), ("city", pa.large_string())]
)
SHORT_FLOATS = st.floats(width=32)
ROWS = st.lists(
    st.builds(
        Order,
        st.none() | SHORT_FLOATS,
        st.none() | st.integers(-(2**15), 2**15 - 1),
        st.none() | st.sampled_from(["Oslo", "Rome", ""]),
    ),
    max_size=20,
)
FORMS = st.sampled_from(["namedtuple", dict, Order, OrderClass])


def run_through(
    operator: Operator, runs: Sequence[Run]
) -> tuple[list[Any], list[int | None]]:
    with OneInputHarness(operator) as harness:
        for run in runs:
            harness.do(harness.operator.process_run, run)
        records = harness.output
        return [each.value for each in records], [each.timestamp for each in records]


def cut(run: ArrowRun, borders: list[int]) -> list[Run]:
    places = sorted({min(border, len(run)) for border in borders} | {0, len(run)})
    return [run.slice(a, b) for a, b in pairwise(places)]


def as_rows(runs: Sequence[Run]) -> list[Run]:
    return [ListRun(run.values, run.timestamps) for run in runs]


def run_of(rows: list[Order], records: Any) -> ArrowRun:
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    arrays = [
        pa.array(list(values), field.type)
        for values, field in zip(columns, SCHEMA, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    maker = RowMaker(batch.schema, record_form(records))
    return ArrowRun(batch, maker, list(range(len(rows))))


def same(left: Any, right: Any) -> bool:
    """Compare as `==` does, but NaN with itself, and -0.0 with 0.0 not."""
    return type(left) is type(right) and repr(left) == repr(right)


CONDITIONS: list[tuple[pc.Expression, Callable[[Any], bool | None]]] = [
    (PRICE > 3, lambda r: r.price is not None and r.price > 3),
    (
        (PRICE * COUNT) >= COUNT,
        lambda r: None not in (r.price, r.count) and r.price * r.count >= r.count,
    ),
    (
        (COUNT * COUNT + 1) > 40_000,
        lambda r: r.count is not None and r.count**2 + 1 > 40_000,
    ),
    (pc.field("city").isin(["Oslo", ""]), lambda r: r.city in {"Oslo", ""}),
    (pc.field("city").is_null(), lambda r: r.city is None),
    (pc.scalar(True), lambda r: True),
]


@settings(max_examples=50)
@given(ROWS, st.lists(st.integers(0, 20)), FORMS, st.integers(0, len(CONDITIONS) - 1))
def test_a_filter_keeps_the_same_of_columns_of_rows_and_by_hand(
    rows: list[Order], borders: list[int], records: Any, number: int
) -> None:
    expression, by_hand = CONDITIONS[number]
    whole = run_of(rows, records)
    runs = cut(whole, borders)
    kept = [index for index, row in enumerate(rows) if by_hand(row)]
    expected = [whole.values[index] for index in kept]
    for given_runs in (runs, as_rows(runs)):
        values, times = run_through(ExpressionFilter(expression), given_runs)
        assert same(values, expected)
        assert times == kept


def multiplied(left: Any, right: Any) -> Any:
    return None if left is None or right is None else left * right


PROJECTIONS: list[tuple[Any, Callable[[Any], dict[str, Any]]]] = [
    (
        Select({"total": PRICE * COUNT}, ("city", "count")),
        lambda r: {
            "city": r.city,
            "count": r.count,
            "total": multiplied(r.price, r.count),
        },
    ),
    (
        WithColumns({"count": COUNT * COUNT, "half": PRICE / 2.0}),
        lambda r: {
            "price": r.price,
            "count": multiplied(r.count, r.count),
            "city": r.city,
            "half": multiplied(r.price, 0.5),
        },
    ),
    (
        Select(
            {"half": PRICE / 2.0},
            ("count",),
            {"where": "city", "half": None, "paid": "price", "again": "count"},
        ),
        lambda r: {
            "count": r.count,
            "where": r.city,
            "half": multiplied(r.price, 0.5),
            "paid": r.price,
            "again": r.count,
        },
    ),
    (Drop(names=("price",)), lambda r: {"count": r.count, "city": r.city}),
    (
        Rename(names={"price": "count", "count": "price"}),
        lambda r: {"count": r.price, "price": r.count, "city": r.city},
    ),
]


@settings(max_examples=50)
@given(ROWS, st.lists(st.integers(0, 20)), FORMS, st.integers(0, len(PROJECTIONS) - 1))
def test_a_projection_gives_the_same_of_columns_of_rows_and_by_hand(
    rows: list[Order], borders: list[int], records: Any, number: int
) -> None:
    projection, by_hand = PROJECTIONS[number]
    runs = cut(run_of(rows, records), borders)
    expected = [by_hand(row) for row in rows]
    for given_runs in (runs, as_rows(runs)):
        values, times = run_through(ProjectionOperator(projection), given_runs)
        found = [value if records is dict else value._asdict() for value in values]
        assert same(found, expected)
        assert times == list(range(len(rows)))


def test_columns_stay_columns() -> None:
    run = run_of([Order(1.0, 2, "Oslo"), Order(5.0, 2, "Rome")], "namedtuple")
    emitted: list[Run] = []

    with OneInputHarness(ExpressionFilter(PRICE > 3)) as harness:
        operator: Any = harness.operator
        emitted += operator._made(run)
    with OneInputHarness(ProjectionOperator(Drop(names=("city",)))) as harness:
        operator = harness.operator
        emitted += operator._made(emitted[0])
    assert all(isinstance(each, ArrowRun) and each._rows is None for each in emitted)
    assert emitted[-1].values == [(5.0, 2)]
    assert run._rows is None


def test_a_field_is_not_read_because_its_name_is_in_that_of_another() -> None:
    """Of a map rows would be made."""
    pairs = pa.array([[("x", 1)]] * 3, pa.map_(pa.string(), pa.int64()))
    batch = pa.record_batch({"price": [1, 2, 3], "p": pairs})
    run = ArrowRun(batch, RowMaker(batch.schema, record_form(dict)))
    for condition in (pc.field("price") > 1, pc.field("price").cast("string") != "1"):
        (found,) = Evaluator([condition]).evaluate(run)
        assert found.to_pylist() == [False, True, True]
        assert run._rows is None


def test_fields_that_are_not_read_need_no_column() -> None:
    rows = ListRun([{"a": 1, "odd": object()}, {"odd": "x", "a": 5}])
    values, _ = run_through(ExpressionFilter(pc.field("a") > 3), [rows])
    assert values == [{"odd": "x", "a": 5}]


def test_records_that_are_values_have_the_field_value() -> None:
    rows = ListRun([1, 5, 3])
    assert run_through(ExpressionFilter(pc.field("value") > 2), [rows])[0] == [5, 3]


def test_integers_are_as_wide_as_in_rows_and_overflow_is_an_error() -> None:
    batch = pa.record_batch({"n": pa.array([127], pa.int8())})
    maker = RowMaker(batch.schema, record_form(dict))
    more = ProjectionOperator(Select({"more": pc.field("n") * 1000}))
    assert run_through(more, [ArrowRun(batch, maker)])[0] == [{"more": 127_000}]
    widest = ListRun([{"n": 1}, {"n": 2**63 - 1}])
    for_all = ProjectionOperator(Select({"more": pc.field("n") + 1}))
    with pytest.raises(UserFunctionError, match=r"overflow") as caught:
        run_through(for_all, [widest])
    assert "9223372036854775807" in str(caught.value.__notes__)
    assert "add_checked(n, 1)" in str(caught.value)


def test_on_error_is_asked_about_each_record_that_fails() -> None:
    divided = Select({"half": pc.field("n") / pc.field("by")}, ("by",))
    rows = [{"n": 4, "by": number % 3} for number in range(9)]
    for run in (
        ListRun(rows),
        ArrowRun(
            batch := pa.RecordBatch.from_pylist(rows),
            RowMaker(batch.schema, record_form(dict)),
        ),
    ):
        values, _ = run_through(ProjectionOperator(divided, skip), [run])
        assert values == [{"by": 1, "half": 4}, {"by": 2, "half": 2}] * 3


def test_values_that_do_not_fit_the_first_ones_fail_by_name() -> None:
    rows = [ListRun([{"n": 1}]), ListRun([{"n": "x"}])]
    with pytest.raises(UserFunctionError, match="column 'n'") as caught:
        run_through(ExpressionFilter(pc.field("n") > 0), rows)
    # An expression has no schema= that could be given.
    assert "declare it in the class" in str(caught.value)


def test_lists_that_were_empty_may_have_values_later() -> None:
    rows = [ListRun([{"v": []}]), ListRun([{"v": ["a", "b"]}, {"v": []}])]
    lengths = ProjectionOperator(Select({"n": pc.list_value_length(pc.field("v"))}))
    assert run_through(lengths, rows)[0] == [{"n": 0}, {"n": 2}, {"n": 0}]


def test_a_class_says_that_numbers_are_floats() -> None:
    halves = ProjectionOperator(Select({"half": PRICE / 2}))
    rows = [ListRun([Order(3, 1, None)]), ListRun([Order(2.5, 1, None)])]
    assert run_through(halves, rows)[0] == [(1.5,), (1.25,)]


def test_nested_fields_moments_and_decimals_are_read() -> None:
    moment = datetime(1969, 5, 1, 12, tzinfo=UTC)
    row = {"at": moment, "place": {"city": "Oslo"}, "sum": Decimal("2.50")}
    batch = pa.RecordBatch.from_pylist(
        [row],
        pa.schema(
            [
                ("at", pa.timestamp("ns", "Europe/Oslo")),
                ("place", pa.struct([("city", pa.large_string())])),
                ("sum", pa.decimal128(12, 4)),
            ]
        ),
    )
    what = Select(
        {
            "hour": pc.hour(pc.field("at")),
            "city": pc.field(("place", "city")),
            "sum": pc.field("sum") + pc.scalar(Decimal("1.00")),
        }
    )
    expected = [{"hour": 12, "city": "Oslo", "sum": Decimal("3.50")}]
    columns = ArrowRun(batch, RowMaker(batch.schema, record_form(dict)))
    for run in (columns, ListRun([row])):
        assert run_through(ProjectionOperator(what), [run])[0] == expected


@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"t": 1500, "n": 2**63}, {"t": 1500, "n": 7}], _FINE),
        pa.array([[{"t": 1500, "n": 2**63}], [{"t": 1, "n": 7}]], pa.list_(_FINE)),
    ],
    ids=["struct", "list of structs"],
)
def test_no_integer_wraps_around_beside_times_that_lose_digits(
    column: pa.Array,
) -> None:
    batch = pa.record_batch({"k": column})
    run = ArrowRun(batch, RowMaker(batch.schema, record_form(dict)))
    operator = ProjectionOperator(Select({"k": pc.field("k")}), on_error=skip)
    for one in (run, ListRun(run.values)):
        assert run_through(operator, [one])[0] == run.values[1:]


def test_moments_finer_than_those_of_python_are_read_from_dictionaries() -> None:
    moments = pa.array([1500, None, 1500], pa.timestamp("ns", "UTC"))
    batch = pa.record_batch({"at": moments.dictionary_encode()})
    run = ArrowRun(batch, RowMaker(batch.schema, record_form(dict)))
    operator = ProjectionOperator(Select({"us": pc.microsecond(pc.field("at"))}))
    for one in (run, ListRun(run.values)):
        assert run_through(operator, [one])[0] == [{"us": 1}, {"us": None}, {"us": 1}]


def test_a_record_without_the_field_fails_alone() -> None:
    broken = OrderClass(2.0, 1, "Oslo")
    del broken.price
    rows = [OrderClass(3.0, 1, "Oslo"), broken, OrderClass(4.0, 1, "Rome")]
    found, _ = run_through(ExpressionFilter(PRICE > 0, skip), [ListRun(rows)])
    assert found == [rows[0], rows[2]]


def test_operators_go_to_other_processes() -> None:
    copied = pickle.loads(pickle.dumps(ExpressionFilter(PRICE > 3)))
    run = run_of([Order(math.nan, 1, ""), Order(4.0, 1, "")], "namedtuple")
    assert run_through(copied, [run])[0] == [(4.0, 1, "")]


async def test_streams_say_columns_or_rows_in_explain() -> None:
    found: list[Any] = []
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([{"price": 2.5, "count": 2, "item": "tea"}])
    cheap = stream.filter(PRICE < 3).with_columns(total=PRICE * COUNT).drop("price")
    sink = am.FunctionSink(found.append)
    cheap.rename({"item": "what"}).sink_to(sink)
    text = env.explain()
    assert "- filter; rows: collection makes them\n        sync (price < 3)" in text
    assert "- rename; rows: collection makes them" in text
    await env.execute()
    assert found == [{"count": 2, "what": "tea", "total": 5.0}]


@pytest.mark.real_time
async def test_columns_of_a_file_stay_columns_until_a_function_wants_rows(
    tmp_path: Path,
) -> None:
    rows = [{"price": number / 2, "count": number} for number in range(100)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "orders.parquet")
    found: list[Any] = []
    env = am.StreamExecutionEnvironment()
    source = am.FileSource(tmp_path / "orders.parquet", batch_rows=7)
    orders = env.from_source(source, name="orders")
    total = orders.filter(PRICE > 3).select("count", total=PRICE * COUNT)
    named = total.map(lambda order: order._asdict()).filter(COUNT < 10)
    named.sink_to(am.FunctionSink(found.append))
    text = env.explain()
    assert "- filter; columns" in text
    assert "- select; columns" in text
    assert "- filter; rows: map makes them" in text
    await env.execute()
    assert found == [
        {"count": number, "total": number * number / 2} for number in (7, 8, 9)
    ]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda s: s.filter(pc.field("cost") > 3), "cost"),
        (lambda s: s.select("cost"), "no field 'cost'.*price"),
        (lambda s: s.select(total=pc.field("cost") * 2), "cost.*price"),
        (lambda s: s.with_columns(total=pc.field("cost") * 2), "cost.*price"),
        (lambda s: s.drop("cost"), "no field 'cost'"),
        (lambda s: s.drop("price"), "no field is left"),
        (lambda s: s.rename({"cost": "price"}), "no field 'cost'"),
    ],
)
def test_a_field_that_no_record_has_is_refused_where_it_is_written(
    write: Callable[[Any], Any], message: str
) -> None:
    stream = am.StreamExecutionEnvironment().from_collection([{"price": 1}])
    with pytest.raises(RecordTypeError, match=message):
        write(stream)


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda s: s.select(), InvalidArgumentError),
        (lambda s: s.select("price", "price"), InvalidArgumentError),
        (lambda s: s.select(PRICE), WrongTypeError),
        (lambda s: s.select(total=3), WrongTypeError),
        (lambda s: s.select(total=pc.field(0)), InvalidArgumentError),
        (lambda s: s.with_columns(), InvalidArgumentError),
        (lambda s: s.drop(), InvalidArgumentError),
        (lambda s: s.rename("price"), WrongTypeError),
        (lambda s: s.rename({}), InvalidArgumentError),
        (lambda s: s.rename({"a": "c", "b": "c"}), InvalidArgumentError),
        (lambda s: s.filter(pc.field(0) > 3), InvalidArgumentError),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(
    write: Callable[[Any], Any], error: type[Exception]
) -> None:
    stream = am.StreamExecutionEnvironment().from_collection([{"price": 1}])
    with pytest.raises(error):
        write(stream)


@pytest.mark.parametrize(
    "write",
    [
        lambda s: s.select(["price", "n"]),
        lambda s: s.drop(("price",)),
        lambda s: s.key_by(["price", "n"]),
    ],
)
def test_names_in_a_list_are_refused_with_what_to_write(
    write: Callable[[Any], Any],
) -> None:
    stream = am.StreamExecutionEnvironment().from_collection([{"price": 1, "n": 2}])
    with pytest.raises(WrongTypeError, match="one by one"):
        write(stream)


def test_a_missing_column_is_named_in_a_running_job() -> None:
    run = run_of([Order(1.0, 1, "")], "namedtuple")
    for each in (run, as_rows([run])[0]):
        with pytest.raises(UserFunctionError, match=r"cost.*fields are: price"):
            run_through(ExpressionFilter(pc.field("cost") > 3), [each])
    with pytest.raises(UserFunctionError, match="gives double"):
        run_through(ExpressionFilter(PRICE), [run])
