"""Short ways to describe transformations in the graph tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.exchange.writer import Partitioner
from aiomailbox.graph.transformation import Origin, Transformation
from aiomailbox.operators.core.operator import Operator
from aiomailbox.records.events import OutputTag


@pytest.fixture
def item() -> Callable[..., Transformation]:
    """Make a transformation with one input that unites the given ones."""

    def make(name: str, *inputs: Transformation | Origin, **facts: Any) -> Any:
        origins = [
            each if isinstance(each, Origin) else Origin(each) for each in inputs
        ]
        return Transformation(name, Operator, [origins] if origins else [], **facts)

    return make


@pytest.fixture
def via() -> Callable[..., Origin]:
    """Make an origin: what emits, and the way."""

    def make(
        upstream: Transformation,
        partitioner: Partitioner | None = None,
        tag: OutputTag | None = None,
    ) -> Origin:
        return Origin(upstream, partitioner, tag)

    return make
