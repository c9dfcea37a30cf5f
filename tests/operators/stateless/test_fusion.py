from __future__ import annotations

import functools
import gc
import inspect
import random
import traceback
import warnings

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import RecordTypeError, StopTask, UserFunctionError
from aiomailbox.operators.core.operator import Operator
from aiomailbox.operators.core.user_code import DeadLetter, dead_letter, skip
from aiomailbox.operators.stateless.fused import (
    LoopShape,
    StageKind,
    loop_source,
)
from aiomailbox.operators.stateless.operators import (
    FilterOperator,
    FlatMapOperator,
    FusedOperator,
    MapOperator,
    fused,
    stateless,
)
from aiomailbox.records.events import OutputTag, StreamRecord
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun
from aiomailbox.testing.context import TestRuntimeContext
from aiomailbox.testing.harness import OneInputHarness, RecordingOutput

FAILED = OutputTag("failed")
OTHER = OutputTag("other")


def failing_on(bad: object):
    def function(value):
        if value == bad:
            raise ValueError(f"cannot do {value}")
        return value

    return function


def named(operator: Operator, name: str) -> TestRuntimeContext:
    """Set a part up as a chain does: with a context and a side output of its own."""
    context = TestRuntimeContext(name, uid=f"{name}-uid")
    operator.setup(context, RecordingOutput())
    return context


def unfused(operators: list[Operator], values, timestamps):
    records = (values, timestamps)
    for operator in operators:
        with OneInputHarness(operator) as harness:
            harness.process_run(*records)
            values = harness.values
            timestamps = [record.timestamp for record in harness.output]
            records = (values, None if None in timestamps else timestamps)
    return records


def one_more(value):
    return value + 1


def is_even(value):
    return value % 2 == 0


def twice(value):
    return [value, -value]


def counted_down(value):
    for step in range(abs(value) % 4):
        yield value - step


STAGES = st.lists(
    st.sampled_from(
        [
            (StageKind.MAP, one_more),
            (StageKind.FILTER, is_even),
            (StageKind.FLAT_MAP, twice),
            (StageKind.FLAT_MAP, counted_down),
        ]
    ),
    min_size=1,
    max_size=5,
)


@given(
    STAGES, st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9))), st.booleans()
)
def test_a_fused_chain_does_what_its_operators_do_one_after_the_other(
    stages, records, timed
):
    values = [value for value, _ in records]
    timestamps = [timestamp for _, timestamp in records] if timed else None
    expected_values, expected_timestamps = unfused(
        [stateless(*stage) for stage in stages], values, timestamps
    )
    fused = FusedOperator([stateless(*stage) for stage in stages])
    with OneInputHarness(fused) as harness:
        harness.process_run(values, timestamps)
        # The first run is checked record by record, the second one is not.
        first = harness.take_output()
        harness.process_run(values, timestamps)
        assert harness.take_output() == first
    assert [record.value for record in first] == expected_values
    if timed:
        assert [record.timestamp for record in first] == (expected_timestamps or [])


def test_records_go_through_all_functions_one_by_one():
    seen = []
    first = MapOperator(lambda value: seen.append(("first", value)) or value)
    second = FilterOperator(lambda value: seen.append(("second", value)) or True)
    with OneInputHarness(FusedOperator([first, second])) as harness:
        harness.process_run([1, 2])
    assert seen == [("first", 1), ("second", 1), ("first", 2), ("second", 2)]


def test_a_run_without_timestamps_stays_without():
    with OneInputHarness(FusedOperator([MapOperator(abs), FilterOperator(bool)])) as h:
        h.process_run([0, -1])
        assert h.recorded.runs[0].timestamps is None


def test_a_filter_keeps_values_and_timestamps_together():
    with OneInputHarness(FilterOperator(is_even)) as harness:
        harness.process_run([1, 2, 3, 4], [10, 20, 30, 40])
        assert harness.output == [StreamRecord(2, 20), StreamRecord(4, 40)]


def test_maps_keep_the_list_of_timestamps_itself():
    run = ListRun([1, 2], [3, 4])
    with OneInputHarness(MapOperator(one_more)) as harness:
        harness.process_run(run)
        assert harness.recorded.runs[0].timestamps is run.timestamps


