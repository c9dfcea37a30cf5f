"""What ``run_program`` forks: it knows nothing of pytest, as a program does not."""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from pathlib import Path


def fork(*arguments: str) -> None:
    """Run the program of this folder as the main module, which lives until the end."""
    place = Path.cwd() / "program.py"
    sys.argv = [str(place), *arguments]
    sys.path[0] = str(place.parent)
    warnings.simplefilter("error")
    module = types.ModuleType("__main__")
    module.__file__ = str(place)
    sys.modules["__main__"] = module
    exec(compile(place.read_text("utf-8"), place, "exec"), vars(module))


def load() -> None:
    """Import what takes most of the time of a small program."""
    for name in ("aiomailbox", "structlog"):
        importlib.import_module(name)
