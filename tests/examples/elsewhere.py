"""Runs a stream elsewhere: what `Forks` forks, which knows the package and the bytes."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path

import aiomailbox as am


def load() -> None:
    """Load what jobs load when they run."""
    for name in ("anyio._backends._asyncio", "structlog.dev"):
        importlib.import_module(name)


def fork(folder: str) -> None:
    """Print the results of the stream in a folder, as sorted texts."""
    # Nothing else of this project is to be found.
    sys.path[0] = folder
    stream = pickle.loads(Path(folder, "stream").read_bytes())
    for line in sorted(map(repr, am.run(stream.collect()))):
        print(line)
