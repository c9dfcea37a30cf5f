"""What a cut copies, and what it may share."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from aiomailbox.state import copy_content


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
