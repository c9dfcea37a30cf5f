"""Joins over columns: equal to those over rows, in the same order, whatever comes."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings, strategies as st

import aiomailbox as am
from aiomailbox.columnar import window_join
from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.forms import NamedTupleForm
from aiomailbox.columnar.interval_join import ColumnarIntervalJoin, KeptColumns
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.window_join import ColumnarWindowJoin
from aiomailbox.operators.core.fields import (
    FieldSelector,
    FieldsSelector,
    field_or_function,
)
from aiomailbox.operators.joins.interval import IntervalJoinOperator
from aiomailbox.operators.joins.keyed import pair
from aiomailbox.operators.snapshots.codec import decode_snapshot, encode_snapshot
from aiomailbox.records.events import StreamRecord
from aiomailbox.records.run import ListRun
from aiomailbox.testing import TwoInputHarness
from aiomailbox.windowing.co_group import SidedKey
from aiomailbox.windowing.window_join import WindowJoinOperator
from tests.columnar.test_rolling import SCHEMA, rows, tame

KEY = field_or_function("key", "key")
BOTH = FieldsSelector((FieldSelector("key", "key"), FieldSelector("small", "key")))
LATE = am.OutputTag[Any]("late left"), am.OutputTag[Any]("late right")
INTERVALS = {"wide": (-25, 30), "point": (0, 0), "later": (3, 20), "before": (-9, -4)}
WINDOWS: dict[str, Any] = {
    "tumbling": lambda: am.TumblingEventTimeWindows.of(am.millis(10), am.millis(3)),
    "sliding": lambda: am.SlidingEventTimeWindows.of(am.millis(10), am.millis(4)),
    "holes": lambda: am.SlidingEventTimeWindows.of(am.millis(6), am.millis(10)),
}
KEPT = [f"{kind} kept {lateness}" for kind in WINDOWS for lateness in (7, 25)]
kinds = st.sampled_from(sorted([*INTERVALS, *WINDOWS, *KEPT]))

# Records of a side with their event times and how their columns come, or a step of
# both watermarks.
sides = st.integers(0, 1)
forms = st.sampled_from(["plain", "plain", "other"])
tame_runs = st.lists(st.tuples(tame, st.integers(-40, 60)), min_size=1, max_size=12)
times = st.one_of(st.integers(-40, 60), st.sampled_from([-(2**45), 2**45]))
wild_runs = st.lists(st.tuples(rows, times), min_size=1, max_size=12)
tame_steps = st.lists(
    st.one_of(st.tuples(sides, tame_runs, forms), st.integers(0, 30)), max_size=12
)
steps = st.lists(
    st.one_of(
        st.tuples(sides, wild_runs, forms),
        st.tuples(sides, tame_runs, forms),
        st.integers(0, 30),
    ),
    max_size=12,
)
# Few keys at nearly one time: many come when their window has just ended.
close = st.tuples(
    st.sampled_from("ab").map(
        lambda key: {"key": key, "n": 1, "x": 0.5, "small": 1, "ok": True}
    ),
    st.integers(-40, 0),
)
close_runs = st.lists(close, min_size=1, max_size=4)
close_steps = st.lists(
    st.one_of(
        st.tuples(sides, close_runs, st.just("plain")),
        st.tuples(sides, close_runs, st.just("plain")),
        st.integers(0, 9),
    ),
    min_size=3,
    max_size=14,
)
OTHER = SCHEMA.set(0, pa.field("key", pa.dictionary(pa.int32(), pa.string()))).set(
    3, pa.field("small", pa.int64())
)


def run_of(part: list[Any], form: str = "plain", schema: Any = None) -> ArrowRun:
    schema = schema or (SCHEMA if form == "plain" else OTHER)
    batch = pa.RecordBatch.from_pylist([record for record, _ in part], SCHEMA)
    columns = [
        column.dictionary_encode() if pa.types.is_dictionary(field.type) else column
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    columns = [c.cast(f.type) for c, f in zip(columns, schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    maker = RowMaker(schema, NamedTupleForm())
    return ArrowRun(batch, maker, [time for _, time in part])


def join(kind: str, columns: bool, key: Any = KEY) -> Any:
    kind, _, lateness = kind.partition(" kept ")
    if kind in WINDOWS:
        made: Any = ColumnarWindowJoin if columns else WindowJoinOperator
        kept = am.millis(int(lateness or 0))
        return made(SidedKey(key, key), WINDOWS[kind](), allowed_lateness=kept)
    made = ColumnarIntervalJoin if columns else IntervalJoinOperator
    late = {"left_late": LATE[0], "right_late": LATE[1]}
    return made(key, key, *INTERVALS[kind], pair, **late)


class Driven:
    """An operator with what came out of it, as text: it tells zeros and types apart."""

    def __init__(self, made: Any, columns: bool, snapshot: Any = None) -> None:
        self.harness = TwoInputHarness(made, keyed=True)
        self.harness.restore(snapshot)
        self.columns = columns
        self.watermark = -60
        self.error = ""

    def advance(self, to: int) -> None:
        for each in self.harness.inputs:
            each.process_watermark(to)

    def run(self, some: list[Any]) -> None:
        try:
            for step in some:
                if isinstance(step, int):
                    self.watermark += step
                    self.advance(self.watermark)
                    continue
                side, part, form = step
                run = run_of(part, form)
                rows_run = ListRun(run.values, run.timestamps)
                self.harness.inputs[side].process_run(run if self.columns else rows_run)
        except am.AioMailboxError as error:
            self.error = type(error).__name__

    def end(self) -> list[str]:
        if not self.error:
            self.advance(2**62)
        dropped = self.harness.context.metrics.counter("num_late_records_dropped")
        late = [repr(self.harness.side_output(tag)) for tag in LATE]
        return [*map(repr, self.harness.output), *late, str(dropped.value), self.error]


def outcome(made: Any, columns: bool, some: list[Any]) -> list[str]:
    driven = Driven(made, columns)
    with driven.harness:
        driven.run(some)
        return driven.end()


@settings(max_examples=30)
@given(steps, kinds, st.sampled_from([KEY, BOTH]))
def test_columns_give_what_rows_give(some: list[Any], kind: str, key: Any) -> None:
    by_columns = outcome(join(kind, True, key), True, some)
    assert by_columns == outcome(join(kind, False, key), False, some)


@settings(max_examples=50)
@given(st.one_of(tame_steps, close_steps), kinds)
def test_tame_values_stay_columns(some: list[Any], kind: str) -> None:
    made = join(kind, True)
    by_columns = outcome(made, True, some)
    assert made._is_columnar
    assert by_columns == outcome(join(kind, False), False, some)


@settings(max_examples=20)
@given(
    st.one_of(steps, tame_steps, close_steps),
    st.one_of(steps, tame_steps, close_steps),
    st.booleans(),
    st.booleans(),
    kinds,
)
def test_a_snapshot_of_one_form_is_restored_in_the_other(
    before: list[Any], after: list[Any], first: bool, second: bool, kind: str
) -> None:
    def resumed(first: bool, second: bool) -> list[str]:
        one = Driven(join(kind, first), first)
        with one.harness:
            one.run(before)
            snapshot = decode_snapshot(encode_snapshot(one.harness.snapshot()))
        two = Driven(join(kind, second), second, snapshot)
        two.watermark = one.watermark
        with two.harness:
            two.run(after)
            # A restore promises no order of keys.
            return [one.error, *sorted(two.end())]

    assert resumed(first, second) == resumed(False, False)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_records_of_one_time_are_restored_in_the_other_form(
    first: bool, second: bool
) -> None:
    def record(n: int) -> dict[str, Any]:
        return {**dict.fromkeys(SCHEMA.names), "key": "a", "n": n}

    one = Driven(join("point", first), first)
    with one.harness:
        one.run([(0, [(record(n), 5) for n in range(5)], "plain")])
        snapshot = decode_snapshot(encode_snapshot(one.harness.snapshot()))
    two = Driven(join("point", second), second, snapshot)
    with two.harness:
        two.run([(1, [(record(9), 5), (record(8), 5)], "plain")])
        pairs = [(left.n, right.n) for (left, right), _ in two.harness.output]
    assert pairs == [(n, right) for right in (9, 8) for n in range(5)]


@settings(max_examples=25)
@given(tame_steps, tame_steps, kinds)
def test_what_was_restored_is_columns_again(
    before: list[Any], after: list[Any], kind: str
) -> None:
    one = Driven(join(kind, True), True)
    with one.harness:
        one.run(before)
        snapshot = decode_snapshot(encode_snapshot(one.harness.snapshot()))
    two = Driven(join(kind, True), True, snapshot)
    with two.harness:
        assert two.harness.operator._is_columnar  # type: ignore[attr-defined]
        assert one.harness.operator._is_columnar  # type: ignore[attr-defined]
        again = two.harness.snapshot()
        assert contents(again) == contents(snapshot)


def in_sides(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an entry of a window with the records of the left side first."""
    *address, content = entry
    if isinstance(content, list):
        content = sorted(content, key=lambda sided: sided[0])
    return (*address, content)


