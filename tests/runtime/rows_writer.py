"""A writer of sinks in tests: what it was given is what it prepares."""

from __future__ import annotations

from typing import Any


class RowsWriter:
    """Keeps rows until a checkpoint takes them along."""

    acts_on_records_only = False

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def write_run(self, run: Any) -> None:
        self.rows += run.values

    def flush(self, *, end_of_input: bool) -> None: ...

    def prepare_commit(self) -> list[Any]:
        rows, self.rows = self.rows, []
        return rows

    def snapshot(self) -> list[Any]:
        return []

    def restore(self, elements: list[Any]) -> None: ...

    def close(self) -> None: ...
