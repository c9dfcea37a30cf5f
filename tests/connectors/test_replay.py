"""A source that says it can be replayed gives each record once, wherever it is cut."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

import aiomailbox as am
from aiomailbox.connectors.collection import IteratorSource
from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot, redistribute
from aiomailbox.operators.sources.source import InputStatus, is_replayable
from aiomailbox.state.operator_state import OperatorStateSnapshot
from tests.connectors.conftest import (
    FakeEnumeratorContext,
    FakeOutput,
    FakeReaderContext,
)

pytestmark = pytest.mark.real_time

COUNT = 60


class Subtask:
    """A reader that asks its enumerator, as in a task."""

    def __init__(self, source: Any, life: Life, index: int) -> None:
        self.context = FakeReaderContext(index, life.parallelism)
        self.context.request_split = lambda: life.requests.append(index)  # type: ignore[method-assign]
        self.reader = source.create_reader(self.context)
        self.has_ended = False


class Life:
    """One execution of a source: its enumerator and its readers.

    Args:
        source: The source.
        parallelism: How many readers.
        kept: The bytes of an earlier life: the enumerator's and each reader's.
    """

    def __init__(
        self, source: Any, parallelism: int, kept: tuple[bytes, list[bytes]] | None
    ) -> None:
        self.parallelism = parallelism
        self.requests: list[int] = []
        self.subtasks = [Subtask(source, self, index) for index in range(parallelism)]
        readers = [subtask.reader for subtask in self.subtasks]
        state = None
        if kept is not None:
            state = elements(decode_snapshot(kept[0]))
            shares = redistribute(
                [decode_snapshot(one) for one in kept[1]], parallelism
            )
            for reader, share in zip(readers, shares, strict=True):
                splits = elements(share)
                if splits:
                    reader.add_splits(splits)
        context = FakeEnumeratorContext(readers)
        self.enumerator = source.create_enumerator(context, state)
        self.enumerator.start()
        for index, reader in enumerate(readers):
            self.enumerator.add_reader(index)
            reader.start()

    async def poll(self, index: int, records_max: int) -> list[Any]:
        """Let a reader emit at most one run, once it has something."""
        subtask = self.subtasks[index]
        while not subtask.has_ended:
            self._answer()
            output = FakeOutput(records_max)
            status = subtask.reader.poll_next(output)
            self._answer()
            if status is InputStatus.END_OF_INPUT:
                subtask.has_ended = True
            if status is not InputStatus.NOTHING_AVAILABLE:
                return output.values
            await asyncio.wait_for(subtask.reader.availability.wait(), 100)
        return []

    @property
    def has_ended(self) -> bool:
        return all(subtask.has_ended for subtask in self.subtasks)

    def snapshot(self) -> tuple[bytes, list[bytes]]:
        """Return what a checkpoint has."""
        return in_bytes(self.enumerator.snapshot()), [
            in_bytes(subtask.reader.snapshot()) for subtask in self.subtasks
        ]

    async def close(self) -> None:
        self.enumerator.close()
        for subtask in self.subtasks:
            pending = subtask.reader.close()
            if pending is not None:
                await pending
            await subtask.context.helpers.close()

    def _answer(self) -> None:
        while self.requests:
            self.enumerator.handle_split_request(self.requests.pop(0))


def in_bytes(found: list[Any]) -> bytes:
    own = OperatorStateSnapshot().with_list("splits", found)
    # No class is declared: splits belong to the library.
    return encode_snapshot(OperatorSnapshot(own=own), ())


def elements(snapshot: OperatorSnapshot) -> list[Any]:
    return snapshot.own.elements("splits")


async def read_with_cuts(
    source: Any, cuts: Iterable[tuple[int, int, int]], random: random.Random
) -> list[Any]:
    """Read all; after some polls, read on for a while in vain and begin again."""
    found: list[Any] = []
    kept = None
    limit = getattr(source, "parallelism_max", None)
    for parallelism, polls, in_vain in (*cuts, (2, 10**9, 0)):
        life = Life(source, min(parallelism, limit or parallelism), kept)

        async def poll(life: Life = life) -> list[Any]:
            index = random.randrange(life.parallelism)
            return await life.poll(index, random.randint(1, 7))

        for _ in range(polls):
            if life.has_ended:
                break
            found += await poll()
        kept = life.snapshot()
        for _ in range(in_vain):
            await poll()
        await life.close()
    return found


async def numbers_after(offset: int | None) -> Any:
    for number in range(0 if offset is None else offset + 1, COUNT):
        if number % 10 == 0:
            await asyncio.sleep(0)
        yield {"n": number, "at": [number]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of each kind, with sixty records in all."""
    place = tmp_path_factory.mktemp("files")
    for part in range(3):
        numbers = range(part * 20, part * 20 + 20)
        lines = [f'{{"n": {number}}}\n' for number in numbers]
        (place / f"{part}.jsonl").write_text("".join(lines))
        rows = [f'{number},"a\nb"\n' for number in numbers]
        (place / f"{part}.csv").write_text("n,t\n" + "".join(rows))
        table = pa.table({"n": list(numbers)})
        pq.write_table(table, place / f"{part}.parquet", row_group_size=6)
    return place


