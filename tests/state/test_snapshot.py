"""What a cut copies, and what it may share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest

from aiomailbox.state.snapshot import copy_content


class Account:
    def __init__(self, balance: list[int]) -> None:
        self.balance = balance


class Row(NamedTuple):
    name: str
    tags: Any


def test_what_cannot_change_is_shared() -> None:
    for content in ("text", 1.5, None, b"bytes", (1, "a"), Row("a", 1)):
        assert copy_content(content) is content


@pytest.mark.parametrize(
    ("content", "reach"),
    [
        ([[1]], lambda c: c[0]),
        ([1], lambda c: c),
        ({"a": [1]}, lambda c: c["a"]),
        ((0, [1]), lambda c: c[1]),
        (Row("a", [1]), lambda c: c.tags),
        (Account([1]), lambda c: c.balance),
        ([Account([1])], lambda c: c[0].balance),
    ],
)
def test_what_can_change_is_copied_however_deep_it_lies(
    content: Any, reach: Any
) -> None:
    copied = copy_content(content)
    assert type(copied) is type(content)
    reach(content).append(2)
    assert reach(copied) == [1]


@dataclass
class Order:
    number: int
    note: Any = None


@dataclass(frozen=True)
class Price:
    amount: float
    tags: Any = None


class Quote(msgspec.Struct):
    bid: int
    tags: Any = None


class Itself:
    """Knows how it is copied."""

    def __deepcopy__(self, memo: Any) -> str:
        return "copied"


def test_records_are_shared_only_if_nothing_of_them_can_change() -> None:
    price = Price(1.0)
    assert copy_content(price) is price
    for content in (Order(1), Quote(1), Price(1.0, [1]), Order(1, [1]), Quote(1, [1])):
        copied = copy_content(content)
        assert copied == content
        assert copied is not content
    order = Order(1, [1])
    copied = copy_content(order)
    order.note.append(2)
    assert copied.note == [1]
    assert copy_content([Itself()]) == ["copied"]


def test_what_an_object_has_beside_its_fields_is_copied_too() -> None:
    order: Any = Order(1)
    order.extra = [1]
    copied: Any = copy_content(order)
    order.extra.append(2)
    assert copied.extra == [1]
