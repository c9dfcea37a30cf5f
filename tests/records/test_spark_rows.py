"""Spark's Row travels with the names of its fields, which each object has itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from pyspark.sql import Row

from aiomailbox.connectors.sinks import field_names
from aiomailbox.errors import CorruptStreamError
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.record_classes import fields_of, is_spark_row, row_class
from aiomailbox.records.run_columns import PythonSerializer
from aiomailbox.runtime.peers.record_types import RecordTypes, record_classes
from aiomailbox.state.operator_state import OperatorStateSnapshot

VALUES = st.none() | st.integers() | st.text() | st.lists(st.integers())
FIELDS = st.dictionaries(st.text(min_size=1), VALUES, min_size=1, max_size=4)
ROWS = FIELDS.map(lambda fields: Row(**fields)) | st.lists(VALUES).map(
    lambda values: Row(*values)
)


def sent(values: list[Any]) -> list[Any]:
    serializer = PythonSerializer(record_classes((Row,), has_arrow=False))
    output = bytearray()
    serializer.write_many(values, output)
    return serializer.read_many(ByteReader(output), len(values))


@given(st.lists(ROWS | ROWS.map(lambda row: Row(inner=row, pair=(row, 1)))))
def test_rows_come_back_with_their_names(rows: list[Any]) -> None:
    back = sent(rows)
    assert back == rows
    assert [type(row) for row in back] == [Row] * len(rows)
    # Its repr has the names, and those of rows inside.
    assert list(map(repr, back)) == list(map(repr, rows))


@given(ROWS | ROWS.map(lambda row: Row(inner=row, pair=(row, 1))))
def test_rows_are_kept_in_state_with_their_names(row: Any) -> None:
    own = OperatorStateSnapshot().with_list("held", [row])
    data = encode_snapshot(OperatorSnapshot(own=own), [])
    assert repr(decode_snapshot(data).own.elements("held")) == repr([row])


def test_a_row_class_of_the_users_makes_such_rows() -> None:
    person = Row("name", "age")
    [back] = sent([person("Ada", 36)])
    assert (back.name, back["age"]) == ("Ada", 36)


def test_a_function_that_names_row_declares_it() -> None:
    types = RecordTypes()
    types.look_at(lambda number: Row(number=number))
    assert Row in types.found
    assert len(types.found) == 1, "nothing of Spark beside it"


def test_other_tuples_are_no_rows() -> None:
    assert is_spark_row(Row)
    assert not is_spark_row(tuple)
    assert not is_spark_row(type("Row", (tuple,), {}))


@pytest.mark.parametrize(
    "parts",
    [("ab", (1,)), (("a",), [1]), ((1,), (1,)), (None, None)],
)
def test_what_is_no_row_is_corrupt(parts: Any) -> None:
    with pytest.raises(CorruptStreamError):
        row_class(Row).build(parts)


def test_a_sink_finds_the_fields_of_a_row() -> None:
    assert field_names(Row(user="a", price=1)) == ("user", "price")
    assert fields_of(Row("a", 1)) is None
