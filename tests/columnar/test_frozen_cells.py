"""Cells that a snapshot holds on to stay as they were, whatever comes after."""

from __future__ import annotations

import threading
from typing import Any

from hypothesis import given, settings, strategies as st

from aiomailbox.columnar.rolling import ColumnarAggregateOperator
from aiomailbox.testing import OneInputHarness
from tests.columnar.test_rolling import KEY, everything, run_of, tame
from tests.columnar.test_windows import ASSIGNERS, Driven, operator, tame_steps

runs = st.lists(
    st.lists(
        tame.flatmap(
            lambda row: st.builds(
                lambda number: {**row, "key": f"key-{number}"}, st.integers(0, 200)
            )
        ),
        min_size=1,
        max_size=30,
    ),
    max_size=5,
)


def held(operator: Any, chunk: int) -> Any:
    """Return the keys and accumulators of a snapshot that is made now, read later."""
    (snapshot,) = operator.snapshot_apart()
    (rows,) = snapshot.key_groups._states
    return rows.columns(chunk)


@settings(max_examples=25)
@given(runs, runs, st.integers(1, 50), st.integers(0, 5))
def test_a_snapshot_has_what_there_was_when_it_was_made(
    before: list[Any], after: list[Any], chunk: int, read_at: int
) -> None:
    operator = ColumnarAggregateOperator(KEY, everything())
    with OneInputHarness(operator, keyed=True):
        for part in before:
            operator.process_run(run_of(part))
        expected = repr(list(held(operator, 10**6)))
        found, whole = held(operator, chunk), held(operator, 10**6)
        read: list[Any] = []
        for place, part in enumerate(after):
            # Some is read while the rest changes.
            if place >= read_at and (some := next(found, None)) is not None:
                read.append(some)
            operator.process_run(run_of(part))
        assert repr(list(whole)) == expected
        pieces = [*read, *found]
        keys = [key for keys, _ in pieces for key in keys]
        contents = [each for _, some in pieces for each in some]
        assert repr([(keys, contents)] if keys else []) == expected


def states(operator: Any) -> list[Any]:
    """Return what a snapshot of windows that is made now has, to be read later."""
    made = list(operator.snapshot_apart())
    return [state for each in made for state in each.key_groups._states]


def contents(held: list[Any], chunk: int = 10**6) -> str:
    """Read that, so many entries at a time."""
    entries = [
        entry
        for state in held
        for columns in state.columns(chunk)
        for entry in zip(*columns, strict=True)
    ]
    return repr(entries)


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(ASSIGNERS)),
    tame_steps,
    tame_steps,
    st.integers(0, 20),
    st.integers(1, 5),
)
def test_a_snapshot_of_windows_has_what_there_was_when_it_was_made(
    kind: str, before: list[Any], after: list[Any], lateness: int, chunk: int
) -> None:
    made = operator(True, lateness, kind=kind)
    driven = Driven(made, True)
    with driven.harness:
        driven.run(before)
        expected = contents(states(made))
        held, other = states(made), states(made)
        for step in after:
            driven.run([step])
            assert contents(other) == expected
        assert contents(held, chunk) == expected
        assert made._is_columnar


def test_a_thread_reads_a_snapshot_while_records_come() -> None:
    operator = ColumnarAggregateOperator(KEY, everything())
    record = {"n": 1, "x": 0.5, "small": 1, "ok": True}
    part = [{**record, "key": f"key-{i}"} for i in range(5000)]
    with OneInputHarness(operator, keyed=True):
        operator.process_run(run_of(part))
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.extend(rows))
        rows = held(operator, 100)
        reader.start()
        for _ in range(20):
            operator.process_run(run_of(part))
        reader.join()
        assert {each[0] for _, some in found for each in some} == {1}
        assert sum(len(keys) for keys, _ in found) == 5000
        ((_, now),) = held(operator, 10**6)
        assert {each[0] for each in now} == {21}
