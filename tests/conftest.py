"""Virtual time for every async test, unless it asks for the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

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
