"""Keyed state belongs to a number of key groups."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.errors import StateError
from aiomailbox.state.descriptors import ValueStateDescriptor


def test_state_of_another_number_of_key_groups_is_refused(new_store: Any) -> None:
    """SEM-140."""
    old = new_store(max_parallelism=64)
    old.set_current_key("a")
    old.get_value(ValueStateDescriptor("v", int)).update(1)
    with pytest.raises(StateError, match=r"max_parallelism 64 .* with 128"):
        new_store(max_parallelism=128).restore([old.snapshot()])
