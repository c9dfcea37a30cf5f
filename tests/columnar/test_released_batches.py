"""Few records of a long batch do not keep all of it alive."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import aiomailbox as am
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.async_column import AsyncColumnOperator
from aiomailbox.columnar.forms import NamedTupleForm
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.window_join import ColumnarWindowJoin
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.testing import OneInputHarness, TwoInputHarness
from aiomailbox.windowing.co_group import SidedKey

ROWS = 16_384


def one_of_many() -> ArrowRun:
    """Return a record of a batch of a megabyte."""
    texts = pa.array([f"{number:064}" for number in range(ROWS)])
    batch = pa.record_batch({"key": texts, "n": pa.array(range(ROWS))})
    maker = RowMaker(batch.schema, NamedTupleForm())
    taken = ArrowRun(batch, maker, np.zeros(ROWS, np.int64)).take([5])
    assert isinstance(taken, ArrowRun)
    return taken


def kept_bytes(keep: Callable[[ArrowRun], Any]) -> int:
    """Return what is kept alive by keeping twenty of them."""
    gc.collect()
    before = pa.total_allocated_bytes()
    kept = [keep(one_of_many()) for _ in range(20)]
    gc.collect()
    found = pa.total_allocated_bytes() - before
    assert len(kept) == 20
    return found


def test_a_record_that_waits_for_its_reader_lets_its_batch_be_released() -> None:
    assert kept_bytes(lambda run: run) > 20 * ROWS * 64
    assert kept_bytes(lambda run: (run, run.size_bytes())) < ROWS


def test_a_record_in_a_window_of_a_join_lets_its_batch_be_released() -> None:
    key = field_or_function("key", "key")
    windows = am.TumblingEventTimeWindows.of(am.seconds(1))
    join = ColumnarWindowJoin(SidedKey(key, key), windows)
    with TwoInputHarness(join, keyed=True) as harness:
        assert kept_bytes(harness.inputs[0].process_run) < ROWS
        assert join._is_columnar


async def test_a_record_whose_call_takes_long_lets_its_batch_be_released() -> None:
    waits = asyncio.Event()

    async def slow(record: Any) -> int:
        await waits.wait()
        return 1

    operator = AsyncColumnOperator(slow, into="y", columns=["n"], concurrency=50)
    async with OneInputHarness(operator) as harness:
        assert kept_bytes(harness.operator.process_run) < ROWS
        waits.set()
        await harness.run(harness.end_input)
        assert len(harness.values) == 20