def contents(snapshot: Any) -> list[str]:
    entries = [
        (piece.states[place].name, repr(in_sides(entry)))
        for piece in snapshot.keyed
        for groups in [piece.key_groups]
        for group in groups
        for place, some in groups[group].items()
        for entry in some
    ]
    timers = [
        (name, repr(timer))
        for name, each in snapshot.timers.items()
        for group in each.event
        for timer in each.event[group]
    ]
    return sorted(map(repr, {*entries, *timers}))


TIME = am.WatermarkStrategy.for_bounded_out_of_orderness(am.millis(5))
LEFT = [
    {"id": 1, "price": 2.5, "who": "ann", "at": 0},
    {"id": 2, "price": None, "who": "bob", "at": 3},
    {"id": 1, "price": 4.0, "who": "cy", "at": 9},
]
RIGHT = [
    {"id": 1, "price": 1, "shop": "x", "at": 1},
    {"id": 2, "price": 7, "shop": "y", "at": 4},
]
SELECTS: dict[str, Any] = {
    "interval": lambda left, right: (
        left.key_by("id")
        .interval_join(right.key_by("id"))
        .between(am.seconds(-0.02), am.seconds(0.02))
    ),
    "windows": lambda left, right: (
        left.join(right)
        .where("id")
        .equal_to("id")
        .window(am.TumblingEventTimeWindows.of(am.millis(50)))
    ),
}
each_join = pytest.mark.parametrize("kind", SELECTS)


