"""Functions of ours for Spark's workers, which may not have what these need."""

from __future__ import annotations

import pickle  # noqa: TID251 -- from the driver to its workers
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

__all__ = ["shipped"]


def shipped(
    work: Callable[[Any, Iterator[Any]], Iterator[Any]], part: Any
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function of batches for ``mapInArrow``.

    A worker that cannot run it says what it has, and what it should have.

    Args:
        work: The function of ours that does the work, given ``part`` and an iterator of
            batches.
        part: What it gets.
    """
    # By its name: Spark would send a function as code, with all that it refers to.
    module, name = work.__module__, work.__name__
    packed = pickle.dumps(part)
    python = sys.version_info[:2]
    ours = msgspec.__version__

    # Nested, and with nothing of ours in it, so that a worker without us can say so.
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib
        import pickle  # noqa: TID251 -- not the module's: nothing of it is sent
        import sys

        found = sys.version_info[:2]
        if found != python:
            raise RuntimeError(
                f"this Spark worker runs Python {found[0]}.{found[1]}, and the pipeline "
                f"comes from Python {python[0]}.{python[1]}: its functions are sent as "
                "code of that version. Set PYSPARK_PYTHON, or spark.pyspark.python, to "
                "a Python of that version on the executors."
            )
        try:
            import msgspec

            theirs = msgspec.__version__
        except ImportError as error:
            raise RuntimeError(
                f"this Spark worker has no msgspec that its Python can import: install "
                f"msgspec=={ours} on the executors; it is compiled, so it cannot be sent "
                f"there. ({error})"
            ) from error
        if theirs.split(".")[:2] != ours.split(".")[:2]:
            raise RuntimeError(
                f"this Spark worker has msgspec {theirs}, and the pipeline comes from "
                f"msgspec {ours}: install msgspec=={ours} on the executors."
            )
        try:
            there = getattr(importlib.import_module(module), name)
            part = pickle.loads(packed)
        except ImportError as error:
            raise RuntimeError(
                "this Spark worker cannot import what the pipeline needs: install "
                "aiomailbox[spark] on the executors, or send it there first with "
                f"aiomailbox.connectors.spark.ship_library(spark). ({error})"
            ) from error
        yield from there(part, batches)

    return run
