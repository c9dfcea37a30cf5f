"""Compiles source that is written at run time; tracebacks show its lines."""

from __future__ import annotations

import hashlib
import linecache
from collections import OrderedDict
from types import CodeType
from typing import Final

__all__ = ["SOURCES_MAX", "compiled"]

# Beyond it the source that was not asked for the longest is forgotten. Its functions go
# on, and their lines appear in tracebacks no more.
SOURCES_MAX: Final = 512

_known: Final[OrderedDict[str, CodeType]] = OrderedDict()


def compiled(what: str, source: str) -> CodeType:
    """Return the code of a source; equal sources share it.

    Args:
        what: What the source is for, as tracebacks name it.
        source: Python's.

    Example:
        >>> compiled("example", "n = 1") is compiled("example", "n = 1")
        True
    """
    digest = hashlib.blake2b(source.encode(), digest_size=6).hexdigest()
    filename = f"<aiomailbox {what} {digest}>"
    code = _known.get(filename)
    if code is None:
        code = compile(source, filename, "exec")
        # Entries without a time stamp are never thrown out by linecache.checkcache.
        lines = source.splitlines(keepends=True)
        linecache.cache[filename] = (len(source), None, lines, filename)
        _known[filename] = code
        if len(_known) > SOURCES_MAX:
            linecache.cache.pop(_known.popitem(last=False)[0], None)
    _known.move_to_end(filename)
    return code
