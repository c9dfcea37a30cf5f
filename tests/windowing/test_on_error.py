"""A record or a firing that fails in a window operator leaves no trace but its report."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from aiomailbox.durations import millis, seconds
from aiomailbox.errors import UserFunctionError
from aiomailbox.operators.aggregates.functions import (
    aggregates,
    collect_list,
    commutative,
    count,
    mean,
    sum_,
)
from aiomailbox.operators.aggregates.ordered import count_distinct, quantile, top_n
from aiomailbox.operators.core.user_code import OnError, dead_letter, fail, skip
from aiomailbox.records.events import MAX_TIMESTAMP, OutputTag, Watermark
from aiomailbox.state.backends import RocksDBStateBackend
from aiomailbox.state.descriptors import ValueStateDescriptor
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.co_group import CoGroupFunction, JoinFunction
from aiomailbox.windowing.evictors import CountEvictor
from aiomailbox.windowing.functions import ProcessWindowFunction
from aiomailbox.windowing.operator import FailedWindow
from aiomailbox.windowing.time_window import TimeWindow
from aiomailbox.windowing.triggers import (
    CountTrigger,
    EventTimeTrigger,
    PurgingTrigger,
    Trigger,
    TriggerResult,
)

FAILED = OutputTag("failed")
SEEN: ValueStateDescriptor[int] = ValueStateDescriptor("seen")
TUMBLING = TumblingEventTimeWindows.of(seconds(0.01))


class BadRecordError(Exception):
    pass


def number(record: Any) -> Any:
    """Return the record's number; a bad record has none."""
    if record[1] is None:
        raise BadRecordError(record)
    return record[1]


