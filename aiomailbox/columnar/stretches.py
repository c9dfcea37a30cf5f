"""Stretches of event time, all of one length: where those begin that times are in."""

from __future__ import annotations

import numpy as np

__all__ = ["beginning", "beginnings", "overlapping"]


def beginnings(times: np.ndarray, offset: int, size: int) -> np.ndarray:
    """Return where stretches begin, milliseconds, that these times are in.

    A division by one number is a multiplication; a remainder would not be.
    """
    starts: np.ndarray = times - offset
    starts //= size
    starts *= size
    starts += offset
    return starts


def beginning(time: int, offset: int, size: int) -> int:
    """Return where the stretch begins that a time is in; see `beginnings`."""
    return time - (time - offset) % size


def overlapping(
    times: np.ndarray, offset: int, size: int, slide: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sliding windows that times are in, the latest of each time first.

    Args:
        times: Milliseconds, shape ``(n,)``.
        offset: Where some window begins.
        size: How long windows are.
        slide: From the beginning of one to that of the next.

    Returns:
        The place of the time, and where the window begins, of each that one is in.

    Example:
        >>> places, starts = overlapping(np.array([7, 12]), 0, 10, 5)
        >>> places.tolist(), starts.tolist()
        ([0, 0, 1, 1], [5, 0, 10, 5])
    """
    last = beginnings(times, offset, slide)
    starts = last[:, np.newaxis] - np.arange(-(-size // slide)) * slide
    there = starts > (times - size)[:, np.newaxis]
    return np.nonzero(there)[0], starts[there]
