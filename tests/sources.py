"""Reads the source of the project's modules."""

from __future__ import annotations

import ast
import gc
from pathlib import Path


def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a module.

    What the garbage collector meets may be logged, with lines of source that are parsed,
    and CPython 3.11 fails at one parse within another: it is off meanwhile.
    """
    gc.disable()
    try:
        return ast.parse(path.read_text("utf-8"))
    finally:
        gc.enable()
