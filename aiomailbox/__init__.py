"""Stateful stream processing that you can await: Flink's mailbox task on asyncio.

Importing this imports neither pyspark nor pyarrow: names that need an optional
dependency are looked up when they are first used.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from aiomailbox.errors import (
    AioMailboxError,
    MissingExtraError,
    UsageError,
    WorldError,
)

__all__ = ["AioMailboxError", "UsageError", "WorldError", "__version__"]

__version__ = "0.1.0"

# Public names behind an extra: name → (where it is, the extra, what the extra brings).
# They are not in __all__, so that a star import works without any extra.
_BEHIND_AN_EXTRA = {
    "ParquetSink": ("aiomailbox.connectors.spark", "spark", "pyarrow"),
    "SparkSource": ("aiomailbox.connectors.spark", "spark", "pyspark"),
}


def __getattr__(name: str) -> Any:
    if name not in _BEHIND_AN_EXTRA:
        raise AttributeError(f"module 'aiomailbox' has no attribute {name!r}")
    module_name, extra, requirement = _BEHIND_AN_EXTRA[name]
    if importlib.util.find_spec(requirement) is None:
        raise MissingExtraError(name, extra)
    return getattr(importlib.import_module(module_name), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_BEHIND_AN_EXTRA})