class Own:
    """An aggregate that has changed its accumulator when it finds out."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value[1])
        number(value)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> Any:
        return tuple(accumulator)

    def merge(self, first: list[Any], second: list[Any]) -> list[Any]:
        second[:0] = first
        return second


@commutative
class OwnSum(Own):
    def get_result(self, accumulator: list[Any]) -> Any:
        return sum(accumulator)

    def merge(self, first: list[Any], second: list[Any]) -> list[Any]:
        first += second
        return first


class AsyncOwn(Own):
    async def add(  # type: ignore[override]
        self, value: Any, accumulator: list[Any]
    ) -> list[Any]:
        accumulator.append(value[1])
        await asyncio.sleep(0.001)
        number(value)
        return accumulator

    async def merge(  # type: ignore[override]
        self, first: list[Any], second: list[Any]
    ) -> list[Any]:
        await asyncio.sleep(0.001)
        return super().merge(first, second)


def added(first: Any, second: Any) -> Any:
    return first[0], first[1] + second[1]


async def added_later(first: Any, second: Any) -> Any:
    await asyncio.sleep(0.001)
    return added(first, second)


class GeneralTrigger(EventTimeTrigger):
    """The default one, which keeps the fast ways away."""


class Suspicious(EventTimeTrigger):
    """Fires each third record too; looks at the record when it has changed things."""

    def __init__(self) -> None:
        self._count = CountTrigger(3)

    def on_element(self, value: Any, timestamp: Any, window: Any, context: Any) -> Any:
        early = self._count.on_element(value, timestamp, window, context)
        result = super().on_element(value, timestamp, window, context)
        context.register_event_time_timer(window.max_timestamp - 3)
        number(value)
        return early if early is TriggerResult.FIRE else result

    def on_merge(self, window: Any, context: Any) -> None:
        super().on_merge(window, context)
        self._count.on_merge(window, context)

    def clear(self, window: Any, context: Any) -> None:
        super().clear(window, context)
        self._count.clear(window, context)
        context.delete_event_time_timer(window.max_timestamp - 3)


def key_of(record: Any) -> Any:
    return record[0]


def gap(record: Any) -> timedelta:
    return millis(number(record))


def run_of(key: Any, window: Any, elements: list[Any]) -> Any:
    return [(key, [element[1] for element in elements])]


async def run_of_later(key: Any, window: Any, elements: list[Any]) -> Any:
    await asyncio.sleep(0.001)
    return run_of(key, window, elements)


ASSIGNERS = {
    "tumbling": TUMBLING,
    "sliding": SlidingEventTimeWindows.of(seconds(0.012), seconds(0.005)),
    "overlapping": SlidingEventTimeWindows.of(seconds(0.012), seconds(0.004)),
    "sessions": EventTimeSessionWindows.with_gap(seconds(0.006)),
    "dynamic sessions": EventTimeSessionWindows.with_dynamic_gap(gap),
    "global": GlobalWindows(),
    "processing time": TumblingProcessingTimeWindows.of(seconds(0.01)),
    "processing-time sessions": ProcessingTimeSessionWindows.with_gap(seconds(0.006)),
}
WORK: dict[str, dict[str, Any]] = {
    "sum": {"aggregate": sum_(number)},
    "several": {
        "aggregate": aggregates(
            n=count(),
            values=count_distinct(key_of),
            all=collect_list(key_of),
            best=top_n(2, by=lambda record: record[1] or 0),
            own=OwnSum(),
            middle=quantile(0.5, number),
            average=mean(number),
        )
    },
    "own": {"aggregate": Own()},
    "own sum": {"aggregate": OwnSum()},
    "async own": {"aggregate": AsyncOwn()},
    "reduce": {"reduce": added},
    "async reduce": {"reduce": added_later},
    "function": {"window_function": run_of},
    "async function": {"window_function": run_of_later},
    "own and function": {
        "aggregate": Own(),
        "window_function": lambda key, window, elements: [(key, elements)],
    },
}
# Those in which only a trigger or a gap looks at the record.
BLIND = {"reduce", "async reduce", "function", "async function"}
TRIGGERS: dict[str, Callable[[], Trigger | None]] = {
    "default": lambda: None,
    "general": GeneralTrigger,
    "suspicious": Suspicious,
    "purging": lambda: PurgingTrigger(CountTrigger(2)),
}

Step = tuple[str, Any]


def steps_of(seed: int) -> list[Step]:
    """Return runs of records, some of them bad, and times."""
    chosen = random.Random(seed)
    steps: list[Step] = []
    now = 0
    for _ in range(chosen.randrange(2, 8)):
        run = [
            (
                (chosen.choice("ab"), None if chosen.random() < 0.3 else n),
                max(now + chosen.randrange(-8, 25), 0),
            )
            for n in (chosen.randrange(1, 9) for _ in range(chosen.randrange(1, 6)))
        ]
        steps.append(("run", run))
        now += chosen.randrange(0, 15)
        steps.append(("watermark", now))
        steps.append(("time", now))
    return [*steps, ("watermark", MAX_TIMESTAMP), ("time", now + 100)]


async def output_of(
    make: Callable[[], Any], steps: list[Step], *, with_bad: bool, **settings: Any
) -> tuple[list[Any], int, bool]:
    """Return what comes out, how many records were skipped, and if nothing is left."""
    async with OneInputHarness(make(), keyed=True, **settings) as harness:
        for what, given in steps:
            if what == "run":
                kept = [one for one in given if with_bad or one[0][1] is not None]
                values = [value for value, _ in kept]
                stamps = [stamp for _, stamp in kept]
                await harness.run(harness.process_run, values, stamps)
            elif what == "watermark":
                await harness.run(harness.process_watermark, given)
            else:
                await harness.run(harness.set_processing_time, given)
        snapshot: Any = harness.snapshot()
        is_empty = not any(keyed.key_groups for keyed in snapshot.keyed) and not any(
            timers.event or timers.processing for timers in snapshot.timers.values()
        )
        skipped = harness.context.metrics.counter("skipped").value
        return by_time(harness.recorded.elements), skipped, is_empty


def by_time(elements: list[Any]) -> list[Any]:
    """Sort what comes between two watermarks: timers of a time have no order."""
    ordered: list[Any] = []
    between: list[Any] = []
    for element in elements:
        if isinstance(element, Watermark):
            ordered += [*sorted(between, key=repr), element]
            between = []
        else:
            between.append(element)
    return ordered + sorted(between, key=repr)


def sees_records(assigner: str, work: str, trigger: str) -> bool:
    """Say whether something looks at the records one by one, and can."""
    waits = trigger in {"suspicious", "general"}
    if waits and not ASSIGNERS[assigner].is_event_time:
        return False
    return work not in BLIND or trigger == "suspicious" or assigner.startswith("dyn")


@pytest.mark.parametrize(
    ("assigner", "work", "trigger"),
    [
        case
        for case in itertools.product(ASSIGNERS, WORK, TRIGGERS)
        if sees_records(*case)
    ],
)
async def test_skipped_records_are_as_if_they_had_never_come(
    assigner: str, work: str, trigger: str
) -> None:
    def make() -> Any:
        lateness = millis(7) if ASSIGNERS[assigner].is_event_time else millis(0)
        return window_operator(
            key_of,
            ASSIGNERS[assigner],
            trigger=TRIGGERS[trigger](),
            allowed_lateness=lateness,
            on_error=skip,
            **WORK[work],
        )

    skipped = 0
    for seed in range(5):
        steps = steps_of(seed)
        with_bad = await output_of(make, steps, with_bad=True)
        without = await output_of(make, steps, with_bad=False)
        assert with_bad[0] == without[0], f"seed {seed}"
        assert with_bad[2] == without[2], f"seed {seed}"
        assert without[1] == 0
        skipped += with_bad[1]
    assert skipped


@pytest.mark.parametrize("work", ["several", "own", "async own", "function"])
@pytest.mark.parametrize("assigner", ["sliding", "sessions"])
async def test_so_it_is_with_state_outside_of_memory(assigner: str, work: str) -> None:
    def make() -> Any:
        return window_operator(
            key_of,
            ASSIGNERS[assigner],
            trigger=Suspicious(),
            allowed_lateness=seconds(0.007),
            on_error=skip,
            **WORK[work],
        )

    for seed in range(4):
        steps = steps_of(seed)
        with_bad = await output_of(
            make, steps, with_bad=True, state_backend=RocksDBStateBackend()
        )
        assert with_bad[0] == (await output_of(make, steps, with_bad=False))[0]


def general(**options: Any) -> Any:
    """Return the operator that knows all windows, with numbers of one key."""
    options = {"trigger": GeneralTrigger(), "aggregate": sum_(number)} | options
    assigner = options.pop("assigner", TUMBLING)
    return window_operator(key_of, assigner, **options)


@pytest.mark.parametrize("policy", [fail, skip])
async def test_sessions_that_merge_keep_what_an_asynchronous_aggregate_has_of_each(
    policy: OnError,
) -> None:
    gap = EventTimeSessionWindows.with_gap(seconds(0.01))
    operator = window_operator(key_of, gap, aggregate=AsyncOwn(), on_error=policy)
    async with OneInputHarness(operator, keyed=True) as harness:
        # The last one joins three, of which the second has two records.
        run = [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("a", 5), ("a", 6)]
        await harness.run(harness.process_run, run, [1, 21, 22, 35, 11, 28])
        await harness.run(harness.process_watermark, 99)
        assert [sorted(value) for value in harness.values] == [[1, 2, 3, 4, 5, 6]]


def test_a_record_that_fails_merges_no_sessions() -> None:
    for trigger in (None, GeneralTrigger()):
        for work in (
            {"aggregate": sum_(number)},
            {"aggregate": Own()},
            {"aggregate": OwnSum()},
        ):
            operator = window_operator(
                key_of,
                EventTimeSessionWindows.with_gap(seconds(10)),
                trigger=trigger,
                on_error=skip,
                **work,
            )
            with OneInputHarness(operator, keyed=True) as harness:
                run = [("a", 1), ("a", 2), ("a", None)]
                harness.process_run(run, [0, 15_000, 8_000])
                harness.process_watermark(MAX_TIMESTAMP)
                assert harness.values in ([1, 2], [(1,), (2,)])


def test_a_skipped_record_leaves_no_session_that_never_ends() -> None:
    sessions = EventTimeSessionWindows.with_gap(seconds(10))
    with OneInputHarness(
        general(assigner=sessions, on_error=skip), keyed=True
    ) as harness:
        harness.process_element(("a", None), 0)
        harness.process_watermark(20_000)
        # It would touch the session of the record that failed, were there one.
        harness.process_element(("a", 1), 10_000)
        harness.process_element(("a", 2), 30_000)
        harness.process_watermark(MAX_TIMESTAMP)
        assert harness.values == [2]


class FailsFor(ProcessWindowFunction):
    """Emits the numbers of a window, and raises for some of them afterwards."""

    def __init__(self, *failing: list[Any]) -> None:
        self.failing = list(failing)

    def process(self, key: Any, context: Any, elements: list[Any], out: Any) -> None:
        numbers = [element[1] for element in elements]
        out.collect(numbers)
        context.output(FAILED, numbers)
        if numbers in self.failing:
            raise BadRecordError(numbers)


class FailsLater(FailsFor):
    async def process(  # type: ignore[override]
        self, key: Any, context: Any, elements: list[Any], out: Any
    ) -> None:
        await asyncio.sleep(1)
        super().process(key, context, elements, out)


PURGING = PurgingTrigger(CountTrigger(2))


@pytest.mark.parametrize("function", [FailsFor, FailsLater])
async def test_a_window_that_fired_in_vain_is_purged_all_the_same(
    function: type[FailsFor],
) -> None:
    operator = window_operator(
        key_of,
        GlobalWindows(),
        trigger=PURGING,
        window_function=function([1, 2]),
        on_error=skip,
    )
    async with OneInputHarness(operator, keyed=True) as harness:
        run = [("a", n) for n in (1, 2, 3, 4)]
        await harness.run(harness.process_run, run, [1, 2, 3, 4])
        assert harness.values == [[3, 4]]
        # What it had collected before it raised is gone too.
        assert [one.value for one in harness.side_output(FAILED)] == [[3, 4]]
        assert harness.context.metrics.counter("skipped").value == 1


@pytest.mark.parametrize("function", [FailsFor, FailsLater])
async def test_a_window_that_never_fires_well_is_cleaned_up(
    function: type[FailsFor],
) -> None:
    operator = window_operator(
        key_of,
        TUMBLING,
        trigger=CountTrigger(1),
        window_function=function([1]),
        on_error=skip,
    )
    async with OneInputHarness(operator, keyed=True) as harness:
        await harness.run(harness.process_run, [("a", 1)], [1])
        await harness.run(harness.process_watermark, 100)
        assert not harness.context.keyed_state.key_count()
        assert harness.values == []


class FailingTrigger(EventTimeTrigger):
    """Raises for bad records, and when it is asked about a time."""

    def on_element(self, value: Any, timestamp: Any, window: Any, context: Any) -> Any:
        result = super().on_element(value, timestamp, window, context)
        number(value)
        return result

    def on_event_time(self, timestamp: Any, window: Any, context: Any) -> Any:
        raise BadRecordError(timestamp)


def test_a_trigger_that_raises_leaves_no_record() -> None:
    with OneInputHarness(
        general(
            trigger=FailingTrigger(), aggregate=count(), on_error=dead_letter(FAILED)
        ),
        keyed=True,
    ) as harness:
        harness.process_run([("a", 1), ("a", None), ("b", None)], [1, 2, 3])
        letters = [one.value for one in harness.side_output(FAILED)]
        assert [letter.record for letter in letters] == [("a", None), ("b", None)]
        assert harness.context.keyed_state.key_count() == 1
        harness.process_watermark(9)
        # The window of "a" does not fire, and is over.
        assert harness.values == []
        assert not harness.context.keyed_state.key_count()
        last = harness.side_output(FAILED)[-1].value
        assert last.record == FailedWindow("a", TimeWindow(0, 10), [])


class Meddling(Trigger):
    """Changes timers and a value for each record, and then looks at the record."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.fired: list[tuple[int, Any]] = []

    def on_element(self, value: Any, timestamp: Any, window: Any, context: Any) -> Any:
        register = getattr(context, f"register_{self.kind}_time_timer")
        delete = getattr(context, f"delete_{self.kind}_time_timer")
        register(900)
        register(800)
        delete(800)
        seen = context.get_value(SEEN)
        if value[1] is None:
            delete(900)
            delete(700)
            register(500)
            seen.clear()
        seen.update(number(value))
        return TriggerResult.CONTINUE

    def on_event_time(self, timestamp: Any, window: Any, context: Any) -> Any:
        self.fired.append((timestamp, context.get_value(SEEN).value()))
        return TriggerResult.FIRE

    on_processing_time = on_event_time

    def clear(self, window: Any, context: Any) -> None:
        context.get_value(SEEN).clear()


