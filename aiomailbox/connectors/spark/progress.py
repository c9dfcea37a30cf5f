"""How far the reading of a DataFrame is, and how long the rest will take."""

from __future__ import annotations

__all__ = ["ReadProgress"]


class ReadProgress:
    """Counts rows and partitions; pure, time is an argument.

    Attributes:
        rows: Rows that were emitted since the reader began.
        parts: How many partitions there are; None if unknown.
        parts_done: Partitions that were read, those before the restart too.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.parts: int | None = None
        self.parts_done = 0
        self._begun_s = 0.0
        self._rows_left: int | None = None
        self._first_part = 0
        self._skipped = 0
        # How many rows the partitions had that were read to their ends.
        self._ended_rows = 0

    def begin(
        self,
        now_s: float,
        *,
        part: int,
        parts: int | None,
        skipped: int = 0,
        rows_left: int | None = None,
    ) -> None:
        """Begin to read.

        Args:
            now_s: The time.
            part: The partition that is read first.
            parts: How many there are.
            skipped: How many rows of it, and of those behind, come again first and are
                passed over.
            rows_left: How many rows there will be, if that is known.
        """
        self._begun_s, self._skipped, self._rows_left = now_s, skipped, rows_left
        self._first_part = self.parts_done = part
        self.parts = parts

    def end_part(self, part: int) -> None:
        """A partition was read."""
        self.parts_done = part + 1
        self._ended_rows = self._skipped + self.rows

    def end(self, parts: int) -> None:
        """All is read, and so many partitions there were."""
        self.parts = self.parts_done = parts

    def eta_s(self, now_s: float) -> float | None:
        """Return how long the rest takes if it goes on like this; None if unknown.

        Where the number of rows is unknown, the partitions to come are taken to be as
        long as those that were read.
        """
        if self.parts is not None and self.parts_done >= self.parts:
            return 0.0
        expected = self._rows_left
        ended = self.parts_done - self._first_part
        if expected is None and self.parts is not None and ended:
            parts = self.parts - self._first_part
            expected = self._ended_rows * parts // ended
        if expected is None or not self.rows:
            return None
        seen = self._skipped + self.rows
        return (now_s - self._begun_s) * max(0, expected - seen) / seen