def test_nothing_is_emitted_when_every_record_is_dropped():
    with OneInputHarness(FilterOperator(lambda _: False)) as harness:
        harness.process_run([1, 2])
        assert harness.recorded.runs == []


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_error_names_the_operator_its_uid_and_the_line_of_the_user(position):
    functions = [one_more, one_more, one_more]
    functions[position] = failing_on(5 + position)
    parts = [MapOperator(function) for function in functions]
    for number, part in enumerate(parts):
        named(part, f"part {number}")
    with (
        OneInputHarness(FusedOperator(parts)) as harness,
        pytest.raises(UserFunctionError) as raised,
    ):
        harness.process_run([4, 5, 6])
    line = inspect.getsourcelines(failing_on)[1] + 3
    assert raised.value.operator == f"part {position}"
    assert raised.value.uid == f"part {position}-uid"
    assert raised.value.location == f"{__file__}:{line}"
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_traceback_shows_the_line_of_the_generated_loop():
    with OneInputHarness(MapOperator(failing_on(1))) as harness:
        try:
            harness.process_run([1])
        except UserFunctionError as error:
            text = "".join(traceback.format_exception(error))
    assert '"<aiomailbox fused map' in text
    assert "v1 = f0(v0)" in text


def test_an_error_of_a_built_in_function_names_the_function():
    with (
        OneInputHarness(MapOperator(int)) as harness,
        pytest.raises(UserFunctionError) as raised,
    ):
        harness.process_run(["x"])
    assert raised.value.location == "int"


def test_a_skipped_record_is_counted_and_logged_and_the_others_go_on():
    part = MapOperator(failing_on(2), on_error=skip)
    with OneInputHarness(part) as harness:
        harness.process_run([1, 2, 3], [10, 20, 30])
        assert harness.output == [StreamRecord(1, 10), StreamRecord(3, 30)]
        assert harness.context.metrics.counter("skipped").value == 1
        assert harness.context.log.entries == [
            (
                "warning",
                "records skipped",
                {
                    "count": 1,
                    "total": 1,
                    "first_error": "ValueError('cannot do 2')",
                },
            )
        ]


def test_a_dead_letter_holds_what_the_failing_operator_was_given():
    first = MapOperator(one_more)
    second = MapOperator(failing_on(3), on_error=dead_letter(FAILED))
    named(first, "first")
    named(second, "second")
    fused = FusedOperator([first, second, MapOperator(one_more)])
    with OneInputHarness(fused) as harness:
        harness.process_run([1, 2, 3], [10, 20, 30])
        assert harness.output == [StreamRecord(3, 10), StreamRecord(5, 30)]
    (record,) = second.output.sides[FAILED]
    letter = record.value
    assert isinstance(letter, DeadLetter)
    assert record.timestamp == 20
    assert (letter.record, letter.timestamp) == (3, 20)
    assert (letter.operator, letter.uid, letter.attempts) == ("second", "second-uid", 1)
    assert (letter.error_type, letter.error) == ("ValueError", "cannot do 3")
    assert "raise ValueError" in letter.traceback


def test_each_operator_of_a_chain_follows_its_own_policy():
    skipping = MapOperator(failing_on(1), on_error=skip)
    writing = FilterOperator(failing_on(2), on_error=dead_letter(FAILED))
    failing = MapOperator(failing_on(3))
    with OneInputHarness(FusedOperator([skipping, writing, failing])) as harness:
        harness.process_run([1, 2, 4])
        assert harness.values == [4]
        assert [r.value.record for r in harness.side_output(FAILED)] == [2]
        with pytest.raises(UserFunctionError):
            harness.process_run([3])


def test_no_function_sees_a_record_twice_when_a_later_one_fails():
    calls = []
    first = MapOperator(lambda value: calls.append(value) or value)
    second = MapOperator(failing_on(2), on_error=skip)
    with OneInputHarness(FusedOperator([first, second])) as harness:
        harness.process_run([1, 2, 2, 3])
        assert calls == [1, 2, 2, 3]


