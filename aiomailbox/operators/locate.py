"""Finds the user's line in a traceback."""

from __future__ import annotations

import pathlib
import sysconfig
import traceback
from typing import Final

_PACKAGE: Final = str(pathlib.Path(__file__).resolve().parents[1])
_STANDARD_LIBRARY: Final = (sysconfig.get_path("stdlib"), "<frozen ")


def user_location(error: BaseException) -> str:
    """Return ``file:line`` of the innermost frame that is not aiomailbox's own.

    Libraries and the standard library count only if no line of the user's own is known;
    "unknown" when the traceback is empty.
    """
    frames = traceback.extract_tb(error.__traceback__)
    outside = [
        frame
        for frame in frames
        if not frame.filename.startswith((_PACKAGE, "<aiomailbox"))
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
