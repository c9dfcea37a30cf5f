"""Sends this library to Spark's executors, where it is not installed."""

from __future__ import annotations

import atexit
import importlib.util
import zipfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from aiomailbox.errors import UsageError
from aiomailbox.scratch import ScratchDirectory

__all__ = ["ship_library"]

# What it needs and is written in Python; the rest is compiled, and must be installed.
_PURE: Final = ("aiomailbox", "anyio", "structlog", "sniffio", "idna")
_LAST_MODULE: Final = "typing_extensions"


def ship_library(spark: Any) -> None:
    """Send this library to the executors of a session, classic or Connect.

    They need its version of Python, and pyarrow, pandas, cloudpickle and msgspec
    installed, which are compiled or come with Spark's own workers.

    Args:
        spark: The session; pipelines that are applied in it from now on find the library.

    Raises:
        UsageError: If the library is not in files here.
    """
    spark.addArtifacts(str(_archive()), pyfile=True)


@cache
def _archive() -> Path:
    """Return the library as a zip file, which is there until this process ends.

    Executors fetch it from a classic driver when they get their first task, and compare:
    so it is made once.
    """
    folder = ScratchDirectory()
    atexit.register(folder.remove)
    archive = folder.path / "aiomailbox-library.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in _PURE:
            _pack(packed, name)
        module = importlib.util.find_spec(_LAST_MODULE)
        if module is not None and module.origin is not None:
            packed.write(module.origin, Path(module.origin).name)
    return archive


def _pack(packed: zipfile.ZipFile, name: str) -> None:
    found = importlib.util.find_spec(name)
    places = None if found is None else found.submodule_search_locations
    if not places:
        if name == "aiomailbox":
            raise UsageError(
                "aiomailbox cannot be sent to the executors: it is "
                "not installed in a directory"
            )
        return
    root = Path(next(iter(places)))
    for file in sorted(root.rglob("*.py")):
        packed.write(file, Path(name) / file.relative_to(root))