def test_a_failing_generator_keeps_what_it_gave_and_is_one_dead_letter():
    def give_two_then_fail(value):
        yield value
        yield value
        raise ValueError("no more")

    part = FlatMapOperator(give_two_then_fail, on_error=dead_letter(FAILED))
    with OneInputHarness(part) as harness:
        harness.process_run([1, 2])
        assert harness.values == [1, 1, 2, 2]
        assert [r.value.record for r in harness.side_output(FAILED)] == [1, 2]


def test_an_error_behind_a_flat_map_is_not_the_flat_maps():
    expanding = FlatMapOperator(twice, on_error=skip)
    failing = MapOperator(failing_on(-1))
    named(expanding, "expanding")
    named(failing, "failing")
    with (
        OneInputHarness(FusedOperator([expanding, failing])) as harness,
        pytest.raises(UserFunctionError) as raised,
    ):
        harness.process_run([1])
    assert raised.value.operator == "failing"


def test_only_the_item_that_failed_behind_a_flat_map_is_lost():
    expanding = FlatMapOperator(twice)
    skipping = MapOperator(failing_on(-1), on_error=skip)
    with OneInputHarness(FusedOperator([expanding, skipping])) as harness:
        harness.process_run([1, 2])
        assert harness.values == [1, 2, -2]


@pytest.mark.parametrize("policy", [skip, dead_letter(FAILED)])
def test_a_function_may_end_its_task_whatever_the_policy(policy):
    def stop(_):
        raise StopTask

    with (
        OneInputHarness(MapOperator(stop, on_error=policy)) as h,
        pytest.raises(StopTask),
    ):
        h.process_run([1])


async def later(value):
    return value


ASYNC_IN_DISGUISE = [
    MapOperator(lambda value: later(value)),
    FilterOperator(lambda value: later(value)),
    FlatMapOperator(lambda value: later(value)),
    FlatMapOperator(lambda value: [later(value)]),
]


