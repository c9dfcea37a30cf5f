"""Virtual time for every async test, unless it asks for the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from aiomailbox.testing import virtual_time_loop_factory

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the conformance cases come from another directory."""
    parser.addoption(
        "--vectors",
        metavar="DIR",
        help="run tests/conformance on the recorded files of DIR",
    )


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    """Give a test the virtual-time loop; ``real_time`` and ``spark`` get a real one."""
    if item.get_closest_marker("real_time") or item.get_closest_marker("spark"):
        return {"real": asyncio.SelectorEventLoop}
    return {"virtual": virtual_time_loop_factory()}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Give the suite's one Spark session, for tests marked ``spark``."""
    from aiomailbox.connectors.spark import local_session

    session = local_session("aiomailbox tests", cores=2)
    # A cancelled job is expected here, and Spark tells about it at length.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