def streams(env: Any, form: str) -> tuple[Any, Any]:
    """Return both sides: columns, one of them rows, dicts or objects of a class."""
    time = TIME.with_timestamp_assigner("at")
    if form == "dicts":
        return env.from_collection(LEFT, time), env.from_collection(RIGHT, time)
    left, right = (
        env.from_arrow(pa.Table.from_pylist(some), time) for some in (LEFT, RIGHT)
    )
    if form in {"rows", "left rows"}:
        left = left.map(lambda row: row)
    if form in {"rows", "right rows"}:
        right = right.map(lambda row: row)
    return left, right


def selected(kind: str, form: str) -> Any:
    left, right = streams(am.StreamExecutionEnvironment(parallelism=1), form)
    gain = pc.field("left.price") - pc.field("right.price")
    return SELECTS[kind](left, right).select(
        "id", "who", "right.at", "shop", paid="left.price", gain=gain
    )


@each_join
@pytest.mark.parametrize("form", ["columns", "rows", "left rows", "right rows"])
async def test_fields_are_the_same_whatever_the_sides_are(kind: str, form: str) -> None:
    found = await selected(kind, form).collect()
    assert sorted(map(repr, found)) == [
        "Record(id=1, who='ann', at=1, shop='x', paid=2.5, gain=1.5)",
        "Record(id=1, who='cy', at=1, shop='x', paid=4.0, gain=3.0)",
        "Record(id=2, who='bob', at=4, shop='y', paid=None, gain=None)",
    ]


@each_join
async def test_dicts_stay_dicts(kind: str) -> None:
    found = await selected(kind, "dicts").collect()
    assert {"id": 1, "who": "ann", "at": 1, "shop": "x", "paid": 2.5, "gain": 1.5} in (
        found
    )
    assert set(map(type, found)) == {dict}


@each_join
async def test_several_subtasks_find_what_one_finds(kind: str) -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    left, right = streams(env, "columns")
    join = SELECTS[kind](left.rebalance(), right)
    assert len(await join.select("who", "shop").collect()) == 3


@each_join
async def test_columns_go_out_as_columns(kind: str) -> None:
    stream = selected(kind, "columns")
    found = [batch async for batch in stream.arrow_batches()]
    table = pa.Table.from_batches(found)
    assert table.schema.names == ["id", "who", "at", "shop", "paid", "gain"]
    assert table.num_rows == 3


@each_join
def test_explain_says_who_works_on_columns_and_who_asks_for_rows(kind: str) -> None:
    def said(form: str) -> str:
        text = selected(kind, form).explain()
        return next(line for line in text.splitlines() if "join keyed" in line)

    assert said("columns").endswith("; columns")
    assert said("left rows").endswith("; rows: map makes them")
    left, right = streams(am.StreamExecutionEnvironment(), "columns")
    if kind == "interval":
        join = left.key_by(lambda r: r.id).interval_join(right.key_by("id"))
        text = join.between(0, am.seconds(1)).select("who").explain()
        assert "; rows: key function lambda" in text
    else:
        join = SELECTS[kind](left, right).allowed_lateness(am.millis(3))
        assert "window join keyed; columns" in join.select("who").explain()
        trigger = SELECTS[kind](left, right).trigger(am.CountTrigger(2))
        assert "; rows: trigger CountTrigger" in trigger.select("who").explain()
        gap = am.EventTimeSessionWindows.with_gap(am.millis(5))
        sessions = left.join(right).where("id").equal_to("id").window(gap)
        assert (
            "; rows: EventTimeSessionWindows asks" in sessions.select("who").explain()
        )


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "ambiguous": (lambda j: j.select("price"), am.RecordTypeError, "both sides"),
    "missing": (lambda j: j.select("weight"), am.RecordTypeError, "weight"),
    "missing left": (lambda j: j.select("left.shop"), am.RecordTypeError, "left.shop"),
    "expression": (
        lambda j: j.select(x=pc.field("price") * 2),
        am.RecordTypeError,
        "left.price",
    ),
    "twice": (
        lambda j: j.select("left.price", "right.price"),
        am.InvalidArgumentError,
        'other_price="right.price"',
    ),
    "nothing": (lambda j: j.select(), am.InvalidArgumentError, "no field is named"),
    "no name": (lambda j: j.select(pc.field("who")), am.WrongTypeError, "total="),
    "no field": (lambda j: j.select("left."), am.InvalidArgumentError, "'left.'"),
    "no expression": (lambda j: j.select(x=3), am.WrongTypeError, "3 is not an expr"),
}


