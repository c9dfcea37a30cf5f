"""How a worker logs: to stderr, in plain text."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["plain_log"]

_RICH = "rich"


def plain_log() -> Any:
    """Return a structlog logger that writes to stderr, and configure structlog so.

    Where rich is installed, structlog imports it to paint tracebacks. That takes a
    worker longer than its own modules, and what it writes is for files, so rich counts
    as not installed meanwhile; the job's functions can import it as ever.
    """
    is_hidden = _RICH not in sys.modules and "structlog" not in sys.modules
    modules: dict[str, Any] = sys.modules
    if is_hidden:
        modules[_RICH] = None
    try:
        import structlog
    finally:
        if is_hidden:
            del modules[_RICH]
    # A line in one piece: the workers share stderr.
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stderr))
    return structlog.get_logger("aiomailbox")
