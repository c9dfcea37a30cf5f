"""Lists of records: none lost, none twice, none late, none too long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.operators.useful.operators import BatchOperator
from aiomailbox.records.events import (
    MAX_TIMESTAMP,
    StreamRecord,
    Watermark,
    WatermarkStatus,
)
from aiomailbox.testing import OneInputHarness


def chunks(values: list[int], size: int) -> list[list[int]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


@given(
    runs=st.lists(st.lists(st.integers(), max_size=9), max_size=9),
    size=st.integers(1, 5),
    cut=st.integers(0, 9),
)
def test_lists_are_those_of_slicing_also_over_a_restart(
    runs: list[list[int]], size: int, cut: int
) -> None:
    with OneInputHarness(BatchOperator(size)) as harness:
        for run in runs[:cut]:
            harness.process_run(run)
        first, state = harness.values, harness.snapshot()
    again = OneInputHarness(BatchOperator(size))
    again.restore(state)
    with again as harness:
        for run in runs[cut:]:
            harness.process_run(run)
        harness.end_input()
        assert first + harness.values == chunks(
            [one for run in runs for one in run], size
        )


def test_a_list_goes_out_when_its_first_record_has_waited_long_enough() -> None:
    with OneInputHarness(BatchOperator(9, within=1.0)) as harness:
        harness.process_run([1])
        harness.set_processing_time(600)
        harness.process_run([2])
        assert harness.values == []
        harness.set_processing_time(1001)
        assert harness.values == [[1, 2]]
        harness.process_run([3])
        harness.set_processing_time(1700)
        assert harness.values == [[1, 2]]


def test_a_restored_list_goes_out_when_it_would_have() -> None:
    with OneInputHarness(BatchOperator(9, within=1.0)) as harness:
        harness.set_processing_time(500)
        harness.process_run([1])
        state = harness.snapshot()
    again = OneInputHarness(BatchOperator(9, within=1.0))
    again.set_processing_time(900)
    again.restore(state)
    with again as harness:
        assert harness.values == []
        harness.set_processing_time(1501)
        assert harness.values == [[1]]


def test_a_watermark_follows_the_list_that_is_open() -> None:
    with OneInputHarness(BatchOperator(3)) as harness:
        harness.process_run(["a", "b"], [5, 4])
        harness.process_watermark(5)
        assert harness.output == []
        harness.process_run(["c", "d"], [6, 7])
        harness.process_watermark(MAX_TIMESTAMP)
        assert harness.output == [
            StreamRecord(["a", "b", "c"], 6),
            Watermark(5),
            StreamRecord(["d"], 7),
            Watermark(MAX_TIMESTAMP),
        ]


def test_an_idle_stream_completes_its_list() -> None:
    with OneInputHarness(BatchOperator(3)) as harness:
        harness.process_run(["a"])
        harness.process_status(WatermarkStatus.IDLE)
        assert harness.output == [StreamRecord(["a"]), WatermarkStatus.IDLE]


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"size": 0}, InvalidArgumentError, "size"),
        ({"size": 1.5}, WrongTypeError, "size"),
        ({"size": 1, "within": 0}, InvalidArgumentError, "within"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        BatchOperator(**arguments)
