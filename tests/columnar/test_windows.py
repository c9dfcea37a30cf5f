"""Windows over columns: equal to those over rows, whatever comes."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import aiomailbox as am
from aiomailbox.columnar.aligned import ColumnarTumblingOperator
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.cell_grid import CellGrid
from aiomailbox.columnar.forms import NamedTupleForm
from aiomailbox.columnar.making import rows_reason
from aiomailbox.columnar.rolling import ColumnarAggregateOperator
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.sessions import find_overlaps
from aiomailbox.columnar.types import RowsNeededError
from aiomailbox.operators.core.fields import (
    FieldSelector,
    FieldsSelector,
    field_or_function,
)
from aiomailbox.operators.keyed.operators import KeyedAggregateOperator
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.records.run import ListRun
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.session_aggregate import SessionAggregateOperator
from tests.columnar.test_rolling import SCHEMA, everything, rows, sums, tame
from tests.operators.aggregates.kept import columnar_windows

KEY = field_or_function("key", "key")
LATE = am.OutputTag[Any]("late")
MS = am.millis(10)
ASSIGNERS = {
    "tumbling": lambda: am.TumblingEventTimeWindows.of(MS, am.millis(3)),
    "panes": lambda: am.SlidingEventTimeWindows.of(MS, am.millis(5)),
    "narrow panes": lambda: am.SlidingEventTimeWindows.of(
        MS, am.millis(4), am.millis(1)
    ),
    "sliding": lambda: am.SlidingEventTimeWindows.of(MS, am.millis(7)),
    "holes": lambda: am.SlidingEventTimeWindows.of(am.millis(6), MS),
    "sessions": lambda: am.EventTimeSessionWindows.with_gap(am.millis(6)),
}
kinds = st.sampled_from(sorted(ASSIGNERS))

# A run of records with their event times, or a watermark's step.
times = st.one_of(st.integers(-40, 60), st.sampled_from([-(2**45), 2**45]))
tame_runs = st.lists(st.tuples(tame, st.integers(-40, 60)), min_size=1, max_size=12)
wild_runs = st.lists(st.tuples(rows, times), min_size=1, max_size=12)
steps = st.lists(st.one_of(wild_runs, tame_runs, st.integers(0, 30)), max_size=10)
tame_steps = st.lists(st.one_of(tame_runs, st.integers(0, 30)), max_size=10)


def run_of(part: list[Any]) -> ArrowRun:
    batch = pa.RecordBatch.from_pylist([record for record, _ in part], SCHEMA)
    maker = RowMaker(SCHEMA, NamedTupleForm())
    return ArrowRun(batch, maker, [time for _, time in part])


def operator(
    columns: bool,
    lateness: int,
    key: Any = KEY,
    aggregate: Any = None,
    kind: str = "tumbling",
    *,
    pairs: bool = False,
) -> Any:
    make = columnar_windows if columns else window_operator
    return make(
        key,
        ASSIGNERS[kind](),
        aggregate=everything() if aggregate is None else aggregate,
        allowed_lateness=am.millis(lateness),
        late_tag=LATE,
        include_key=pairs and key is not None,
    )


class Driven:
    """An operator with what came out of it, as text: it tells zeros and types apart."""

    def __init__(self, made: Any, columns: bool, snapshot: Any = None) -> None:
        self.harness = OneInputHarness(made, keyed=True)
        self.harness.restore(snapshot)
        self.columns = columns
        self.watermark = -60
        self.error = ""
        self.tied = isinstance(made, SessionAggregateOperator)

    def run(self, some: list[Any]) -> None:
        operator = self.harness.operator
        try:
            for step in some:
                if isinstance(step, int):
                    self.watermark += step
                    operator.process_watermark(self.watermark)
                    continue
                run = run_of(step)
                rows_run = ListRun(run.values, run.timestamps)
                operator.process_run(run if self.columns else rows_run)
        except am.AioMailboxError as error:
            self.error = type(error).__name__

    def end(self) -> list[str]:
        if not self.error:
            self.harness.operator.process_watermark(2**62)
        dropped = self.harness.context.metrics.counter("num_late_records_dropped")
        late = list(map(repr, self.harness.side_output(LATE)))
        out = list(map(repr, self.harness.output))
        if self.tied:
            # Sessions that end together come in any order.
            out.sort(key=lambda text: (text.partition("timestamp")[2], text))
        return [*out, *late, str(dropped.value), self.error]


def outcome(made: Any, columns: bool, some: list[Any]) -> list[str]:
    driven = Driven(made, columns)
    with driven.harness:
        driven.run(some)
        return driven.end()


@settings(max_examples=30)
@given(
    steps,
    st.sampled_from([0, 0, 7, 25]),
    st.sampled_from([everything, sums, lambda: am.sum_("n")]),
    kinds,
    st.booleans(),
)
def test_columns_give_what_rows_give(
    some: list[Any], lateness: int, aggregate: Any, kind: str, pairs: bool
) -> None:
    by_columns, by_rows = (
        outcome(
            operator(columns, lateness, KEY, aggregate(), kind, pairs=pairs),
            columns,
            some,
        )
        for columns in (True, False)
    )
    assert by_columns == by_rows


@settings(max_examples=30)
@given(
    tame_steps,
    st.sampled_from([0, 0, 7, 25]),
    st.sampled_from([everything, lambda: am.sum_("x"), am.count, lambda: am.mean("n")]),
    st.sampled_from([KEY, None]),
    kinds,
    st.booleans(),
)
def test_tame_values_stay_columns(
    some: list[Any], lateness: int, aggregate: Any, key: Any, kind: str, pairs: bool
) -> None:
    made = operator(True, lateness, key, aggregate(), kind, pairs=pairs)
    by_columns = outcome(made, True, some)
    assert made._is_columnar
    by_rows = operator(False, lateness, key, aggregate(), kind, pairs=pairs)
    assert by_columns == outcome(by_rows, False, some)


@settings(max_examples=20)
@given(
    st.one_of(steps, tame_steps),
    st.one_of(steps, tame_steps),
    st.sampled_from([0, 7]),
    st.booleans(),
    st.booleans(),
    kinds,
    st.booleans(),
)
def test_a_snapshot_of_one_form_is_restored_in_the_other(
    before: list[Any],
    after: list[Any],
    lateness: int,
    first: bool,
    second: bool,
    kind: str,
    pairs: bool,
) -> None:
    def made(columns: bool) -> Any:
        aggregate = am.sum_("n") if pairs else None
        return operator(columns, lateness, aggregate=aggregate, kind=kind, pairs=pairs)

    def resumed(first: bool, second: bool) -> list[str]:
        one = Driven(made(first), first)
        with one.harness:
            one.run(before)
            snapshot = decode_snapshot(encode_snapshot(one.harness.snapshot()))
        two = Driven(made(second), second, snapshot)
        two.watermark = one.watermark
        with two.harness:
            two.run(after)
            # A restore promises no order of keys.
            return [one.error, *sorted(two.end()[:-2])]

    assert resumed(first, second) == resumed(False, False)


def few(*records: tuple[str, int]) -> list[Any]:
    """Return records of keys and event times, no two with the same number."""
    return [
        ({"key": key, "n": 7 * time, "x": time / 4, "small": time, "ok": True}, time)
        for key, time in records
    ]


# Until a watermark has come, those behind a restore are for windows that have fired.
BEHIND: list[Any] = [
    few(("a", 7), ("d", 7), ("h", -2)),
    few(("a", 8), ("e", 16)),
    72,
    few(("b", 9), ("f", 16), ("g", 5), ("h", -12)),
    10,
    few(("c", 6), ("a", 18), ("h", -11)),
    16,
    few(("b", 10), ("d", 20)),
]


@pytest.mark.parametrize("again", [0, 3, 5])
@pytest.mark.parametrize("lateness", [7, 25])
@pytest.mark.parametrize("kind", ASSIGNERS)
def test_what_fired_before_a_restore_fires_again_only_with_another_record(
    kind: str, lateness: int, again: int
) -> None:
    """A subtask that has the state of several now is behind what the others had fired."""

    def resumed(*forms: bool) -> list[str]:
        drives: list[Driven] = []
        with ExitStack() as opened:

            def begin(state: Any) -> None:
                columns = forms[len(drives)]
                made = operator(columns, lateness, kind=kind)
                drives.append(Driven(made, columns, state))
                opened.enter_context(drives[-1].harness)

            def restart() -> None:
                state = decode_snapshot(encode_snapshot(drives[-1].harness.snapshot()))
                begin(replace(state, watermark=drives[-1].watermark - 82))

            begin(None)
            drives[0].run([few(("a", 4), ("b", 5), ("c", 6), ("a", 15)), 82])
            # Alone in a window that has ended.
            drives[0].run([few(("h", -1))])
            restart()
            for number, step in enumerate(BEHIND):
                drives[-1].run([step])
                if number == again:
                    restart()
            # A restore promises no order of keys.
            return [text for each in drives for text in sorted(each.end()[:-2])]

    expected = resumed(False, False, False)
    for forms in ((True, True, True), (True, False, True), (False, True, False)):
        assert resumed(*forms) == expected, forms


@pytest.mark.parametrize("lateness", [0, 7])
@pytest.mark.parametrize("kind", ASSIGNERS)
def test_a_record_leads_to_the_same_in_both_forms_wherever_event_time_is(
    kind: str, lateness: int
) -> None:
    """In windows that are open, have fired, are over, or that only it is between."""
    for watermark in range(14, 36):
        steps = [
            few(("a", 12), ("a", 22)),
            60 + watermark,
            few(("b", 20), ("a", 17), ("a", 11)),
        ]
        by_columns, by_rows = (
            outcome(operator(columns, lateness, kind=kind), columns, steps)
            for columns in (True, False)
        )
        assert by_columns == by_rows, watermark


def test_keys_of_late_records_keep_the_order_of_these_in_windows_that_end_later() -> (
    None
):
    def both() -> Any:
        return am.aggregates(n=am.count())

    # The first and the second are of one key, in two panes.
    late = [
        ({"key": key, "n": 1}, time) for key, time in (("a", 1), ("a", 6), ("b", 6))
    ]
    some = [[({"key": "c", "n": 1}, 8)], 72, late, 3, 60]
    found = [
        outcome(operator(columns, 25, aggregate=both(), kind="panes"), columns, some)
        for columns in (True, False)
    ]
    assert found[0] == found[1]


def test_keys_of_several_fields_and_many_windows_in_a_run() -> None:
    fields = FieldsSelector((FieldSelector("key", "key"), FieldSelector("n", "key")))
    record = {"key": "a", "n": 1, "x": 0.5, "small": 1, "ok": True}
    part = [({**record, "n": i % 3}, i * 10) for i in range(300)]
    some = [part, 2000, part[::-1], 5000]
    assert outcome(operator(True, 0, fields), True, some) == outcome(
        operator(False, 0, fields), False, some
    )


def test_keys_that_come_once_do_not_stay() -> None:
    made = operator(True, 0)
    record = {"n": 1, "x": 0.5, "small": 1, "ok": True}
    driven = Driven(made, True)
    with driven.harness:
        for round_ in range(12):
            part = [
                ({**record, "key": f"{round_}-{i}"}, round_ * 10) for i in range(2000)
            ]
            driven.run([part, 10 if round_ else 70])
        assert made._is_columnar
        assert len(made._slots.places) < 10_000
        assert len(driven.harness.values) == 24_000


# Of a key, there are no two that touch.
sessions = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 1), st.integers(0, 2), st.integers(4, 9)
    ),
    unique_by=lambda one: one[:2],
    max_size=6,
).map(lambda many: [(key, 100 + 12 * at + more, long) for key, at, more, long in many])
records = st.lists(
    st.tuples(st.integers(0, 1), st.integers(95, 125)), min_size=1, max_size=9
)


@given(records, sessions)
def test_a_stretch_is_simple_if_each_record_touches_what_is_there_of_it(
    records: list[tuple[int, int]], sessions: list[tuple[int, int, int]]
) -> None:
    came = [(key, start, start + 4) for key, start in records]
    there = [(key, start, start + long) for key, start, long in sessions]
    found = find_overlaps(*np.array(came).T, *np.array(there, int).reshape(-1, 3).T)
    stretches: list[list[Any]] = []
    for key, start, end in sorted(came + there):
        last = stretches[-1] if stretches else [None, 0, 0]
        if last[0] == key and start <= last[2]:
            last[2] = max(last[2], end)
        else:
            stretches.append([key, start, end])
    assert np.array([found.slots, found.starts, found.ends]).T.tolist() == stretches
    covered: dict[int, list[int]] = {}
    simple = [True] * len(stretches)
    for which, (_, start, end) in zip(
        [*found.of_others.tolist(), *found.of_records.tolist()],
        there + came,
        strict=True,
    ):
        assert stretches[which][1] <= start <= end <= stretches[which][2]
        low, high = covered.get(which, [start, end])
        touches = start <= high and low <= end
        covered[which] = [min(low, start), max(high, end)]
        simple[which] &= touches
    assert found.simple.tolist() == simple


@pytest.mark.parametrize("bits", range(52, 63))
def test_event_times_too_far_apart_for_64_bits_are_left_to_rows(bits: int) -> None:
    # In numbers that go on from key to key, those of the third reach a power of two.
    slots, starts = np.array([0, 1, 2, 2]), np.array([0, 2**bits - 9, 2, 5])
    none = np.zeros(0, np.int64)
    try:
        found = find_overlaps(slots, starts, starts + 6, none, none, none)
    except RowsNeededError:
        assert bits > 60
    else:
        assert bits <= 60
        assert found.of_records.tolist() == [0, 1, 2, 2]
        assert found.ends.tolist() == [6, 2**bits - 3, 11]
        assert found.simple.all()


def test_sessions_end_when_they_are_over_beside_one_that_ends_much_later() -> None:
    made = operator(True, 7, aggregate=am.sum_("n"), kind="sessions")
    driven = Driven(made, True)

    def values(*steps: Any) -> list[Any]:
        """Run records of keys and times, and the watermark's steps."""
        for step in steps:
            run = [({"key": key, "n": 1}, at) for key, at in [step]] if step[1:] else 0
            driven.run([run or step[0]])
        return list(driven.harness.values)

    with driven.harness:
        assert values(("far", 5000), ("a", 4), (60,), ("a", 8), (10,)) == []
        # It has grown since it was looked at.
        assert values((4,)) == [2]
        # Nor is it kept for late records for longer.
        assert values((7,)) == [2]
        assert len(made._kept.all()) == 1
        # One that begins later waits for the latest no more than it did.
        assert values(("b", 30), (20,)) == [2, 1]
        assert made._is_columnar