@each_join
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_name_is_refused_where_it_is_written(kind: str, what: str) -> None:
    select, error, text = WRONG[what]
    for form in ("columns", "dicts"):
        join = SELECTS[kind](*streams(am.StreamExecutionEnvironment(), form))
        with pytest.raises(error, match=text.replace(".", r"\.")):
            select(join)


@each_join
@pytest.mark.parametrize("what", ["ambiguous", "missing", "expression"])
async def test_a_wrong_name_that_shows_late_names_the_operator(
    kind: str, what: str
) -> None:
    left, right = streams(am.StreamExecutionEnvironment(), "columns")
    hidden = [side.map_batches(lambda batch: batch) for side in (left, right)]
    with pytest.raises(am.JobFailedError) as caught:
        await WRONG[what][0](SELECTS[kind](*hidden)).collect()
    text = repr(caught.value.__cause__) + str(caught.value.__cause__)
    cause = caught.value.__cause__
    assert cause is not None
    text += str(cause.__cause__)
    assert "interval join" in text or "window join" in text
    assert WRONG[what][2] in text or "price" in text


@each_join
@pytest.mark.parametrize("form", ["columns", "rows"])
async def test_an_expression_of_other_types_names_operator_and_expression(
    kind: str, form: str
) -> None:
    left, right = streams(am.StreamExecutionEnvironment(parallelism=1), form)
    double = pc.field("who") * 2
    with pytest.raises(am.JobFailedError, match="join") as caught:
        await SELECTS[kind](left, right).select(double=double).collect()
    assert "multiply" in str(caught.value) + str(caught.value.__cause__)


@pytest.mark.parametrize("form", ["columns", "rows"])
async def test_a_pair_for_which_an_expression_fails_is_a_dead_letter(form: str) -> None:
    failed = am.OutputTag[Any]("failed")
    env = am.StreamExecutionEnvironment(parallelism=1)
    left, right = streams(env, form)
    ratio = pc.field("left.at") / (pc.field("right.at") - 4)
    found = SELECTS["interval"](left, right).select(
        "who", ratio=ratio, on_error=am.dead_letter(failed)
    )
    letters: list[Any] = []
    good: list[Any] = []
    found.get_side_output(failed).sink_to(letters.append)
    found.sink_to(good.append)
    await env.execute()
    assert sorted(map(repr, good)) == [
        "Record(who='ann', ratio=0)",
        "Record(who='cy', ratio=-3)",
    ]
    (letter,) = letters
    assert [side.id for side in letter.record] == [2, 2]


async def test_late_records_of_columns_are_columns() -> None:
    tags = am.OutputTag[Any]("left"), am.OutputTag[Any]("right")
    left, right = streams(am.StreamExecutionEnvironment(parallelism=1), "columns")
    joined = SELECTS["interval"](left, right).select(
        "who", left_late=tags[0], right_late=tags[1]
    )
    for tag in tags:
        text = joined.get_side_output(tag).filter(pc.field("at") > 0).explain()
        assert "- filter; columns" in text


async def test_results_of_aggregates_are_joined_with_their_keys() -> None:
    left, right = streams(am.StreamExecutionEnvironment(parallelism=1), "columns")
    window = am.TumblingEventTimeWindows.of(am.millis(50))
    totals = [
        side.key_by("id")
        .window(window)
        .aggregate(am.aggregates(total=am.sum_("price")))
        for side in (left, right)
    ]
    joined = (
        totals[0]
        .key_by("key")
        .interval_join(totals[1].key_by("key"))
        .between(0, 0)
        .select("key", "left.window_end", a="left.total", b="right.total")
    )
    assert "interval join keyed; columns" in joined.explain()
    found = await joined.collect()
    assert [(row.key, row.a, row.b) for row in found] == [(1, 6.5, 1), (2, None, 7)]


@pytest.mark.parametrize("kind", ["wide", "sliding"])
def test_keys_that_come_once_do_not_stay(kind: str) -> None:
    made = join(kind, True)
    record = {"n": 1, "x": 0.5, "small": 1, "ok": True}
    driven = Driven(made, True)
    with driven.harness:
        for round_ in range(12):
            part = [
                ({**record, "key": f"{round_}-{i}"}, round_ * 60) for i in range(2000)
            ]
            driven.run([(0, part, "plain"), (1, part, "plain"), 60])
        assert made._is_columnar
        assert len(made._slots.places) < 10_000
        assert len(driven.harness.values) >= 22_000