SOURCES: dict[str, Callable[[Path], Any]] = {
    "list": lambda _: am.CollectionSource([{"n": n} for n in range(COUNT)]),
    "iterable": lambda _: am.CollectionSource({n: n for n in range(COUNT)}.keys()),
    "function": lambda _: IteratorSource(lambda: ({"n": n} for n in range(COUNT))),
    "offsets": lambda _: am.AsyncIterableSource(numbers_after, offset="n"),
    "jsonl": lambda files: am.FileSource(files / "*.jsonl"),
    "csv": lambda files: am.FileSource(files / "*.csv"),
    "parquet": lambda files: am.FileSource(files / "*.parquet", batch_rows=5),
}
CUTS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 12), st.integers(0, 4)), max_size=4
)


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=CUTS, seed=st.integers(0, 2**32))
@example(cuts=[(1, 0, 4), (3, 3, 0), (1, 12, 4)], seed=1)
async def test_each_record_is_read_once_wherever_a_source_is_cut(
    files: Path, kind: str, cuts: list[tuple[int, int, int]], seed: int
) -> None:
    source = SOURCES[kind](files)
    assert is_replayable(source)
    found = await read_with_cuts(source, cuts, random.Random(seed))
    numbers = [one if isinstance(one, int) else number_of(one) for one in found]
    assert sorted(numbers) == list(range(COUNT))


def number_of(record: Any) -> int:
    return int(record["n"] if isinstance(record, dict) else record.n)


async def test_a_source_that_watches_goes_on_with_files_that_came_meanwhile(
    tmp_path: Path,
) -> None:
    def put(name: str, *values: int) -> None:
        lines = "".join(f'{{"n": {value}}}\n' for value in values)
        (tmp_path / name).write_text(lines)

    put("1.jsonl", 1, 2)
    source = am.FileSource(tmp_path, "jsonl", watch=0.05)
    life = Life(source, 1, None)
    found = await life.poll(0, 1)
    kept = life.snapshot()
    await life.close()
    put("2.jsonl", 3)
    life = Life(source, 1, kept)
    while len(found) < 3:
        found += await life.poll(0, 1)
    put("3.jsonl", 4)
    while len(found) < 4:
        found += await life.poll(0, 1)
    await life.close()
    assert [one["n"] for one in found] == [1, 2, 3, 4]


async def test_splits_of_a_failed_reader_are_read_by_the_next_one(files: Path) -> None:
    """Those that were assigned after the snapshot, from which the reader goes on."""
    for kind in ("jsonl", "list"):
        life = Life(SOURCES[kind](files), 2, None)
        found = [await life.poll(0, 7), await life.poll(1, 7)]
        failed = life.subtasks[1].reader
        life.enumerator.add_splits_back(failed.snapshot(), 1)
        pending = failed.close()
        if pending is not None:
            await pending
        life.subtasks[1].has_ended = True
        if kind == "list":
            # A reader that registers again gets its share again.
            life.subtasks[1] = Subtask(SOURCES[kind](files), life, 1)
            life.enumerator._context.readers[1] = life.subtasks[1].reader
            life.enumerator.add_reader(1)
            life.subtasks[1].reader.start()
        while not life.has_ended:
            for index in (0, 1):
                found.append(await life.poll(index, 7))
        await life.close()
        numbers = sorted(number_of(one) for run in found for one in run)
        assert numbers == list(range(COUNT))


async def test_offsets_are_the_users(tmp_path: Path) -> None:
    asked: list[Any] = []

    async def after(offset: Any) -> Any:
        asked.append(offset)
        for letter in "abc"["abc".find(offset[0]) + 1 if offset else 0 :]:
            yield letter

    source = am.AsyncIterableSource(after, offset=lambda letter: (letter, None))
    life = Life(source, 1, None)
    assert await life.poll(0, 1) == ["a"]
    first = life.snapshot()
    assert await life.poll(0, 1) == ["b"]
    second = life.snapshot()
    await life.close()
    for kept, rest in ((first, ["b", "c"]), (second, ["c"])):
        life = Life(source, 1, kept)
        # Restored, and cut again before anything was read.
        again = Life(source, 1, life.snapshot())
        found: list[Any] = []
        while not again.has_ended:
            found += await again.poll(0, 5)
        assert found == rest
        await life.close()
        await again.close()
    assert asked[0] is None
    assert {tuple(offset) for offset in asked[1:]} == {("a", None), ("b", None)}


async def test_whoever_goes_on_after_a_stop_begins_where_it_was_stopped() -> None:
    """A savepoint that ends a job is taken when its sources read no more."""
    source = SOURCES["offsets"](Path())
    life = Life(source, 1, None)
    found = await life.poll(0, 5)
    life.subtasks[0].reader.stop()
    while not life.has_ended:
        found += await life.poll(0, 5)
    kept = life.snapshot()
    await life.close()
    assert 0 < len(found) < COUNT
    life = Life(source, 1, kept)
    while not life.has_ended:
        found += await life.poll(0, 5)
    await life.close()
    assert [number_of(one) for one in found] == list(range(COUNT))


def test_a_source_says_whether_it_can_be_replayed() -> None:
    async def numbers() -> Any:
        yield 1

    assert is_replayable(am.CollectionSource([1]))
    assert is_replayable(am.CollectionSource({"a": 1}.items()))
    # Another program has other hashes, and so another order.
    assert not is_replayable(am.CollectionSource({"a", "b"}))
    assert not is_replayable(am.CollectionSource(frozenset({1})))
    assert is_replayable(IteratorSource(itertools.count, bounded=False))
    assert not is_replayable(am.CollectionSource(iter([1])))
    assert not is_replayable(IteratorSource(iter([1])))
    assert not is_replayable(am.AsyncIterableSource(numbers))
    assert not is_replayable(am.AsyncIterableSource(numbers()))


def test_offsets_need_a_function_that_takes_one() -> None:
    async def numbers() -> Any:
        yield 1

    with pytest.raises(WrongTypeError, match="cannot be called with 1 positional"):
        am.AsyncIterableSource(numbers, offset="n")
    with pytest.raises(WrongTypeError, match="cannot resume"):
        am.AsyncIterableSource(numbers(), offset="n")
    with pytest.raises(InvalidArgumentError, match="offset"):
        am.AsyncIterableSource(numbers_after, offset="")
