"""Every operator: run half, snapshot, bytes, restore in a new one, run the rest.

What comes out is what comes out of one that was never interrupted, wherever it is cut;
of operators with keys also on other numbers of subtasks, and in either state backend.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import aiomailbox
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.forms import ClassForm
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.keygroups.assignment import key_group, key_group_range
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.async_state.operator import KeyedAsyncProcessOperator
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot, redistribute
from aiomailbox.operators.sources.operator import SourceOperator
from aiomailbox.records.events import StreamRecord
from aiomailbox.state.backends import HeapStateBackend, RocksDBStateBackend
from aiomailbox.testing import OperatorHarness
from tests.operators.snapshots.cases import CLASSES, Case, Row, Step, cases

CASES = cases()
KEYED = [case for case in CASES if case.keys]
# What others derive from.
BASES = {
    "AggregateWindowsOperator",
    "BroadcastOperator",
    "CallsOperator",
    "CoFunctionOperator",
    "ColumnarJoin",
    "ColumnarOperator",
    "ColumnarWindows",
    "ElementOperator",
    "FunctionHolder",
    "FunctionOperator",
    "KeyedFunctionOperator",
    "KeyedJoinOperator",
    "LookedAtOperator",
    "RollingOperator",
    "StatefulOperator",
    "StatelessOperator",
    "TwoInputOperator",
    # It refuses a snapshot: what it has in files would be in none.
    "SortOperator",
    # They keep nothing of a record but the types that fields had so far.
    "ExpressionFilter",
    "ExpressionOperator",
    "PairSelection",
    "ProjectionOperator",
}
# Nothing else of the package is imported by them, and they do more than be imported.
NOT_IMPORTED = ("__main__", "worker_main")


def operators_of_the_package() -> set[type[Operator]]:
    for module in pkgutil.walk_packages(aiomailbox.__path__, "aiomailbox."):
        if not module.name.endswith(NOT_IMPORTED):
            importlib.import_module(module.name)
    found: set[type[Operator]] = set()
    waiting = Operator.__subclasses__()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("aiomailbox."):
            found.add(kind)
    return found


def test_there_is_a_case_for_every_operator() -> None:
    known = {case.kind for case in CASES}
    missing = {
        kind.__qualname__
        for kind in operators_of_the_package()
        if kind not in known and kind.__name__ not in BASES
    }
    assert not missing, f"write cases for {sorted(missing)}"
    for case in CASES:
        assert type(case.make()) is case.kind


HEAP = HeapStateBackend()


def columns_of(rows: list[Any], stamps: list[int] | None) -> ArrowRun:
    batch = pa.RecordBatch.from_pylist([row._asdict() for row in rows])
    return ArrowRun(batch, RowMaker(batch.schema, ClassForm(Row)), stamps)


class Run:
    """Drives the subtasks of one operator, and replaces them."""

    def __init__(self, case: Case, backend: Any) -> None:
        self.case = case
        self.backend = backend
        self.out: list[Any] = []
        self.now = 0
        self.lives = 0
        self.subtasks: list[OperatorHarness] = []
        # The watermarks that were given to the present subtasks.
        self.watermarks: list[int] = []

    async def begin(
        self, parallelism: int = 1, snapshots: list[OperatorSnapshot] | None = None
    ) -> None:
        """Open new subtasks, maybe restored ones."""
        self.subtasks, self.watermarks = [], []
        self.lives += 1
        for index in range(parallelism):
            harness = self.case.harness(
                self.case.make(),
                keyed=bool(self.case.keys),
                parallelism=parallelism,
                subtask_index=index,
                state_backend=self.backend,
                seed=self.lives,
            )
            harness.set_processing_time(self.now)
            if snapshots is not None:
                harness.restore(snapshots[index])
            await harness.run(harness.open)
            self.case.begin(harness, snapshots is not None)
            self.subtasks.append(harness)

    async def go_on(self, parallelism: int = 1) -> None:
        """Snapshot, make it bytes, and go on in new subtasks."""
        kept = []
        for harness in self.subtasks:
            self.check_watermark(harness)
            snapshot = harness.snapshot()
            self.out.append(self.case.seen(harness))
            await harness.run(harness.close)
            kept.append(decode_snapshot(encode_snapshot(snapshot, CLASSES), CLASSES))
        await self.begin(parallelism, redistribute(kept, parallelism))

    def check_watermark(self, harness: OperatorHarness) -> None:
        if len(harness.inputs) == 1 and self.watermarks:
            assert harness.snapshot().watermark == self.watermarks[-1]

    async def feed(self, steps: list[Step]) -> None:
        for step in steps:
            await self.step(*step)

    async def step(self, kind: str, *args: Any) -> None:
        if kind in {"run", "columns"}:
            await self.run(*args, are_columns=kind == "columns")
            return
        if kind == "sleep":
            await asyncio.sleep(*args)
        if kind == "time":
            self.now = args[0]
        for harness in self.subtasks:
            match kind:
                case "watermark":
                    index, timestamp = args
                    self.watermarks.append(max([timestamp, *self.watermarks]))
                    await harness.run(
                        harness.inputs[index].process_watermark, timestamp
                    )
                case "time":
                    await harness.run(harness.set_processing_time, *args)
                case "sleep":
                    await harness.run(harness.run_mail)
                case "prepare":
                    await harness.run(harness.prepare_snapshot)
                case "full":
                    harness.recorded.availability.reset()
                case "room":
                    harness.recorded.availability.set_available()
                    harness.run_mail()
                case "poll":
                    assert isinstance(harness.operator, SourceOperator)
                    _, pending = harness.operator.poll()
                    assert pending is None

    async def run(
        self,
        index: int,
        values: list[Any],
        stamps: list[int] | None,
        *,
        are_columns: bool = False,
    ) -> None:
        """Give each subtask the records of its keys."""
        for subtask, harness in enumerate(self.subtasks):
            mine = [
                place
                for place, value in enumerate(values)
                if self.is_for(subtask, index, value)
            ]
            if not mine:
                continue
            rows = [values[place] for place in mine]
            times = None if stamps is None else [stamps[place] for place in mine]
            if are_columns:
                columns = columns_of(rows, times)
                await harness.run(harness.inputs[index].process_run, columns)
            else:
                await harness.run(harness.inputs[index].process_run, rows, times)

    def is_for(self, subtask: int, index: int, value: Any) -> bool:
        key = self.case.keys[index] if self.case.keys else None
        if key is None:
            return True
        groups = key_group_range(128, len(self.subtasks), subtask).key_groups
        return key_group(key(value), 128) in groups

    async def end(self) -> list[Any]:
        for harness in self.subtasks:
            harness.recorded.availability.set_available()
            for one in harness.inputs:
                await harness.run(one.end_input)
            await harness.run(harness.run_mail)
            await harness.run(harness.finish)
            self.out.append(self.case.seen(harness))
            await harness.run(harness.close)
        return [element for part in self.out for element in part]


async def uninterrupted(case: Case, backend: Any) -> list[Any]:
    run = Run(case, backend)
    await run.begin()
    await run.feed(case.steps)
    return await run.end()


async def interrupted(
    case: Case, backend: Any, cuts: list[int], parallelisms: list[int]
) -> list[Any]:
    run = Run(case, backend)
    await run.begin(parallelisms[0])
    before = 0
    for cut, parallelism in zip(cuts, parallelisms[1:], strict=True):
        await run.feed(case.steps[before:cut])
        await run.go_on(parallelism)
        before = cut
    await run.feed(case.steps[before:])
    return await run.end()


def in_any_order(elements: list[Any]) -> Any:
    """Return the records, for calls that end in another order after a restart."""
    records = [one for one in elements if isinstance(one, StreamRecord)]
    return Counter(map(repr, records))


def between_watermarks(elements: list[Any]) -> Any:
    """Return everything in order, but for what a watermark fires at once."""
    parts: list[Any] = [Counter()]
    for element in elements:
        if isinstance(element, StreamRecord):
            parts[-1][repr(element)] += 1
        else:
            parts += [element, Counter()]
    return parts


def order_of(case: Case) -> Callable[[list[Any]], Any]:
    """Return what is promised of the order of a case's output, whether cut or not."""
    if case.name in {"ordered=False", "ordered=key"}:
        return in_any_order
    if case.kind is KeyedAsyncProcessOperator:
        return in_any_order
    return between_watermarks if case.keys else list