def test_a_hot_key_is_joined_in_runs_of_bounded_length() -> None:
    record = {"key": "a", "n": 1, "x": 0.5, "small": 1, "ok": True}
    part = [(record, i % 5) for i in range(150)]
    for kind in ("wide", "tumbling"):
        driven = Driven(join(kind, True), True)
        with driven.harness:
            driven.run([(0, part, "plain"), (1, part, "plain")])
            driven.end()
            runs = driven.harness.recorded.runs
        total = 150 * 150 if kind == "wide" else sum(map(len, runs))
        assert sum(map(len, runs)) == total >= 90 * 90
        assert max(map(len, runs)) <= 16_384


@pytest.mark.parametrize("side", [0, 1])
def test_a_late_record_leads_to_all_pairs_of_its_key_in_bounded_runs(side: int) -> None:
    record = {"key": "a", "n": 1, "x": 0.5, "small": 1, "ok": True}
    other = {**record, "key": "b"}
    part = [({**record, "n": i}, 5) for i in range(130)]
    late = [(other, 6), (record, 7), (other, 30), (record, 4), (other, 7)]
    some = [(0, part, "plain"), (1, part, "plain"), 80, (side, late, "plain"), 9]
    by_columns, by_rows = (
        Driven(join("tumbling kept 25", columns), columns) for columns in (True, False)
    )
    for driven in (by_columns, by_rows):
        with driven.harness:
            driven.run(some)
            driven.end()
    assert list(map(repr, by_columns.harness.values)) == list(
        map(repr, by_rows.harness.values)
    )
    # At the end of the window, and for two records that came after it.
    assert len(by_columns.harness.values) == 130 * (130 + 131 + 132)
    assert max(map(len, by_columns.harness.recorded.runs)) <= 16_384
    assert by_columns.harness.operator._is_columnar  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize("behind", [True, False])
def test_what_was_emitted_before_a_restore_is_so_again_only_with_another_record(
    first: bool, second: bool, behind: bool
) -> None:
    """Event time is behind if another subtask was, whose state is here now, too."""

    def record(key: str, n: int) -> dict[str, Any]:
        return {**dict.fromkeys(SCHEMA.names), "key": key, "n": n}

    def taken() -> list[Any]:
        return [
            (each.value[0].key, each.value[0].n, each.value[1].n)
            for each in two.harness.take_output()
            if hasattr(each, "value")
        ]

    one = Driven(join("tumbling kept 25", first), first)
    both = [(record(key, 0), 5) for key in "abc"]
    with one.harness:
        one.run([(0, both, "plain"), (1, both[:2], "plain")])
        one.advance(20)
        snapshot = decode_snapshot(encode_snapshot(one.harness.snapshot()))
    if behind:
        snapshot = dataclasses.replace(snapshot, watermark=0)
    two = Driven(join("tumbling kept 25", second), second, snapshot)
    with two.harness:
        two.run([(1, [(record("a", 1), 6), (record("d", 1), 7)], "plain")])
        found = [("a", 0, 0), ("a", 0, 1)]
        assert taken() == ([] if behind else found)
        two.advance(21)
        assert taken() == (found if behind else [])
        two.run([(1, [(record("c", 2), 8)], "plain")])
        two.run([(0, [(record("b", 3), 8)], "plain")])
        assert taken() == [("c", 0, 2), ("b", 0, 0), ("b", 3, 0)]
        two.advance(37)
        two.run([(0, [(record("a", 4), 8)], "plain")])
        two.advance(2**40)
        assert taken() == []


def test_keys_that_get_other_places_after_a_restore_have_been_emitted_as_before() -> (
    None
):
    record = {**dict.fromkeys(SCHEMA.names), "n": 1}
    part = [({**record, "key": key}, 5) for key in "abc"]
    one = Driven(join("tumbling kept 25", True), True)
    with one.harness:
        one.run([(0, part, "plain"), (1, part, "plain")])
        one.advance(20)
        snapshot = one.harness.snapshot()
    # Event time is behind: a subtask whose state is here now, too, was.
    made = join("tumbling kept 25", True)
    two = Driven(made, True, dataclasses.replace(snapshot, watermark=0))
    with two.harness:
        # Places move, as they do when keys are forgotten.
        keys = made._slots.keys
        made._renumber(np.arange(len(keys)) + 1)
        made._slots.clear()
        made._slots.place(["z", *keys])
        two.run([(1, part[:1], "plain"), (0, [({**record, "key": "z"}, 5)], "plain")])
        two.advance(21)
        pairs = [each.value for each in two.harness.output if hasattr(each, "value")]
    assert [left.key for left, _ in pairs] == ["a", "a"]


def test_windows_are_forgotten_when_they_take_no_more_late_records() -> None:
    made = join("sliding kept 25", True)
    record = {"key": "a", "n": 1, "x": 0.5, "small": 1, "ok": True}
    driven = Driven(made, True)
    with driven.harness:
        for round_ in range(50):
            part = [(record, round_ * 10 - 60), (record, round_ * 10 - 80)]
            driven.run([(0, part, "plain"), (1, part, "plain"), 10])
            assert len(made._open) + len(made._ended) < 20
        driven.end()
        assert made._is_columnar
        assert not made._open
        assert not made._ended