@pytest.mark.parametrize("kind", ["event", "processing"])
def test_what_a_trigger_did_for_a_record_that_fails_is_undone_and_no_more(
    kind: str,
) -> None:
    trigger = Meddling(kind)
    operator = general(
        assigner=GlobalWindows(), aggregate=count(), trigger=trigger, on_error=skip
    )
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", 1), ("a", None), ("b", None)], [1, 2, 3])
        if kind == "event":
            harness.process_watermark(1000)
        else:
            harness.set_processing_time(1000)
        assert trigger.fired == [(900, 1)]
        assert harness.values == [1]


FORMS: dict[str, dict[str, Any]] = {
    "fast": {"aggregate": Own()},
    "fast sliding": {
        "aggregate": Own(),
        "assigner": SlidingEventTimeWindows.of(seconds(9), seconds(8)),
    },
    "panes": {
        "aggregate": OwnSum(),
        "assigner": SlidingEventTimeWindows.of(seconds(8), seconds(4)),
    },
    "fast sessions": {
        "aggregate": Own(),
        "assigner": EventTimeSessionWindows.with_gap(seconds(4)),
    },
    "general": {"aggregate": Own(), "trigger": GeneralTrigger()},
    "evictor": {"aggregate": Own(), "evictor": CountEvictor(9)},
    "async": {"aggregate": AsyncOwn()},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("late", [False, True])
async def test_a_result_that_cannot_be_made_is_a_dead_letter_with_its_window(
    form: str, late: bool
) -> None:
    options = {"assigner": TumblingEventTimeWindows.of(seconds(8)), **FORMS[form]}
    aggregate = options.pop("aggregate")

    class Failing(type(aggregate)):  # type: ignore[misc]
        def get_result(self, accumulator: list[Any]) -> Any:
            if 13 in accumulator:
                raise BadRecordError(accumulator)
            return super().get_result(accumulator)

    operator = window_operator(
        key_of,
        options.pop("assigner"),
        aggregate=commutative(Failing)() if form == "panes" else Failing(),
        allowed_lateness=seconds(20),
        on_error=dead_letter(FAILED),
        **options,
    )
    async with OneInputHarness(operator, keyed=True) as harness:
        run = [("a", 13), ("b", 1)]
        if late:
            await harness.run(harness.process_watermark, 7999)
        await harness.run(harness.process_run, run, [1, 2])
        await harness.run(harness.process_watermark, 9000)
        letters = {one.value for one in map(frozen, harness.side_output(FAILED))}
        assert {value for _, value, _ in letters} == {(13,)}
        assert {error for *_, error in letters} == {"BadRecordError"}
        assert harness.values
        assert set(map(str, harness.values)) <= {"(1,)", "1"}


def frozen(letter: Any) -> Any:
    record = letter.value.record
    assert isinstance(record, FailedWindow)
    assert letter.timestamp == record.window.max_timestamp
    elements = record.elements
    held = elements[0] if isinstance(elements[0], list) else [elements[0][1]]
    return letter._replace(value=(record.key, tuple(held), letter.value.error_type))


@pytest.mark.parametrize("cuts", [0, 1, 2])
def test_panes_that_cannot_be_merged_fail_only_their_key(cuts: int) -> None:
    @commutative
    def added_up(first: Any, second: Any) -> Any:
        return first[0], first[1] + second[1]

    operator = window_operator(
        key_of,
        SlidingEventTimeWindows.of(seconds(8), seconds(4)),
        reduce=added_up,
        on_error=dead_letter(FAILED),
        allowed_lateness=seconds(100),
    )
    assert type(operator).__name__ == "PanedAggregateOperator"
    with OneInputHarness(operator, keyed=True) as harness:
        run = [("a", 1), ("a", "one"), ("b", 1), ("b", 2), ("a", 3)]
        harness.process_run(run, [0, 4000, 0, 4000, 8000])
        for _ in range(cuts):
            # What is left out of a snapshot has been reported before.
            harness.snapshot()
        harness.process_watermark(30_000)
        assert sorted(harness.values, key=repr) == sorted(
            [("a", 1), ("b", 1), ("b", 3), ("b", 2), ("a", 3)], key=repr
        )
        letters = [one.value.record for one in harness.side_output(FAILED)]
        assert [(one.key, one.window.start) for one in letters] == [
            ("a", 0),
            ("a", 4000),
        ]
        assert sorted(letters[0].elements, key=repr) == [("a", "one"), ("a", 1)]


async def test_with_an_evictor_records_that_cannot_be_added_are_taken_out() -> None:
    for aggregate in (sum_(number), AsyncOwn(), Own()):
        operator = window_operator(
            key_of,
            TUMBLING,
            aggregate=aggregate,
            evictor=CountEvictor.of(2),
            on_error=dead_letter(FAILED),
        )
        async with OneInputHarness(operator, keyed=True) as harness:
            run = [("a", 1), ("a", 2), ("a", None)]
            await harness.run(harness.process_run, run, [1, 2, 3])
            await harness.run(harness.process_watermark, 9)
            assert harness.values in ([3], [(1, 2)])
            (letter,) = harness.side_output(FAILED)
            assert letter.value.record == ("a", None)
            assert letter.timestamp == 3


def paired(first: Any, second: Any) -> Any:
    return number(first), number(second)


async def paired_later(first: Any, second: Any) -> Any:
    await asyncio.sleep(1)
    return paired(first, second)


@pytest.mark.parametrize("function", [paired, paired_later])
async def test_of_a_window_join_only_the_pairs_that_fail_are_left_out(
    function: Callable[[Any, Any], Any],
) -> None:
    operator = window_operator(
        lambda sided: sided[1][0],
        TUMBLING,
        window_function=JoinFunction(function),
        on_error=dead_letter(FAILED),
    )
    async with OneInputHarness(operator, keyed=True) as harness:
        run = [(0, ("a", 1)), (0, ("a", None)), (1, ("a", 2)), (1, ("a", 3))]
        harness.process_run(run, [1, 2, 3, 4])
        await harness.run(harness.process_watermark, 9)
        assert harness.values == [(1, 2), (1, 3)]
        letters = [one.value.record for one in harness.side_output(FAILED)]
        assert letters == [(("a", None), ("a", 2)), (("a", None), ("a", 3))]


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_the_dead_letter_of_a_window_has_all_its_records(when: str) -> None:
    def fails(key: Any, window: Any, records: Any) -> Any:
        raise BadRecordError(key)

    async def fails_later(key: Any, window: Any, records: Any) -> Any:
        await asyncio.sleep(0.001)
        raise BadRecordError(key)

    operator = window_operator(
        key_of,
        TUMBLING,
        window_function=fails if when == "at once" else fails_later,
        on_error=dead_letter(FAILED),
    )
    async with OneInputHarness(operator, keyed=True) as harness:
        await harness.run(harness.process_run, [("a", 1), ("a", 2)], [1, 2])
        await harness.run(harness.process_watermark, 9)
        (letter,) = harness.side_output(FAILED)
        held = [("a", 1), ("a", 2)]
        assert letter.value.record == FailedWindow("a", TimeWindow(0, 10), held)


def test_a_co_group_that_fails_fails_its_window() -> None:
    operator = window_operator(
        lambda sided: sided[1][0],
        TUMBLING,
        window_function=CoGroupFunction(
            lambda first, second: [sum(map(number, first)) + len(second)]
        ),
        on_error=skip,
    )
    with OneInputHarness(operator, keyed=True) as harness:
        run = [(0, ("a", 1)), (0, ("b", None)), (1, ("a", 2))]
        harness.process_run(run, [1, 2, 3])
        harness.process_watermark(9)
        assert harness.values == [2]
        assert harness.context.metrics.counter("skipped").value == 1


@pytest.mark.parametrize("function", [FailsFor, FailsLater])
@pytest.mark.parametrize("early", [False, True])
async def test_a_firing_that_fails_the_job_names_window_and_key(
    function: type[FailsFor], early: bool
) -> None:
    operator = window_operator(
        key_of,
        TUMBLING,
        trigger=CountTrigger(1) if early else None,
        window_function=function([1]),
        on_error=fail,
    )
    with pytest.raises(UserFunctionError) as caught:
        async with OneInputHarness(operator, keyed=True) as harness:
            await harness.run(harness.process_run, [("a", 1)], [1])
            await harness.run(harness.process_watermark, 100)
    assert isinstance(caught.value.__cause__, BadRecordError)
    assert "of the key 'a'" in caught.value.__notes__[0]


class FailingClear(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: list[Any], out: Any) -> None:
        out.collect(len(elements))

    def clear(self, context: Any) -> None:
        raise BadRecordError("clear")


@pytest.mark.parametrize("policy", [skip, fail])
def test_a_clear_that_raises_obeys_on_error(policy: OnError) -> None:
    operator = window_operator(
        key_of, TUMBLING, window_function=FailingClear(), on_error=policy
    )
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", 1), ("b", 1)], [1, 2])
        if policy is fail:
            with pytest.raises(UserFunctionError, match="clear"):
                harness.process_watermark(9)
            return
        harness.process_watermark(9)
        assert harness.values == [1, 1]
        assert harness.context.metrics.counter("skipped").value == 2


class Many(ProcessWindowFunction):
    """Emits many results, more than one run takes, and raises for some windows."""

    def process(self, key: Any, context: Any, elements: list[Any], out: Any) -> None:
        for index in range(3000):
            out.collect((key, index))
            context.output(FAILED, (key, index))
        if key == "b":
            raise BadRecordError(key)


def test_many_results_of_a_firing_that_fails_are_taken_back() -> None:
    operator = window_operator(key_of, TUMBLING, window_function=Many(), on_error=skip)
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([("a", 1), ("b", 1), ("c", 1)], [1, 2, 3])
        harness.process_watermark(9)
        expected = [(key, index) for key in "ac" for index in range(3000)]
        assert harness.values == expected
        assert [one.value for one in harness.side_output(FAILED)] == expected