def is_ordered_by_key(elements: list[Any]) -> bool:
    """Say whether the results of each key's rows are in the order of the rows."""
    rows = [one.value[0] for one in elements if isinstance(one, StreamRecord)]
    numbers = [[row.number for row in rows if row.key == key] for key in "abc"]
    return all(each == sorted(each) for each in numbers)


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_wherever_it_is_cut_it_goes_on_as_if_it_had_not_been(case: Case) -> None:
    expected = await uninterrupted(case, HEAP)
    assert expected, "a case in which nothing comes out shows nothing"
    compare = order_of(case)
    for cut in range(len(case.steps) + 1):
        found = await interrupted(case, HEAP, [cut], [1, 1])
        assert compare(found) == compare(expected), f"cut at step {cut}"


@pytest.mark.parametrize("case", KEYED, ids=str)
async def test_keys_go_on_wherever_they_come_to(case: Case) -> None:
    expected = in_any_order(await uninterrupted(case, HEAP))
    count = len(case.steps)
    places = [count // 5, count // 2, 4 * count // 5]
    for cuts, parallelisms in (
        (places[:1], [1, 3]),
        (places[1:2], [3, 1]),
        (places, [2, 3, 1, 2]),
    ):
        found = await interrupted(case, HEAP, cuts, parallelisms)
        assert in_any_order(found) == expected, f"{parallelisms} cut at {cuts}"
        if case.kind is AsyncMapOperator:
            assert is_ordered_by_key(found)


@pytest.mark.parametrize("case", KEYED, ids=str)
async def test_keyed_state_goes_from_disk_to_other_subtasks_on_disk(
    case: Case, tmp_path: Path
) -> None:
    expected = in_any_order(await uninterrupted(case, HEAP))
    backend = RocksDBStateBackend(tmp_path, memory_bytes=1 << 20)
    half = len(case.steps) // 2
    found = await interrupted(case, backend, [half, half + 2], [1, 1, 2])
    assert in_any_order(found) == expected
    gc.collect()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("case", KEYED, ids=str)
async def test_a_snapshot_that_is_read_late_is_what_it_was(case: Case) -> None:
    """Whatever the operator does after it: it is made bytes when all is over."""
    expected = in_any_order(await uninterrupted(case, HEAP))
    count = len(case.steps)
    for cut in (count // 3, 2 * count // 3):
        run = Run(case, HEAP)
        await run.begin()
        await run.feed(case.steps[:cut])
        (harness,) = run.subtasks
        snapshots = [harness.snapshot() for _ in range(2)]
        before = list(case.seen(harness))
        await run.feed(case.steps[cut:])
        in_between = harness.snapshot()
        # It goes on under its cuts as it would without.
        found = in_any_order(await run.end())
        assert found == expected, f"cut at step {cut}"
        for snapshot in snapshots:
            kept = decode_snapshot(encode_snapshot(snapshot, CLASSES), CLASSES)
            resumed = Run(case, HEAP)
            resumed.now = now_at(case, cut)
            await resumed.begin(1, [kept])
            await resumed.feed(case.steps[cut:])
            rest = await resumed.end()
            assert in_any_order(before + rest) == expected, f"cut at step {cut}"
        assert encode_snapshot(in_between, CLASSES)


def now_at(case: Case, cut: int) -> int:
    times = [step[1] for step in case.steps[:cut] if step[0] == "time"]
    return times[-1] if times else 0