def test_dead_records_do_not_stay() -> None:
    made = join("wide", True)
    record = {"key": "a", "n": 1, "x": 0.5, "small": 1, "ok": True}
    driven = Driven(made, True)
    with driven.harness:
        for round_ in range(200):
            driven.run([(0, [(record, round_ * 10 - 60)] * 20, "plain"), 10])
        kept = made._kept[0].segments
        assert sum(len(segment.run) for segment, _ in kept) < 400
        assert len(kept) < 12


def both_sides(keys: int, times: int) -> list[Any]:
    record = {"x": 0.5, "small": 1, "ok": True}
    part = [
        ({**record, "key": f"{i % keys}", "n": i}, 5 - i % times) for i in range(900)
    ]
    return [(0, part, "plain"), (1, part, "plain")]


# More pairs than a piece has: some are in one, others in the next.
MANY = {"tumbling": both_sides(40, 1), "sliding": both_sides(7, 60)}


def pairs_of(harness: TwoInputHarness) -> list[str]:
    return [repr(each) for each in harness.output if isinstance(each, StreamRecord)]


@functools.cache
def all_pairs(kind: str) -> list[str]:
    """Return the pairs of the many records, as rows find them, in the order of texts."""
    driven = Driven(join(kind, False), False)
    with driven.harness:
        driven.run(MANY[kind])
        driven.end()
        found = sorted(pairs_of(driven.harness))
    assert len(found) > 16_384
    return found


@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize("kind", ["tumbling", "tumbling kept 25"])
def test_a_window_that_is_half_emitted_is_in_a_snapshot_with_the_other_half(
    kind: str, second: bool
) -> None:
    made = join(kind, True)
    one = Driven(made, True)
    with one.harness:
        one.run(MANY["tumbling"])
        # As a watermark does before a pause.
        made.watermark_ms, made._is_firing = 2**40, True
        assert made._emit_some(1) is False
        emitted = pairs_of(one.harness)
        assert 0 < len(emitted) < len(all_pairs("tumbling"))
        snapshot = decode_snapshot(encode_snapshot(one.harness.snapshot()))
    two = Driven(join(kind, second), second, snapshot)
    with two.harness:
        # Which keys were emitted is known, also of windows that take late records.
        two.advance(2**41)
        emitted += pairs_of(two.harness)
    assert sorted(emitted) == all_pairs("tumbling")


@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize("kind", ["sliding", "sliding kept 25"])
def test_several_windows_of_which_some_are_emitted_are_in_a_snapshot_with_the_rest(
    kind: str, second: bool
) -> None:
    made = join(kind, True)
    one = Driven(made, True)
    with one.harness:
        one.run(MANY["sliding"])
        # As a watermark does before a pause.
        made.watermark_ms, made._is_firing = 2**40, True
        assert made._emit_some(1) is False
        emitted = pairs_of(one.harness)
        assert len(made._open) > 2
        snapshot = decode_snapshot(encode_snapshot(one.harness.snapshot()))
    two = Driven(join(kind, second), second, snapshot)
    with two.harness:
        emitted += pairs_of(two.harness)
    assert sorted(emitted) == all_pairs("sliding")


def test_a_late_record_looks_at_few_of_the_runs_that_are_in_its_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[int] = []
    of_keys = window_join.of_keys

    def counting(parts: list[Any], slots: Any, **settings: Any) -> list[Any]:
        looked_at.append(len(parts))
        return of_keys(parts, slots, **settings)

    monkeypatch.setattr(window_join, "of_keys", counting)
    record = {"n": 1, "x": 0.5, "small": 1, "ok": True}
    some: list[Any] = [
        (place % 2, [({**record, "key": f"{place % 9}", "n": place}, 5)], "plain")
        for place in range(200)
    ]
    late = [
        (place % 2, [({**record, "key": f"{place % 7}", "n": -place}, 5)], "plain")
        for place in range(40)
    ]
    by_columns, by_rows = (
        outcome(join("tumbling kept 25", columns), columns, [*some, 75, *late, 3])
        for columns in (True, False)
    )
    assert by_columns == by_rows
    assert sum(looked_at) < 40 * 40


def test_keys_of_a_window_keep_their_order_when_columns_become_rows() -> None:
    def records(keys: str, time: int) -> list[Any]:
        return [({"key": key, "n": 1}, time) for key in keys]

    some = [(side, records("abc", -9), "plain") for side in range(2)]
    some += [(side, records("cab", 5), "plain") for side in range(2)]
    driven = [Driven(join("tumbling", columns), columns) for columns in (True, False)]
    for each in driven:
        with each.harness:
            each.run(some)
            if each.columns:
                each.harness.operator._go_to_rows("a test")  # type: ignore[attr-defined]
            each.run([2**40])
    assert [left.key for left, _ in driven[0].harness.values] == list("abccab")
    assert repr(driven[0].harness.values) == repr(driven[1].harness.values)


