"""An operator without keys has no keyed state, and says so."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.errors import StateError
from aiomailbox.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from aiomailbox.state.store import NoKeysStateStore


@pytest.mark.parametrize(
    "access",
    [
        lambda store: store.current_key,
        lambda store: store.set_current_key("a"),
        lambda store: store.get_value(ValueStateDescriptor("v")),
        lambda store: store.get_list(ListStateDescriptor("l")),
        lambda store: store.table(ValueStateDescriptor("v")),
        lambda store: store.namespaced(ValueStateDescriptor("v")),
        lambda store: store.keys(ValueStateDescriptor("v")),
        lambda store: store.key_count(),
        lambda store: store.snapshot(),
        lambda store: store.restore([]),
    ],
)
def test_every_access_names_the_operator(access: Any) -> None:
    store = NoKeysStateStore("enrich")
    with pytest.raises(StateError, match=r"'enrich'.*key_by"):
        access(store)
