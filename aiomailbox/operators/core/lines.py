"""Whose line code stands on, and lines for sources that are written at run time."""

from __future__ import annotations

import hashlib
import linecache
import os
import pathlib
import sys
import sysconfig
import traceback
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from types import CodeType, FrameType
from typing import Any, Final

from aiomailbox.errors import BadResultError
from aiomailbox.logs import library_log

# Finds the user's line in a traceback.


_PACKAGE: Final = f"{pathlib.Path(__file__).resolve().parents[2]}{os.sep}"


_GENERATED: Final = "<aiomailbox"


_ENDS: Final = (StopIteration, StopAsyncIteration)


_STANDARD_LIBRARY: Final = (sysconfig.get_path("stdlib"), "<frozen ")


# The second one is Debian's.
_INSTALLED: Final = ("site-packages", "dist-packages")


def caller_location() -> str:
    """Return ``file:line`` of the user's call that led here, "" if there is none."""
    frame = _caller()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def warn_here(what: str, **facts: Any) -> None:
    """Warn of what the program has written where it calls the library."""
    library_log().warning(what, line=caller_location(), **facts)


def is_called_by_import() -> bool:
    """Say whether the user's call that led here runs while its module is imported."""
    frame = _caller()
    return (
        frame is not None
        and frame.f_code.co_name == "<module>"
        and frame.f_globals.get("__name__") != "__main__"
    )


def _caller() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_users_frame(
        frame.f_code.co_filename, frame.f_code.co_name
    ):
        frame = frame.f_back
    return frame


def user_location(error: BaseException) -> str:
    """Return ``file:line`` of the innermost frame that is the user's own; see `users_line`.

    A return value that is lost has the function's own line.
    """
    if isinstance(error, BadResultError) and has_line(error.function):
        return error.function
    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, _ENDS):
        # Python puts a RuntimeError in its place, whose traceback begins outside.
        error = cause
    return users_line(traceback.extract_tb(error.__traceback__))


def users_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return ``file:line`` of the innermost frame that is the user's own, "" for none.

    A line of a library, or of aiomailbox itself, does not lead to a mistake: whoever
    has no other one names the user's call that made the operator.

    Args:
        frames: The innermost one last.
    """
    for frame in reversed(frames):
        if _is_users_frame(frame.filename, frame.name):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def _is_users_frame(file: str, function: str) -> bool:
    # The methods that Python writes for a dataclass have no file.
    is_made = file == "<string>" and function.startswith("__")
    return is_users(file) and not is_made


def users_line_of(frames: Iterable[FrameType]) -> str:
    """Return ``file:line`` of the innermost frame of a stack; see `users_line`.

    Args:
        frames: Outermost first; no file is looked at.
    """
    return users_line(
        [
            traceback.FrameSummary(
                frame.f_code.co_filename,
                frame.f_lineno,
                frame.f_code.co_name,
                lookup_line=False,
            )
            for frame in frames
        ]
    )


def has_line(described: str) -> bool:
    """Say whether what `describe` has returned ends with a line of the user's."""
    line = described.partition("(")[2]
    return bool(line) and is_users(line)


def is_users(location: str) -> bool:
    """Say whether a location is the user's, and not of a library or aiomailbox itself."""
    return not (
        location.startswith((_PACKAGE, _GENERATED, *_STANDARD_LIBRARY))
        or any(name in location for name in _INSTALLED)
    )


def is_own_line(location: str) -> bool:
    """Say whether a location is in aiomailbox itself.

    Example:
        >>> is_own_line(__file__), is_own_line("job.py:7")
        (True, False)
    """
    return location.startswith((_PACKAGE, _GENERATED))


# Compiles source that is written at run time; tracebacks show its lines.


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
