"""Writes one subtask's rows into the staging table."""

from __future__ import annotations

import random
from collections.abc import Awaitable
from typing import Any

from aiomailbox.connectors.patient import patient
from aiomailbox.connectors.rows import RowReader, field_names
from aiomailbox.connectors.sql.contract import (
    Database,
    RowsRefused,
    StagedBatch,
    TableTarget,
    no_field,
)
from aiomailbox.errors import RecordsRefusedError, SinkError
from aiomailbox.operators.core.contract import Pending
from aiomailbox.records.run import Run

__all__ = ["SqlWriter"]


class SqlWriter:
    """Stages each run as it comes, so that nothing is kept in memory.

    Args:
        database: A connection of its own.
        target: What is written.
        name: Names the writer; no other one ever has it.
        subtask: Its subtask.
        random: Where the jitter of retries comes from.
    """

    def __init__(
        self,
        database: Database,
        target: TableTarget,
        name: str,
        subtask: int,
        random: random.Random,
    ) -> None:
        self._database = database
        self._target = target
        self._name = name
        self._subtask = subtask
        self._random = random
        self._reader: RowReader | None = None
        if target.columns is not None:
            self._reader = RowReader(target.columns, is_exact=False)
        self._batch = 0
        self._row_count = 0
        self._prepared: list[StagedBatch] = []

    def write_run(self, run: Run) -> Pending:
        """Stage records.

        Raises:
            RecordsRefusedError: If the table cannot have some of them; the others are
                staged.
        """
        return self._write(list(run.values)) if len(run) else None

    def flush(self, *, end_of_input: bool) -> Pending:
        """Let what is staged survive, and begin another batch."""
        return self._finish_batch() if self._row_count else None

    def prepare_commit(self) -> list[Any]:
        """Return the batches finished since the last call."""
        prepared, self._prepared = self._prepared, []
        return [tuple(batch) for batch in prepared]

    def snapshot(self) -> list[Any]:
        """Return nothing: a new writer has another name and counts anew."""
        return []

    def restore(self, elements: list[Any]) -> None:
        """Nothing to take over."""

    def close(self) -> Pending:
        """Close the connection; what is staged stays until it is committed or swept."""
        return self._database.close()

    async def _write(self, records: list[Any]) -> None:
        refused: dict[int, BaseException] = {}
        rows: list[tuple[int, tuple[Any, ...]]] = []
        for index, record in enumerate(records):
            try:
                reader = self._reader or await self._reader_of(record)
                rows.append((index, reader.row(record)))
            except SinkError:
                # Not the record's fault.
                raise
            except TypeError as error:
                refused[index] = error
        parts = [rows] if rows else []
        while parts:
            part = parts.pop()
            try:
                await self._stage([row for _, row in part])
            except RowsRefused as error:
                if len(part) == 1:
                    refused[part[0][0]] = error.__cause__ or error
                else:
                    # What fits is found by halves, the first ones first.
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
        if refused:
            raise RecordsRefusedError(refused, len(records))

    async def _stage(self, rows: list[tuple[Any, ...]]) -> None:
        assert self._reader is not None, "a row was read"
        columns = self._reader.columns

        def stage() -> Awaitable[None]:
            return self._database.stage(
                self._name, self._batch, self._row_count, columns, rows
            )

        await patient(stage, self._target, self._random)
        # Only when they are there: a repeated call replaces from the same row on.
        self._row_count += len(rows)

    async def _finish_batch(self) -> None:
        assert self._reader is not None, "a row was read"
        batch = StagedBatch(
            self._name,
            self._batch,
            self._subtask,
            self._row_count,
            self._reader.columns,
        )

        def make_durable() -> Awaitable[None]:
            return self._database.make_durable(batch.writer, batch.batch, batch.rows)

        await patient(make_durable, self._target, self._random)
        self._prepared.append(batch)
        self._batch += 1
        self._row_count = 0

    async def _reader_of(self, record: Any) -> RowReader:
        names = field_names(record)
        existing = await patient(
            self._database.column_names, self._target, self._random
        )
        missing = [name for name in names if name not in existing]
        missing += [name for name in self._target.upsert_by if name not in names]
        if missing or not names:
            raise no_field(record, missing, self._target)
        self._reader = RowReader(names, is_exact=True)
        return self._reader