def test_windows_of_few_records_are_emitted_together() -> None:
    record = {"key": "a", "n": 1, "x": 0.5, "small": 1, "ok": True}
    part = [(record, 10 * i) for i in range(2000)]
    some = [(0, part, "plain"), (1, part[::-1], "plain"), 2**40]
    by_columns, by_rows = (
        Driven(join("tumbling", columns), columns) for columns in (True, False)
    )
    for driven in (by_columns, by_rows):
        with driven.harness:
            driven.run(some)
    assert list(map(repr, by_columns.harness.output)) == list(
        map(repr, by_rows.harness.output)
    )
    assert len(by_columns.harness.values) == 2000
    # A run a window took twenty times as long as rows do.
    assert len(by_columns.harness.recorded.runs) < 10


@each_join
async def test_explain_says_afterwards_what_only_rows_could_do(kind: str) -> None:
    env = am.StreamExecutionEnvironment(parallelism=1)
    time = TIME.with_timestamp_assigner("at")
    tables = [
        pa.table({"id": pa.array([1.0, key]), who: ["a", "b"], "at": [0, 1]})
        for key, who in ((-0.0, "left_name"), (2.0, "right_name"))
    ]
    left, right = (env.from_arrow(table, time) for table in tables)
    joined = SELECTS[kind](left, right).select("left_name", "right_name")
    found: list[Any] = []
    joined.sink_to(found.append)
    job = await env.execute_async()
    await job.result()
    assert [tuple(row) for row in found] == [("a", "a")]
    text = joined.explain()
    assert "columns, then rows when it ran: a key is None, NaN or -0.0" in text


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(-(2**60), 2**60), st.integers(0, 3)),
        max_size=30,
    )
)
def test_times_that_are_far_apart_are_found_as_near_ones_are(some: list[Any]) -> None:
    steps = [
        (int(side), [({"key": "abcd"[slot]}, time), ({"key": "a"}, time + 3)], "plain")
        for side, time, slot in some
    ]
    for kind in ("wide", "before"):
        assert outcome(join(kind, True), True, steps) == outcome(
            join(kind, False), False, steps
        )


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize(("watermark", "pairs"), [(29, 1), (30, 0)])
def test_a_record_is_kept_until_the_watermark_reaches_its_last_partner(
    columns: bool, watermark: int, pairs: int
) -> None:
    record = {"key": "a", "n": 1, "x": 0.5, "small": 1, "ok": True}
    for first, stamps in ((0, (0, 30)), (1, (0, 25))):
        driven = Driven(join("wide", columns), columns)
        early, late = stamps
        with driven.harness:
            driven.run([(first, [(record, early)], "plain")])
            driven.advance(watermark - 30 + late)
            driven.run([(1 - first, [(record, late)], "plain")])
            assert len(driven.harness.values) == pairs


@pytest.mark.parametrize("watermark", [29, 30])
def test_a_record_that_rows_take_over_is_kept_as_long(watermark: int) -> None:
    driven = Driven(join("wide", True), True)
    with driven.harness:
        driven.run([(0, at(0), "plain")])
        assert driven.harness.operator._is_columnar
        driven.columns = False
        driven.run([(1, at(500), "plain")])
        assert not driven.harness.operator._is_columnar
        driven.advance(watermark)
        driven.run([(1, at(30), "plain")])
        assert len(driven.harness.values) == (watermark < 30)
        driven.advance(1_000)
        keyed = driven.harness.snapshot().keyed
        assert [dict(one.key_groups) for one in keyed if one.key_groups] == []


@pytest.mark.parametrize("more", range(1, 6))
def test_a_snapshot_that_is_read_later_has_no_later_records(more: int) -> None:
    """Pieces become one meanwhile, and what is over is forgotten."""
    encoded = []
    for later in (0, more):
        driven = Driven(join("wide", True), True)
        with driven.harness:
            for time in range(3):
                driven.run([(0, at(time), "plain"), (1, at(900 + time), "plain")])
            snapshot = driven.harness.snapshot()
            for time in range(later):
                driven.run([(0, at(40 + time), "plain")])
            if later:
                driven.advance(31)
            encoded.append(encode_snapshot(snapshot))
    assert encoded[0] == encoded[1]


@pytest.mark.parametrize("apart", [40, 2**61])
def test_both_borders_belong_to_an_interval_however_far_apart_times_are(
    apart: int,
) -> None:
    kept = KeptColumns()
    zeros = np.zeros(3, np.int64)
    kept.add(run_of(at(0, 30, apart)), zeros, np.array([0, 30, apart]))
    spans = [(0, 30, 2), (1, 30, 1), (0, 29, 1), (1, 29, 0), (30, apart, 2)]
    low, high, counts = map(list, zip(*spans, strict=True))
    found = kept.query(np.zeros(5, np.int64), np.array(low), np.array(high))
    assert found.counts.tolist() == counts


