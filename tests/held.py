"""What a job says where its loop has waited, left out of what a test looks at.

A loop that is held for a tenth of a second is told of. Any call lasts so long where the
machine gives its thread no processor, so it says nothing about what most tests are about.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Final

import pytest

_TOLD: Final = "the event loop (?:was|is still) held"
# In the forms of the library's own log, and of the standard library's.
_LINES: Final = re.compile(rf"WARNING[ :]aiomailbox: ?{_TOLD}\b.*\n(?:in .*\n)*")


def without_held(log: str) -> str:
    """Return a program's log without such lines."""
    return _LINES.sub("", log)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture all else that is logged."""
    caplog.handler.addFilter(_is_about_something_else)
    yield caplog
    caplog.handler.removeFilter(_is_about_something_else)


def _is_about_something_else(record: logging.LogRecord) -> bool:
    return re.match(_TOLD, str(record.msg)) is None
