from __future__ import annotations

import functools
import pickle
from collections import namedtuple
from dataclasses import dataclass

import msgspec
import pytest

from aiomailbox.errors import InvalidArgumentError, RecordTypeError, WrongTypeError
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.user_code import (
    CallableKind,
    callable_kind,
    check_function,
    describe,
)


def plain(value):
    return value


async def asking(value):
    return value


async def generating(value):
    yield value


class Plain:
    def __call__(self, value):
        return value


class Asking:
    async def __call__(self, value):
        return value

    async def method(self, value):
        return value


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (plain, CallableKind.SYNC),
        (lambda value: value, CallableKind.SYNC),
        (Plain(), CallableKind.SYNC),
        (len, CallableKind.SYNC),
        (int, CallableKind.SYNC),
        (Asking, CallableKind.SYNC),
        (asking, CallableKind.ASYNC),
        (Asking(), CallableKind.ASYNC),
        (Asking().method, CallableKind.ASYNC),
        (functools.partial(functools.partial(asking, 1), 2), CallableKind.ASYNC),
        (functools.partial(Asking()), CallableKind.ASYNC),
        (generating, CallableKind.ASYNC_GENERATOR),
        (functools.partial(generating), CallableKind.ASYNC_GENERATOR),
    ],
)
def test_the_kind_of_a_callable_is_known_without_calling_it(function, kind):
    assert callable_kind(function) is kind


@pytest.mark.parametrize("function", [plain, len, int, str.upper, Plain(), print])
def test_a_function_of_one_argument_is_accepted(function):
    assert check_function(function, "function", arity=1) is function


def test_a_function_of_two_arguments_is_refused_where_one_is_given():
    with pytest.raises(WrongTypeError, match=r"function: lambda .*\(left, right\)"):
        check_function(lambda left, right: left, "function", arity=1)


def test_what_is_not_callable_is_refused_by_the_parameters_name():
    with pytest.raises(WrongTypeError, match=r"^key: 3 is not a function"):
        check_function(3, "key")


def test_a_description_says_name_and_line():
    line = plain.__code__.co_firstlineno
    assert describe(plain) == f"plain ({__file__}:{line})"
    assert describe(lambda value: value).startswith(f"lambda ({__file__}:")
    assert describe(functools.partial(plain)) == f"partial of {describe(plain)}"
    assert describe(Plain()).startswith(f"Plain object ({__file__}:")
    assert describe(str.upper) == "str.upper"


Tuple = namedtuple("Tuple", "city")  # noqa: PYI024 -- a record as users write it


@dataclass
class Data:
    city: str


class Struct(msgspec.Struct):
    city: str


@pytest.mark.parametrize(
    "record", [Tuple("Oslo"), Data("Oslo"), Struct("Oslo"), {"city": "Oslo"}]
)
def test_a_field_is_read_from_records_of_any_form(record):
    select = field_or_function("city", "key")
    assert [select(record), select(record)] == ["Oslo", "Oslo"]
    assert select.getter(record)(record) == "Oslo"
    assert pickle.loads(pickle.dumps(select))(record) == "Oslo"


@pytest.mark.parametrize("record", [Tuple("x"), Data("x"), Struct("x"), {"city": "x"}])
def test_a_missing_field_is_told_with_the_fields_that_exist(record):
    select = field_or_function("town", "key")
    with pytest.raises(RecordTypeError, match=r"key: .*no field 'town'.*city"):
        select(record)


def test_a_record_of_another_form_than_the_first_is_refused():
    select = field_or_function("city", "key")
    select({"city": "Oslo"})
    with pytest.raises(RecordTypeError, match="the same fields"):
        select(Data("Oslo"))


def test_a_selector_is_a_field_name_or_a_sync_function():
    assert field_or_function(len, "key") is len
    with pytest.raises(WrongTypeError, match=r"key: .*coroutine"):
        field_or_function(asking, "key")
    with pytest.raises(WrongTypeError, match="neither a field name nor a function"):
        field_or_function(0, "key")
    with pytest.raises(InvalidArgumentError, match="empty"):
        field_or_function("", "key")
