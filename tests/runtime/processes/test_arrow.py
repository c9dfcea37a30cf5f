"""Columns that a source in one worker reads and functions in others work on."""

from __future__ import annotations

import gc
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import aiomailbox as am
from aiomailbox.availability import Availability

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]


@dataclass(frozen=True)
class Split:
    split_id: str
    group: int = 0


class ParquetReader:
    """Reads the row groups of a file, one run each."""

    def __init__(self, path: str, as_batches: bool) -> None:
        import pyarrow.parquet as pq

        from aiomailbox.columnar.forms import DictForm
        from aiomailbox.columnar.rows import RowMaker

        self.availability = Availability()
        self.as_batches = as_batches
        self.file = pq.ParquetFile(path)
        self.maker = RowMaker(self.file.schema_arrow, DictForm())
        self.split: Split | None = None
        self.ended = False

    def start(self) -> None:
        pass

    def add_splits(self, splits: list[Split]) -> None:
        [self.split] = splits
        self.availability.set_available()

    def notify_no_more_splits(self) -> None:
        self.ended = True
        self.availability.set_available()

    def poll_next(self, output: Any) -> am.InputStatus:
        from aiomailbox.columnar.arrow_run import ArrowRun
        from aiomailbox.records.run import ListRun

        split = self.split
        if split is None:
            if self.ended:
                return am.InputStatus.END_OF_INPUT
            self.availability.reset()
            return am.InputStatus.NOTHING_AVAILABLE
        if split.group == self.file.num_row_groups:
            output.release_split(split.split_id)
            self.split = None
            return am.InputStatus.MORE_AVAILABLE
        [batch] = self.file.read_row_group(split.group).to_batches()
        run = ListRun([batch]) if self.as_batches else ArrowRun(batch, self.maker)
        output.for_split(split.split_id).emit_run(run)
        self.split = Split(split.split_id, split.group + 1)
        return am.InputStatus.MORE_AVAILABLE

    def snapshot(self) -> list[Split]:
        return [] if self.split is None else [self.split]

    def close(self) -> None:
        self.file.close()


class ParquetSource:
    """One file of columns, read by a worker."""

    boundedness = am.Boundedness.BOUNDED
    parallelism_max = 1

    def __init__(self, path: Path, *, as_batches: bool = False) -> None:
        self.path = str(path)
        self.as_batches = as_batches

    def create_enumerator(self, context: Any, state: Any = None) -> Any:
        return am.StaticEnumerator(context, state or [Split("file")])

    def create_reader(self, context: Any) -> ParquetReader:
        return ParquetReader(self.path, self.as_batches)


def rows_here(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row, and what runs are in this process while it is worked on."""
    runs = [each for each in gc.get_objects() if type(each).__name__ == "ArrowRun"]
    return row["number"], row["word"], os.getpid(), bool(runs)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    import pyarrow.parquet as pq

    table = pa.table(
        {"number": list(range(400)), "word": [f"w{n % 7}" for n in range(400)]}
    )
    pq.write_table(table, tmp_path / "words.parquet", row_group_size=80)
    return tmp_path / "words.parquet"


EXPECTED = [(number, f"w{number % 7}") for number in range(400)]


async def test_columns_cross_as_columns(
    env: am.StreamExecutionEnvironment, file: Path
) -> None:
    words = env.from_source(ParquetSource(file))
    found = await words.rebalance().map(rows_here).collect()
    assert sorted(each[:2] for each in found) == EXPECTED
    assert Counter(each[2] for each in found).most_common()[0][1] == 200
    assert len({each[2] for each in found}) == 2
    assert os.getpid() not in {each[2] for each in found}
    # The worker that reads none has runs only if they came as such.
    assert {each[3] for each in found} == {True}


async def test_records_of_a_key_stay_together(
    env: am.StreamExecutionEnvironment, file: Path
) -> None:
    words = env.from_source(ParquetSource(file))
    keyed = words.key_by(lambda row: row["word"]).map(rows_here)
    found = await keyed.collect()
    assert sorted(each[:2] for each in found) == EXPECTED
    places = {(each[1], each[2]) for each in found}
    assert len(places) == 7, "one process a key"
    assert len({place for _, place in places}) == 2
    assert {each[3] for each in found} == {True}


async def test_batches_that_are_records_cross(
    env: am.StreamExecutionEnvironment, file: Path
) -> None:
    def total(batch: Any) -> tuple[int, int, Any]:
        return os.getpid(), sum(batch.column("number").to_pylist()), batch

    batches = env.from_source(ParquetSource(file, as_batches=True))
    found = await batches.rebalance().map(total).collect()
    assert len(found) == 5
    assert sum(each[1] for each in found) == sum(range(400))
    assert len({each[0] for each in found}) == 2
    assert sorted(each[2].num_rows for each in found) == [80] * 5
