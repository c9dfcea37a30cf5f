"""How a worker logs: to stderr, in plain text."""

from __future__ import annotations

import logging
import sys
from typing import Any

from aiomailbox.logs import LOGGER_NAME, library_log

__all__ = ["plain_log"]

_RICH = "rich"


def plain_log() -> Any:
    """Return the library's logger, which writes to stderr here: the process is ours.

    Where rich is installed, structlog imports it to paint tracebacks. That takes a
    worker longer than its own modules, and what it writes is for files, so rich counts
    as not installed meanwhile; the job's functions can import it as ever.
    """
    logger = logging.getLogger(LOGGER_NAME)
    # A line in one piece: the workers share stderr.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(message)s"))
    # What a program has configured, as its module or a function's open may, gets each
    # line instead: none is written twice.
    handler.addFilter(lambda _: not logging.getLogger().handlers)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    is_hidden = _RICH not in sys.modules and "structlog" not in sys.modules
    modules: dict[str, Any] = sys.modules
    if is_hidden:
        modules[_RICH] = None
    try:
        return library_log()
    finally:
        if is_hidden:
            del modules[_RICH]