def at(*times: int) -> list[Any]:
    """Return records of one key with these event times."""
    return [
        ({"key": "a", "n": time, "x": 0.5, "small": 1, "ok": True}, time)
        for time in times
    ]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("kind", INTERVALS)
def test_borders_are_the_same_in_both_forms_wherever_event_time_is(
    kind: str, side: int
) -> None:
    """Of what is late, near or forgotten: also after a restore, and with more records."""
    forms = [(True, True), (True, False), (False, True)]
    borders = {bound * sign for bound in INTERVALS[kind] for sign in (-1, 1)}
    for watermark in sorted(
        {time + b + near for time in (0, 10) for b in borders for near in (-1, 0, 1)}
    ):
        before: list[Any] = [(side, at(0, 10, 20), "plain"), 60 + watermark]
        after = [
            (1 - side, at(watermark, watermark + 1, watermark - 1), "plain"),
            # What is kept becomes one piece, without what is over.
            *[(side, at(watermark + step, 20), "plain") for step in range(4)],
            (1 - side, at(watermark, watermark + 9, 15), "plain"),
            5,
            (1 - side, at(watermark + 5, watermark + 6), "plain"),
        ]

        def resumed(
            first: bool,
            second: bool,
            before: list[Any] = before,
            after: list[Any] = after,
        ) -> list[str]:
            one = Driven(join(kind, first), first)
            with one.harness:
                one.run(before)
                snapshot = decode_snapshot(encode_snapshot(one.harness.snapshot()))
            two = Driven(join(kind, second), second, snapshot)
            two.watermark = one.watermark
            with two.harness:
                two.run(after)
                return two.end()

        by_rows = outcome(join(kind, False), False, [*before, *after])
        assert outcome(join(kind, True), True, [*before, *after]) == by_rows, watermark
        expected = resumed(False, False)
        assert [resumed(*each) for each in forms] == [expected] * 3, watermark


@pytest.mark.parametrize("kind", SELECTS)
@pytest.mark.parametrize("has_null", [False, True])
async def test_dictionaries_that_cannot_be_one_are_joined_all_the_same(
    kind: str, has_null: bool
) -> None:
    def side(name: str) -> list[pa.RecordBatch]:
        batches = []
        for number in range(6):
            texts: list[Any] = [f"{name}-{number}-{place}" for place in range(60)]
            if has_null:
                texts[7] = None
            words = pa.DictionaryArray.from_arrays(
                pa.array(range(60), pa.int8()), pa.array(texts)
            )
            columns = {"id": [number] * 60, name: words, "at": [number] * 60}
            batches.append(pa.record_batch(columns))
        return batches

    async def joined(*, as_rows: bool) -> list[str]:
        env = am.StreamExecutionEnvironment(parallelism=1)
        time = TIME.with_timestamp_assigner("at")
        streams: list[Any] = [env.from_arrow(side(name), time) for name in ("a", "b")]
        if as_rows:
            streams = [stream.map(lambda record: record) for stream in streams]
        stream = SELECTS[kind](*streams).select("id", "a", "b")
        assert ("rows" in stream.explain()) is as_rows
        return sorted(map(repr, await stream.collect()))

    found = await joined(as_rows=False)
    assert len(found) == 6 * 60 * 60
    assert found == await joined(as_rows=True)


@pytest.mark.parametrize("as_rows", [False, True])
async def test_joined_dicts_with_structs_stay_dicts_however_often_fields_change(
    as_rows: bool,
) -> None:
    time = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        "at"
    )
    table = pa.table({"id": [1], "at": [0], "place": [{"x": 1}]})
    stream = am.StreamExecutionEnvironment().from_arrow(table, time, records=dict)
    if as_rows:
        stream = stream.map(lambda record: record)
    changed = (
        stream.key_by("id")
        .interval_join(stream.key_by("id"))
        .between(0, 0)
        .select("id", "left.place", other="right.place")
        .with_columns(next=pc.field("id") + 1)
        .drop("other")
    )
    assert ("map makes them" in changed.explain()) is as_rows
    assert await changed.collect() == [{"id": 1, "place": {"x": 1}, "next": 2}]


async def test_structs_of_a_class_stay_so_beside_dicts() -> None:
    @dataclasses.dataclass
    class Place:
        x: int

    @dataclasses.dataclass
    class Order:
        id: int
        at: int
        place: Place

    # A local class cannot be looked up by its annotation.
    Order.__annotations__["place"] = Place
    time = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        "at"
    )
    table = pa.table({"id": [1], "at": [0], "place": [{"x": 1}]})
    env = am.StreamExecutionEnvironment()
    dicts = env.from_arrow(table, time, records=dict)
    orders = env.from_arrow(table, time, records=Order)
    joined = (
        dicts.key_by("id")
        .interval_join(orders.key_by("id"))
        .between(0, 0)
        .select("left.place", other="right.place")
        .with_columns(again=pc.field("other"))
    )
    (found,) = await joined.drop("again").collect()
    assert found == {"place": {"x": 1}, "other": Place(1)}
