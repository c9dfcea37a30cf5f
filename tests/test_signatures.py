"""Laws of what is known about the arguments of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest

from aiomailbox.signatures import accepts


class Adder:
    def __call__(self, one: int, other: int = 0) -> int:
        return one + other

    def add(self, one: int) -> int:
        return one


def two(one: int, other: int) -> None: ...


@wraps(two)
def wrapped(*args: Any) -> None: ...


def of_a_text(text: str, /, *, sep: str) -> None: ...


def with_default(text: str, /, more: int = 1, *rest: int, sep: str = ",") -> None: ...


FUNCTIONS: list[Callable[..., Any]] = [
    two,
    wrapped,
    of_a_text,
    with_default,
    lambda: None,
    lambda one=1: one,
    lambda *rest: rest,
    lambda **named: named,
    lambda one, *rest, key=1: one,
    partial(two, 1),
    Adder(),
    Adder().add,
    Adder.add,
    divmod,
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("arity", range(4))
def test_a_function_accepts_as_many_arguments_as_its_signature_binds(
    function: Callable[..., Any], arity: int
) -> None:
    try:
        inspect.signature(function).bind(*range(arity))
        binds = True
    except TypeError:
        binds = False
    assert accepts(function, arity) is binds
