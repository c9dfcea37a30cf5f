"""How many of a record's results go out together where they can be paused."""

from __future__ import annotations

from aiomailbox.records.run import RUN_LENGTH_MAX


def next_piece_length(length: int, emitted: int, *, fitted: bool) -> int:
    """Return how long the next piece of a record's results may be.

    Their size is not known: pieces get longer while they fit, and shorter when one did
    not. A thousand records of a megabyte each would be far beyond what may be lent.

    Args:
        length: How long the last piece could have been.
        emitted: How long it was.
        fitted: Whether the output could take more after it.

    Example:
        >>> next_piece_length(4, 4, fitted=True), next_piece_length(4, 4, fitted=False)
        (8, 2)
    """
    if not fitted:
        return max(1, emitted // 2)
    return min(2 * length, RUN_LENGTH_MAX) if emitted == length else length
