"""Classes that a function makes from field names travel without being entered."""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import Any

import pytest

from aiomailbox.errors import CorruptStreamError, WrongTypeError
from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.record_classes import RecordClasses
from aiomailbox.records.run_columns import PythonSerializer

FAMILY = f"{__name__}.Row"


@functools.cache
def row(fields: tuple[str, ...]) -> type:
    make: Any = namedtuple  # noqa: PYI024 -- the fields are data
    made: Any = make("Row", fields)
    made.__module__ = __name__
    return made


def serializer() -> PythonSerializer:
    return PythonSerializer(RecordClasses((), {FAMILY: row}))


@pytest.mark.parametrize("fields", [("a",), ("a", "b"), ()])
def test_records_of_a_family_arrive_as_what_they_were(fields: tuple[str, ...]) -> None:
    kind: Any = row(fields)
    records = [kind(*range(len(fields))) for _ in range(3)]
    output = bytearray()
    serializer().write_many([*records, [records[0]]], output)
    found = serializer().read_many(ByteReader(output), 4)
    assert found == [*records, [records[0]]]
    assert {type(record) for record in found[:3]} == {kind}


def test_making_classes_does_not_change_what_both_ends_compare() -> None:
    one, other = serializer(), serializer()
    one.write(row(("x",))(1), bytearray())
    assert one.serializer_id == other.serializer_id
    assert one.serializer_id != PythonSerializer().serializer_id


def test_another_class_of_the_name_is_refused() -> None:
    other: Any = namedtuple("Row", ["a"])  # noqa: PYI024 -- as above
    other.__module__ = __name__
    with pytest.raises(WrongTypeError):
        serializer().write(other(1), bytearray())


@pytest.mark.parametrize(
    "name", [f"{FAMILY}(a b)", f"{FAMILY}(a", f"{FAMILY}(__import__)", "os.system(a)"]
)
def test_names_that_are_no_fields_make_nothing(name: str) -> None:
    good = bytearray()
    serializer().write_many([row(("aaa",))(1)] * 2, good)
    bad = good.replace(f"{FAMILY}(aaa)".encode(), name.encode())
    with pytest.raises(CorruptStreamError):
        serializer().read_many(ByteReader(bad), 2)


def test_a_peer_cannot_make_classes_without_end() -> None:
    classes = RecordClasses((), {FAMILY: row})
    made = [classes.named(f"{FAMILY}(f{number})") for number in range(1001)]
    assert None not in made[:1000]
    assert made[1000] is None
