"""Finds the user's line in a traceback."""

from __future__ import annotations

import pathlib
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Final

from aiomailbox.errors import BadResultError

_PACKAGE: Final = str(pathlib.Path(__file__).resolve().parents[2])
_GENERATED: Final = "<aiomailbox"
_ENDS: Final = (StopIteration, StopAsyncIteration)
_STANDARD_LIBRARY: Final = (sysconfig.get_path("stdlib"), "<frozen ")


def caller_location() -> str:
    """Return ``file:line`` of the user's call that led here, "" if there is none."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        following = frame.f_back
        if following is None:
            return ""
        frame = following
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def user_location(error: BaseException) -> str:
    """Return ``file:line`` of the innermost frame that is not aiomailbox's own.

    Libraries and the standard library count only if no line of the user's own is known;
    "unknown" when the traceback is empty. A return value that is lost has the
    function's own line.
    """
    if isinstance(error, BadResultError):
        return error.function
    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, _ENDS):
        # Python puts a RuntimeError in its place, whose traceback begins outside.
        error = cause
    return users_line(traceback.extract_tb(error.__traceback__))


def users_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return ``file:line`` of the innermost frame that is the user's own.

    Args:
        frames: The innermost one last. Those of libraries and of the standard library
            count only if there is no other, and aiomailbox's own after them.
    """
    outside = [
        frame
        for frame in frames
        if not frame.filename.startswith((_PACKAGE, _GENERATED))
    ]
    users = [
        frame
        for frame in outside
        if "site-packages" not in frame.filename
        and not frame.filename.startswith(_STANDARD_LIBRARY)
    ]
    for candidates in (users, outside, frames):
        if candidates:
            return f"{candidates[-1].filename}:{candidates[-1].lineno}"
    return "unknown"


def users_line_of(frames: Iterable[FrameType]) -> str:
    """Return ``file:line`` of the innermost frame of a stack that is the user's own.

    Args:
        frames: Outermost first; no file is looked at.
    """
    return users_line(
        [
            traceback.FrameSummary(
                frame.f_code.co_filename, frame.f_lineno, "", lookup_line=False
            )
            for frame in frames
        ]
    )


def is_users(location: str) -> bool:
    """Say whether a location is the user's, and not of a library or aiomailbox itself."""
    return not (
        is_own_line(location)
        or "site-packages" in location
        or location.startswith(_STANDARD_LIBRARY)
    )


def is_own_line(location: str) -> bool:
    """Say whether a location is in aiomailbox itself, or not known: of no use to users.

    Example:
        >>> is_own_line(__file__), is_own_line("job.py:7")
        (True, False)
    """
    return location.startswith((_PACKAGE, _GENERATED)) or location == "unknown"
