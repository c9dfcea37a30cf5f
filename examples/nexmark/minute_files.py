"""A sink of our own: CSV files in a directory for each day and minute."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, TextIO

from examples.nexmark.queries.per_bid import LoggedBid

COLUMNS = LoggedBid._fields[:-2]
TEMPORARY = "."
OPEN_MAX = 64


class MinuteFiles:
    """Writes bids to ``day=…/minute=…/part-….csv`` below a directory.

    Files have hidden names until the job succeeds. Spark reads the directory as a
    table that is partitioned by day and minute.

    Args:
        path: The directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def create_writer(self, context: Any) -> MinuteWriter:
        """Create the writer of a subtask."""
        return MinuteWriter(self.path, f"part-{context.subtask_index:05}.csv")

    def create_committer(self, context: Any) -> MinuteCommitter:
        """Create the job's committer."""
        return MinuteCommitter(self.path)


class MinuteWriter:
    """Appends bids to the files of their minutes."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self._files: dict[tuple[str, str], TextIO] = {}
        self._written: set[Path] = set()

    def write_run(self, run: Any) -> None:
        """Write bids."""
        for bid in run.values:
            csv.writer(self._file(bid.day, bid.minute)).writerow(bid[:-2])

    def flush(self, *, end_of_input: bool) -> None:
        """Write out what is buffered."""
        for file in self._files.values():
            file.flush()

    def prepare_commit(self) -> list[Path]:
        """Return the files written since the last call."""
        self._close_files()
        written, self._written = self._written, set()
        return sorted(written)

    def snapshot(self) -> list[Any]:
        """Return nothing: this is for jobs that run to their end."""
        return []

    def restore(self, elements: list[Any]) -> None:
        """Take over nothing."""

    def close(self) -> None:
        """Close the files."""
        self._close_files()

    def _file(self, day: str, minute: str) -> TextIO:
        file = self._files.get((day, minute))
        if file is None:
            if len(self._files) == OPEN_MAX:
                # Time goes on: the minute that was begun first gets no more, or little.
                self._files.pop(next(iter(self._files))).close()
            # Colons have a meaning in the names that Spark reads.
            folder = self._path / f"day={day}" / f"minute={minute.replace(':', '-')}"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{TEMPORARY}{self._name}"
            file = path.open("a" if path in self._written else "w", newline="")
            self._files[day, minute] = file
            self._written.add(path)
        return file

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class MinuteCommitter:
    """Gives files their names when the job succeeds, or else removes them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, *, restored: bool) -> None:
        """Refuse a directory that has something in it."""
        if self._path.exists() and any(self._path.iterdir()):
            raise FileExistsError(f"{self._path} is not empty")

    def commit(
        self, committables: list[Path], *, checkpoint_id: int, is_final: bool
    ) -> None:
        """Give files their names."""
        for path in committables:
            if path.exists():
                path.rename(path.with_name(path.name.removeprefix(TEMPORARY)))

    def end(self, *, succeeded: bool) -> None:
        """Remove what was not committed."""
        for path in self._path.rglob(f"{TEMPORARY}part-*"):
            path.unlink()
