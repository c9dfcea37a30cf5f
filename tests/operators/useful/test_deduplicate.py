"""Of each key one record gets through: the first one."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from aiomailbox.durations import seconds
from aiomailbox.errors import InvalidArgumentError
from aiomailbox.operators.useful.operators import DeduplicateOperator
from aiomailbox.records.events import StreamRecord
from aiomailbox.testing import OneInputHarness


def identity(value: int) -> int:
    return value


@given(values=st.lists(st.integers(0, 9)), cut=st.integers(0, 30))
def test_the_first_of_each_key_gets_through_also_over_a_restart(
    values: list[int], cut: int
) -> None:
    with OneInputHarness(DeduplicateOperator(identity), keyed=True) as harness:
        harness.process_run(values[:cut])
        first, state = harness.values, harness.snapshot()
    again = OneInputHarness(DeduplicateOperator(identity), keyed=True)
    again.restore(state)
    with again as harness:
        harness.process_run(values[cut:])
        assert first + harness.values == list(dict.fromkeys(values))


def test_event_times_stay_and_drops_are_counted() -> None:
    with OneInputHarness(DeduplicateOperator(identity), keyed=True) as harness:
        harness.process_run([1, 1, 2], [5, 6, 7])
        assert harness.output == [StreamRecord(1, 5), StreamRecord(2, 7)]
        assert harness.context.metrics.snapshot()["duplicates_dropped"] == 1


def test_a_key_is_new_again_when_its_time_is_over() -> None:
    operator = DeduplicateOperator(identity, ttl=seconds(1))
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([1])
        harness.set_processing_time(900)
        harness.process_run([1])
        assert harness.values == [1]
        harness.set_processing_time(1001)
        harness.process_run([1])
        assert harness.values == [1, 1]


def test_a_time_to_live_of_zero_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="ttl"):
        DeduplicateOperator(identity, ttl=0)