def test_sessions_go_on_while_keys_that_come_once_do_not_stay() -> None:
    made = operator(True, 0, aggregate=am.sum_("n"), kind="sessions")
    driven = Driven(made, True)
    with driven.harness:
        for round_ in range(12):
            part = [(f"{round_}-{i}", 10 * round_) for i in range(2000)]
            part += [(key, 10 * round_ + late) for key in "abc" for late in (0, 6)]
            if round_ in {0, 11}:
                # One has another session, which only the last round goes on with.
                part.append(("b", 5000 + round_ // 2))
            run = [({"key": key, "n": 1}, time) for key, time in part]
            driven.run([run, 10 if round_ else 70])
        assert made._is_columnar
        assert len(made._slots.places) < 10_000
        driven.run([9000])
        assert Counter(driven.harness.values) == {1: 24_000, 2: 1, 24: 3}


@pytest.mark.parametrize(("lateness", "places"), [(0, 100), (7, 200)])
def test_sessions_begin_at_the_places_of_those_that_are_over(
    lateness: int, places: int
) -> None:
    made = operator(True, lateness, aggregate=am.sum_("n"), kind="sessions")
    driven = Driven(made, True)
    with driven.harness:
        for round_ in range(12):
            part = [({"key": f"{i}", "n": 1}, round_ * 10) for i in range(100)]
            driven.run([part, 10 if round_ else 70])
        assert made._is_columnar
        assert len(driven.harness.values) == 12 * 100
        assert len(made._kept.stages) == places


class Counted(np.ndarray):
    """An array that counts how many elements functions are computed of."""

    computed = 0

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **named: Any
    ) -> Any:
        # Of `at`, the first is the array in which some are changed.
        sizes = map(np.size, inputs[1:] if method == "at" else inputs)
        Counted.computed += max(sizes)
        plain = [np.asarray(x) if isinstance(x, Counted) else x for x in inputs]
        if "out" in named:
            named["out"] = tuple(map(np.asarray, named["out"]))
        return getattr(ufunc, method)(*plain, **named)


def test_a_watermark_looks_only_at_sessions_that_may_end() -> None:
    made = operator(True, 5, aggregate=am.sum_("n"), kind="sessions")
    driven = Driven(made, True)
    with driven.harness:
        driven.run([[({"key": f"{i}", "n": 1}, 10 * i) for i in range(8000)]])
        driven.run([[({"key": "0", "n": 1}, 90_000)], 0])
        kept = made._kept
        kept.ends, kept.stages = kept.ends.view(Counted), kept.stages.view(Counted)
        Counted.computed = 0
        for place in range(100):
            driven.run([[({"key": "0", "n": 1}, 90_001 + place)], 10])
        assert len(driven.harness.values) == 94
        # All of them once, to find those that are near.
        assert Counted.computed < 3 * 8000 + 100 * 100


def test_late_records_of_sliding_windows_clear_no_cells_of_other_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = operator(True, 500, aggregate=am.sum_("n"), kind="panes")
    cleared: list[int] = []
    clear_row = CellGrid._clear_row

    def counting(grid: CellGrid, cells: slice) -> None:
        cleared.append(cells.stop - cells.start)
        clear_row(grid, cells)

    driven = Driven(made, True)
    with driven.harness:
        driven.run([[({"key": f"{i}", "n": 1}, 5) for i in range(5000)], 100])
        emitted = len(driven.harness.values)
        monkeypatch.setattr(CellGrid, "_clear_row", counting)
        driven.run([[({"key": f"{i}", "n": 1}, 5)] for i in range(50)])
        assert len(driven.harness.values) == emitted + 2 * 50
    assert not cleared


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("kind", ["tumbling", "panes", "sessions"])
async def test_windows_of_very_many_keys_are_restored_in_pieces(
    kind: str, columns: bool
) -> None:
    one = Driven(operator(columns, 5, aggregate=am.sum_("n"), kind=kind), columns)
    with one.harness:
        one.run([[({"key": f"{i}", "n": i}, 5) for i in range(9000)]])
        snapshot = decode_snapshot(encode_snapshot(one.harness.snapshot()))
    two = operator(columns, 5, aggregate=am.sum_("n"), kind=kind)
    harness = OneInputHarness(two, keyed=True)
    harness.restore(snapshot)
    async with harness:
        await harness.run(harness.process_watermark, 2**40)
        windows = 2 if kind == "panes" else 1
        assert sorted(harness.values) == sorted([*range(9000)] * windows)


@pytest.mark.parametrize("kind", ["tumbling", "panes", "sessions"])
def test_few_of_many_watermarks_look_for_keys_that_may_be_forgotten(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = operator(True, 5, aggregate=am.sum_("n"), kind=kind)
    looks: list[int] = []
    used = made._used_slots
    monkeypatch.setattr(made, "_used_slots", lambda: looks.append(1) or used())
    driven = Driven(made, True)
    with driven.harness:
        driven.run([[({"key": f"{i}", "n": 1}, 900) for i in range(8000)]])
        for _ in range(100):
            driven.run([[({"key": "0", "n": 1}, 900)], 1])
    assert len(looks) <= 2


def test_few_keys_in_each_of_many_windows_become_rows() -> None:
    made = operator(True, 0)
    record = {"n": 1, "x": 0.5, "small": 1, "ok": True}
    part = [({**record, "key": f"key-{i}"}, i * 10) for i in range(3000)]
    driven = Driven(made, True)
    with driven.harness:
        driven.run([part])
        assert not made._is_columnar
        assert len(driven.end()) > 3000


def test_windows_with_a_trigger_have_no_columnar_form() -> None:
    triggered = window_operator(
        KEY,
        ASSIGNERS["tumbling"](),
        aggregate=am.sum_("x"),
        trigger=am.CountTrigger(3),
    )
    assert rows_reason(triggered, am.sum_("x")) == "trigger CountTrigger"
    assert rows_reason(operator(False, 0), am.sum_("x")) == ""
    assert type(operator(True, 0)) is ColumnarTumblingOperator


def test_times_ascend_in_a_run_of_results() -> None:
    made = operator(True, 0)
    record = {"key": "a", "n": 1, "x": 0.5, "small": 1, "ok": True}
    driven = Driven(made, True)
    with driven.harness:
        driven.run([[(record, time) for time in (35, 5, 15, 25)]])
        driven.end()
        stamps = [
            stamp for run in driven.harness.recorded.runs for stamp in run.timestamps
        ]
        assert all(a < b for a, b in pairwise(stamps))


@pytest.mark.parametrize("lateness", [0, 20])
@pytest.mark.parametrize("kind", ["tumbling", "holes", "panes"])
def test_results_read_much_later_are_those_of_when_the_window_ended(
    kind: str, lateness: int
) -> None:
    both = am.aggregates(n=am.count(), total=am.sum_("x"), least=am.min_("x"))
    kept: list[Any] = []
    texts = []
    for columns in (True, False):
        made = operator(columns, lateness, aggregate=both, kind=kind)
        driven = Driven(made, columns)
        with driven.harness:
            driven.harness.recorded.emit_run = kept.append
            for round_ in range(12):
                # From the seventh round on some values are null, and keys are new.
                part = [
                    (
                        {
                            "key": f"{i % (9 + 7 * round_)}",
                            "n": i,
                            "x": None if round_ > 5 and i % 3 else i / 7,
                            "small": 1,
                            "ok": True,
                        },
                        round_ * 8 + i % 23 - 11,
                    )
                    for i in range(120, 0, -1)
                ]
                driven.run([part, 70 if not round_ else 7])
            driven.run([200])
            assert not columns or made._is_columnar
        # Nobody has read a run before the last one was emitted.
        texts.append([repr(value) for run in kept for value in run.values])
        kept.clear()
    if kind == "panes":
        # Late records may bring keys that the next windows have merged elsewhere.
        texts = [sorted(each) for each in texts]
    assert texts[0] == texts[1]
    assert len(texts[0]) > 300


def test_windows_of_one_key_fire_some_hundred_at_a_time_in_order() -> None:
    made = operator(True, 0, aggregate=am.aggregates(n=am.count()))
    record = {"key": "a", "n": 1, "x": 0.5, "small": 1, "ok": True}
    driven = Driven(made, True)
    with driven.harness:
        driven.run([[(record, time * 10) for time in range(3000)], 60_000])
        runs = driven.harness.recorded.runs
        assert max(map(len, runs)) < 500
        starts = [value.window_start for value in driven.harness.values]
        assert starts == sorted(starts)
        assert len(starts) == 3000


def int_keys(*bits: int) -> list[pa.Array]:
    kinds = {8: pa.int8(), 32: pa.int32(), 64: pa.int64(), -64: pa.uint64()}
    most = {8: 2**7, 32: 2**31, 64: 2**63, -64: 2**63}
    return [pa.array([1, most[each] - 1], kinds[each]) for each in bits]


@pytest.mark.parametrize("kind", ["tumbling", "panes", "sessions"])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    "keys",
    [
        int_keys(64, 8, 32),
        int_keys(8, 64, 8),
        int_keys(-64, 8),
        [pa.array([-1]), *int_keys(-64, 64)],
        [pa.array([0.1, 1e308]), pa.array([0.1], pa.float32()), pa.array([0.1])],
        [pa.array([0.1], pa.float32()), pa.array([0.1]), pa.array([0.1], pa.float32())],
        [pa.array(["a"]), pa.array(["b"], pa.large_string()), pa.array(["a", "c"])],
    ],
    ids=lambda keys: "-".join(str(key.type) for key in keys),
)
def test_keys_of_united_streams_may_be_narrower_and_wider(
    keys: list[pa.Array], several: bool, kind: str
) -> None:
    """However narrow the last column is, all keys that are there are emitted."""
    selectors = (FieldSelector("key", "key"), FieldSelector("other", "key"))
    key: Any = FieldsSelector(selectors) if several else KEY
    both = am.aggregates(n=am.count())

    def results(columns: bool, *, restored: bool) -> list[str]:
        with ExitStack() as stack:
            driven = Driven(operator(columns, 0, key, both, kind), columns)
            stack.enter_context(driven.harness)
            for place, column in enumerate(keys):
                batch = pa.record_batch({"key": column, "other": column})
                maker = RowMaker(batch.schema, NamedTupleForm())
                run: Any = ArrowRun(batch, maker, [place] * len(column))
                if not columns:
                    run = ListRun(run.values, run.timestamps)
                driven.harness.operator.process_run(run)
                if restored:
                    written = encode_snapshot(driven.harness.snapshot())
                    made = operator(columns, 0, key, both, kind)
                    driven = Driven(made, columns, decode_snapshot(written))
                    stack.enter_context(driven.harness)
            return sorted(driven.end())

    rows = results(False, restored=False)
    assert len(rows) > 2
    assert rows == results(True, restored=False)
    assert rows == results(True, restored=True)


@pytest.mark.parametrize("kind", ["rolling", *ASSIGNERS])
@pytest.mark.parametrize(
    "least",
    [
        dt.timedelta.min,
        dt.time(1, tzinfo=dt.UTC),
        dt.date(1, 1, 1),
        dt.time(2),
        b"",
    ],
)
def test_a_state_that_no_column_can_hold_is_restored_in_rows(
    kind: str, least: Any
) -> None:
    """Spans of more than 64 bits, and times with a zone."""

    class Record(NamedTuple):
        key: str
        text: Any

    def made(columns: bool) -> Any:
        aggregate = am.aggregates(least=am.min_("text"))
        if kind == "rolling":
            own = ColumnarAggregateOperator if columns else KeyedAggregateOperator
            return own(KEY, aggregate)
        return operator(columns, 7, aggregate=aggregate, kind=kind)

    texts = []
    for columns in (True, False):
        with OneInputHarness(made(False), keyed=True) as harness:
            harness.operator.process_run(ListRun([Record("a", least)], [5]))
            snapshot = decode_snapshot(encode_snapshot(harness.snapshot()))
        harness = OneInputHarness(made(columns), keyed=True)
        harness.restore(snapshot)
        with harness:
            harness.operator.process_run(ListRun([Record("a", least)], [6]))
            harness.operator.process_watermark(200)
            texts.append(list(map(repr, harness.values)))
    assert texts[0] == texts[1]
    assert repr(least) in texts[0][-1]
