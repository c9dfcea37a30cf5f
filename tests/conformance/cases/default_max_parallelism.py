"""The number of key groups that a parallelism gets by default."""

from __future__ import annotations

from typing import Any

import pytest

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.keygroups.assignment import default_max_parallelism

FILE = "default_max_parallelism"


def run_case(case: dict[str, Any]) -> None:
    """Compare the number, or the refusal."""
    if isinstance(case["result"], dict):
        with pytest.raises(InvalidArgumentError):
            default_max_parallelism(case["parallelism"])
        return
    assert default_max_parallelism(case["parallelism"]) == case["result"]