@pytest.mark.parametrize("part", ASYNC_IN_DISGUISE)
@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_function_that_returns_a_coroutine_is_refused_without_a_warning(part, policy):
    part = type(part)(part.function, **({"on_error": skip} if policy == "skip" else {}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with (
            OneInputHarness(part, operator_name="ask") as harness,
            pytest.raises(RecordTypeError, match=r"operator 'ask'.*map_async"),
        ):
            harness.process_run([1, 2, 3])
        gc.collect()


@pytest.mark.parametrize("kind", [MapOperator, FilterOperator])
def test_a_coroutine_in_a_later_run_is_found_at_its_end(kind):
    part = kind(lambda value: later(value) if value > 9 else value)
    with OneInputHarness(part) as harness:
        harness.process_run([1, 2])
        with pytest.raises(RecordTypeError, match="coroutine"):
            harness.process_run([3, 10])


def test_a_coroutine_that_makes_the_next_function_fail_is_blamed_on_its_maker():
    asking = MapOperator(lambda value: later(value) if value > 9 else value)
    named(asking, "asking")
    with OneInputHarness(FusedOperator([asking, MapOperator(one_more)])) as harness:
        harness.process_run([1])
        with pytest.raises(RecordTypeError, match="'asking'"):
            harness.process_run([10, 11])


def test_a_flat_map_function_must_return_an_iterable():
    with (
        OneInputHarness(FlatMapOperator(lambda _: None)) as harness,
        pytest.raises(RecordTypeError, match=r"not iterable.*Return a list"),
    ):
        harness.process_run([1])


async def test_a_generator_is_paused_between_its_items_while_the_output_is_full():
    given_out = []

    def many(count):
        for number in range(count):
            given_out.append(number)
            yield number

    harness = OneInputHarness(FlatMapOperator(many))
    harness.open()
    availability = harness.recorded.availability
    availability.reset()
    pending = harness.operator.process_run(ListRun([3 * RUN_LENGTH_MAX]))
    assert len(given_out) == 1
    availability.set_available()
    await pending
    assert len(harness.values) == 3 * RUN_LENGTH_MAX
    assert harness.values == given_out


async def test_a_paused_generator_is_closed_when_its_task_is_cancelled():
    closed = []

    def endless(_):
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    harness = OneInputHarness(FlatMapOperator(endless))
    harness.open()
    harness.recorded.availability.reset()
    waiting = harness.operator.process_run(ListRun([None]))
    # The exception keeps all frames alive: closing is not left to the collector.
    with pytest.raises(GeneratorExit) as kept:
        step = waiting.__await__()
        step.send(None)
        step.throw(GeneratorExit)
    assert closed == [True]
    assert kept.value is not None


async def test_a_generator_that_never_ends_lets_the_loop_go():
    import asyncio

    def endless(_):
        while True:
            yield 1

    harness = OneInputHarness(FlatMapOperator(endless))
    harness.open()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.0):
            await harness.operator.process_run(ListRun([None]))


def test_runs_that_a_flat_map_makes_grow_while_they_fit_and_are_bounded():
    part = FlatMapOperator(lambda value: range(value))
    with OneInputHarness(part) as harness:
        harness.process_run([3 * RUN_LENGTH_MAX])
        lengths = [len(run) for run in harness.recorded.runs]
        assert lengths[:11] == [2**power for power in range(11)]
        assert set(lengths[11:-1]) == {RUN_LENGTH_MAX}
        assert sum(lengths) == 3 * RUN_LENGTH_MAX


def test_runs_that_a_flat_map_makes_shrink_while_they_fill_the_output():
    part = FlatMapOperator(lambda value: range(value))
    with OneInputHarness(part) as harness:
        harness.process_run([2 * RUN_LENGTH_MAX])
        recorded = harness.recorded
        for expected in (1024, 512, 256, 128):
            recorded.availability.reset()
            pending = harness.operator.process_run(ListRun([RUN_LENGTH_MAX + 1]))
            recorded.availability.set_available()
            pending.close()
            assert len(recorded.runs[-1]) == expected


def test_watermarks_pass_a_fused_chain():
    with OneInputHarness(
        FusedOperator([MapOperator(abs), MapOperator(abs)])
    ) as harness:
        harness.process_watermark(7)
        assert [w.timestamp_ms for w in harness.output] == [7]


@given(st.lists(st.integers()), st.integers(0, 20), st.randoms())
def test_a_cut_anywhere_changes_nothing(values, cut, chance: random.Random):
    def chain():
        return FusedOperator(
            [
                MapOperator(one_more),
                FilterOperator(is_even),
                FlatMapOperator(twice),
            ]
        )

    with OneInputHarness(chain()) as whole:
        whole.process_run(values)
    with OneInputHarness(chain()) as before:
        before.process_run(values[:cut])
        state = before.snapshot()
    after = OneInputHarness(chain())
    after.restore(state)
    with after:
        after.process_run(values[cut:])
    assert before.output + after.output == whole.output


def test_stateless_neighbours_are_fused_and_others_are_left_alone():
    both = fused(MapOperator(abs), FilterOperator(bool))
    assert [part.kind.value for part in both.parts] == ["map", "filter"]
    more = fused(FilterOperator(bool), both)
    assert [part.kind.value for part in more.parts] == ["filter", "map", "filter"]
    assert fused(Operator(), MapOperator(abs)) is None
    assert fused(MapOperator(abs), Operator()) is None


def test_async_operators_are_not_fused():
    asking = stateless(StageKind.MAP, later)
    assert fused(asking, asking) is None


def test_no_loop_has_more_stages_than_python_can_nest():
    """Each flat_map is a loop in a try: of these CPython nests twenty."""
    loop = FlatMapOperator(lambda n: [n])
    count = 1
    while (longer := fused(FlatMapOperator(lambda n: [n]), loop)) is not None:
        loop, count = longer, count + 1
    assert 2 <= count <= 8
    with OneInputHarness(loop) as harness:
        harness.process_run([1, 2])
        harness.process_run([3], [5])
        assert harness.values == [1, 2, 3]


def test_a_partial_is_a_function_as_any_other():
    part = MapOperator(functools.partial(pow, 2))
    with OneInputHarness(part) as harness:
        harness.process_run([3])
        assert harness.values == [8]


def test_the_loop_of_a_long_chain_compiles():
    source = loop_source(LoopShape(tuple(StageKind) * 6, timed=True, checked=True))
    compile(source, "<long>", "exec")
