"""What only the heap store promises."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.keygroups.assignment import KeyGroupRange
from aiomailbox.state.backends import HeapStateStore
from aiomailbox.state.descriptors import ValueStateDescriptor
from aiomailbox.testing import ManualClock

COUNT = ValueStateDescriptor("count", default=0)


@pytest.fixture
def store() -> Any:
    return HeapStateStore(128, KeyGroupRange(0, 127), ManualClock())


def test_a_tables_methods_are_those_of_a_dict_while_nobody_reads_a_cut(
    store: Any,
) -> None:
    table = store.table(COUNT)
    table.put("a", 1)
    assert type(table.rows) is dict
    snapshot = store.snapshot()
    table.put("a", 2)
    store.restore([snapshot])
    del snapshot
    assert table.get("a") == 1
    assert store.settle(100)
    assert type(table.rows) is dict
    assert table.get.__self__ is table.rows is table.put.__self__


def test_a_namespaced_table_keeps_no_empty_row(store: Any) -> None:
    table = store.namespaced(COUNT)
    table.put("a", "w1", 1)
    table.remove("a", "w1")
    assert table.rows == {}


def test_the_size_is_estimated_from_a_sample(store: Any) -> None:
    table = store.table(COUNT)
    assert store.size_bytes() == 0
    for key in range(1000):
        table.put(key, "x" * 1000)
    assert 1_000_000 < store.size_bytes() < 1_500_000
