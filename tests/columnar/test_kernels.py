"""Kernels that are called one by one give what Arrow's plan of an expression gives."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, strategies as st

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.evaluator import Evaluator, _projected, kernel_of, parts_of
from aiomailbox.columnar.forms import NamedTupleForm
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.records.run import ListRun

TYPES = {"n": pa.int64(), "x": pa.float64(), "s": pa.string(), "b": pa.bool_()}
SCHEMA = pa.schema(list(TYPES.items()))
INTS = st.sampled_from([0, 1, -1, 7, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)])
FLOATS = st.sampled_from([0.0, -0.0, 0.1, -2.5, 1e300, math.inf, -math.inf, math.nan])
TEXTS = st.sampled_from(["", "a", "b", "ä", 'say "a", b)', "\U0001f600"])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | INTS,
            "x": st.none() | FLOATS,
            "s": st.none() | TEXTS,
            "b": st.none() | st.booleans(),
        }
    ),
    max_size=8,
)


def of_two(names: list[str], parts: Any, literals: Any) -> Any:
    """Return calls of two parts, of which one may be a literal."""
    one = st.tuples(parts, st.one_of(parts, literals), st.booleans())
    return st.builds(
        lambda name, pair: pc.Expression._call(
            name, [pair[0], pair[1]] if pair[2] else [pair[1], pair[0]]
        ),
        st.sampled_from(names),
        one,
    )


ARITHMETIC = [
    f"{n}{e}"
    for n in ("add", "subtract", "multiply", "divide")
    for e in ("", "_checked")
]
COMPARING = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
scalars = {
    "n": INTS.map(pc.scalar),
    "x": st.one_of(FLOATS, INTS).map(pc.scalar),
    "s": TEXTS.map(pc.scalar),
}
numbers = st.recursive(
    st.just(pc.field("x")),
    lambda inner: of_two(ARITHMETIC, inner, scalars["x"]),
    max_leaves=4,
)
integers = st.recursive(
    st.just(pc.field("n")),
    lambda inner: of_two(
        [*ARITHMETIC, "bit_wise_and", "bit_wise_or", "bit_wise_xor"],
        inner,
        scalars["n"],
    ),
    max_leaves=4,
)
conditions = st.recursive(
    st.one_of(
        st.just(pc.field("b")),
        of_two(COMPARING, numbers, scalars["x"]),
        of_two(COMPARING, integers, scalars["n"]),
        of_two(COMPARING, st.just(pc.field("s")), scalars["s"]),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        inner.map(lambda one: ~one),
    ),
    max_leaves=4,
)
mixed = of_two([*ARITHMETIC, *COMPARING], st.one_of(numbers, integers), scalars["x"])


def outcome(evaluate: Any) -> str:
    """Return the type and the values, or what was raised."""
    try:
        (column,) = evaluate()
    except pa.ArrowException as error:
        return type(error).__name__
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return f"{column.type} {column.to_pylist()}"


REORDERED = {"add", "multiply", "add_checked", "multiply_checked"}


def is_reordered(expression: Any) -> bool:
    """Say whether a plan may take the operands of a chain in another order.

    It takes literals first: ``n * n * 0`` is ``0 * n * n``, which never overflows.
    """
    parts = parts_of(expression)
    assert parts is not None
    open_calls: list[str] = []
    for key, value in parts.entries:
        if key == "end":
            open_calls.pop()
        elif key == "call":
            if value in REORDERED and open_calls[-1:] == [value]:
                return True
            open_calls.append(value)
    return False


def test_operands_are_taken_as_they_are_written() -> None:
    n, x = pc.field("n"), pc.field("x")
    types, table = TYPES, pa.table({"n": [2**53], "x": [0.3]})
    kernel, sums = kernel_of(n * n * 0, types), kernel_of(x + x + 0.1, types)
    assert kernel is not None
    assert sums is not None
    columns = {name: table[name].combine_chunks() for name in ("n", "x")}
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        kernel(columns)
    assert sums(columns).to_pylist() == [0.3 + 0.3 + 0.1]


@given(ROWS, st.one_of(numbers, integers, conditions, mixed))
def test_a_kernel_gives_what_a_plan_gives(rows: list[Any], expression: Any) -> None:
    assume(not is_reordered(expression))
    table = pa.Table.from_pylist(rows, SCHEMA)
    columns = {name: table[name].combine_chunks() for name in TYPES}
    kernel = kernel_of(expression, TYPES)
    if kernel is not None:
        by_plan = outcome(lambda: _projected(table, [expression]).columns)
        assert outcome(lambda: [kernel(columns)]) == by_plan


@given(st.one_of(numbers, integers, conditions, mixed))
def test_the_fields_that_are_read_are_those_without_which_no_plan_begins(
    expression: Any,
) -> None:
    def begins(schema: pa.Schema) -> bool:
        try:
            _projected(schema.empty_table(), [expression])
        except pa.ArrowException:
            return False
        return True

    # What overflows between literals begins with no fields.
    assume(begins(SCHEMA))
    needed = {
        name
        for place, name in enumerate(SCHEMA.names)
        if not begins(SCHEMA.remove(place))
    }
    parts = parts_of(expression)
    assert parts is not None
    assert parts.fields() == needed


def test_a_field_of_a_field_is_left_to_a_plan() -> None:
    parts = parts_of(pc.field("a", "b") + pc.field("c"))
    assert parts is not None
    assert parts.fields() is None
    inner = pa.StructArray.from_arrays([pa.array([1, 2])], ["b"])
    batch = pa.record_batch({"a": inner, "b": [10, 20]})
    columns = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
    evaluator = Evaluator([pc.field("a", "b") + pc.field("b")])
    assert evaluator.evaluate(columns)[0].to_pylist() == [11, 22]


@pytest.mark.parametrize(
    "expression",
    [
        pc.equal(pc.bit_wise_and(pc.field("n"), 1), 0),
        pc.field("x") * 2,
        pc.scalar(1) - pc.field("x") / pc.field("x"),
        (pc.field("s") == 'say "a", b)') & ~(pc.field("b") | (pc.field("n") > 3)),
    ],
)
def test_what_is_of_one_type_is_called_without_a_plan(expression: Any) -> None:
    assert kernel_of(expression, TYPES) is not None


@pytest.mark.parametrize(
    "expression",
    [
        pc.field("n") * pc.field("x"),
        pc.field("n") > 2.5,
        pc.field("n").cast("string"),
        pc.field("x") * (2**53 + 1),
        pc.field("s").isin(["a"]),
        pc.field("n") + pc.scalar(None),
        pc.scalar(1) + pc.scalar(2),
        pc.scalar(1),
        pc.field("other") + 1,
    ],
)
def test_what_a_plan_might_cast_is_left_to_it(expression: Any) -> None:
    assert kernel_of(expression, TYPES) is None


def test_an_evaluator_goes_by_the_types_that_it_reads_now() -> None:
    evaluator = Evaluator([pc.field("n") * 2])
    batch = pa.record_batch({"n": [1, 2]})
    columns = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
    fractions = ListRun([{"n": 0.5}, {"n": 1.5}])
    for _ in range(2):
        assert evaluator.evaluate(columns)[0].to_pylist() == [2, 4]
    other = Evaluator([pc.field("n") * 2])
    assert other.evaluate(fractions)[0].to_pylist() == [1.0, 3.0]
    assert other.evaluate(columns)[0].to_pylist() == [2, 4]
    assert other.evaluate(fractions)[0].to_pylist() == [1.0, 3.0]
    assert other.evaluate(columns)[0].type == pa.int64()
