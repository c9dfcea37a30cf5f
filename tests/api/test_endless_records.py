"""A record that emits without end fails its task, in the middle of the function."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import OverdraftCeilingError
from aiomailbox.memory import local_pool
from aiomailbox.operators.async_state import row_state
from aiomailbox.operators.core import collector

Env = am.StreamExecutionEnvironment
Stream = am.DataStream[Any]
SIDE = am.OutputTag("side")

RECORDS = [("a", 1), ("a", 2)]
# Far more than may be lent, and far less than would hurt.
COLLECTED_MAX = 3_000_000


def emit_for_ever(collect: Callable[[Any], None]) -> None:
    for number in range(COLLECTED_MAX):
        collect(number)
    pytest.fail("nothing has stopped the function")


class Endless(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        emit_for_ever(out.collect)


class EndlessAsync(am.ProcessFunction):
    async def process_element(self, value: Any, context: Any, out: Any) -> None:
        await asyncio.sleep(0)
        emit_for_ever(out.collect)


class EndlessSide(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        emit_for_ever(lambda number: context.output(SIDE, number))


class Stubborn(am.ProcessFunction):
    """Catches what is raised in it, and goes on a while."""

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        try:
            emit_for_ever(out.collect)
        except Exception:
            for number in range(10):
                with pytest.raises(OverdraftCeilingError):
                    emit_for_ever(out.collect)
                assert number >= 0


class EndlessFinish(am.ProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        pass

    def finish(self, out: Any) -> None:
        emit_for_ever(out.collect)


class EndlessKeyed(am.KeyedProcessFunction):
    process_element = Endless.process_element


class EndlessTimer(am.KeyedProcessFunction):
    def process_element(self, value: Any, context: Any, out: Any) -> None:
        context.timer_service.register_event_time_timer(value[1])

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        emit_for_ever(out.collect)


class EndlessCo(am.CoProcessFunction):
    process_element1 = Endless.process_element


class EndlessBroadcast(am.BroadcastProcessFunction):
    process_element = process_broadcast_element = Endless.process_element


class EndlessWindow(am.ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        emit_for_ever(out.collect)


def endless_generator(*_: Any) -> Any:
    for number in itertools.count():
        yield number  # as collect(number) does
        if number > 20 * COLLECTED_MAX:
            pytest.fail("nothing has stopped the function")


async def endless_async_generator(*_: Any) -> Any:
    for number in endless_generator():
        yield number  # as collect(number) does


def endless_iterator(*_: Any) -> Any:  # never says collect(number)
    return itertools.count()


class EndlessJoin(am.ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, context: Any, out: Any) -> None:
        emit_for_ever(out.collect)


async def endless_row(value: Any, context: Any, out: Any) -> None:
    emit_for_ever(out.collect)


def events(env: Env) -> Stream:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    return env.from_collection(
        RECORDS, strategy.with_timestamp_assigner(lambda record: record[1])
    )


def keyed(stream: Stream) -> am.KeyedStream[str, Any]:
    return stream.key_by(lambda record: record[0])


def windows(stream: Stream) -> Any:
    return keyed(stream).window(am.TumblingEventTimeWindows.of(am.seconds(1)))


def grouped(stream: Stream, function: Any) -> Stream:
    return (
        stream.co_group(stream)
        .where(lambda record: record[0])
        .equal_to(lambda record: record[0])
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .apply(function)
    )


RULES = am.MapStateDescriptor("rules")

ENDLESS: dict[str, Callable[[Stream, am.OnError], Stream]] = {
    "process": lambda s, e: s.process(Endless(), on_error=e),
    "process async": lambda s, e: s.process(EndlessAsync(), on_error=e),
    "keyed process": lambda s, e: keyed(s).process(EndlessKeyed(), on_error=e),
    "timer": lambda s, e: keyed(s).process(EndlessTimer(), on_error=e),
    "finish": lambda s, e: s.process(EndlessFinish(), on_error=e),
    "co-process": lambda s, e: s.connect(s).process(EndlessCo(), on_error=e),
    "broadcast": lambda s, e: s.connect(s.broadcast(RULES)).process(
        EndlessBroadcast(), on_error=e
    ),
    "window": lambda s, e: (
        keyed(s)
        .window(am.TumblingEventTimeWindows.of(am.seconds(1)))
        .process(EndlessWindow(), on_error=e)
    ),
    "apply": lambda s, e: windows(s).apply(endless_generator, on_error=e),
    "apply async": lambda s, e: windows(s).apply(endless_async_generator, on_error=e),
    "apply iterator": lambda s, e: windows(s).apply(endless_iterator, on_error=e),
    "co_group": lambda s, e: grouped(s, endless_generator),
    "interval join": lambda s, e: (
        keyed(s)
        .interval_join(keyed(s))
        .between(0, 0)
        .process(EndlessJoin(), on_error=e)
    ),
    "process_async": lambda s, e: keyed(s).process_async(
        endless_row, concurrency=2, on_error=e
    ),
}


def user_error_of(error: BaseException) -> am.UserFunctionError:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, am.UserFunctionError):
        cause = cause.__cause__
    assert cause is not None, f"no UserFunctionError behind {error!r}"
    return cause


def check(failure: BaseException) -> None:
    error = user_error_of(failure)
    assert isinstance(error.__cause__, OverdraftCeilingError)
    assert error.operator == "culprit"
    file, _, line = error.location.rstrip(")").rpartition(":")
    assert file.rpartition("(")[2] == __file__
    source = inspect.getsource(inspect.getmodule(check)).splitlines()[int(line) - 1]  # type: ignore[arg-type]
    assert "collect(number)" in source or "context.output" in source


@pytest.fixture
def lends_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower what may be lent, which takes a third of a second to fill."""
    for module in (collector, local_pool):
        monkeypatch.setattr(module, "DEFAULT_OVERDRAFT_CEILING", 50)
    monkeypatch.setattr(row_state, "RESULTS_MAX", 50_000)


@pytest.mark.real_time
@pytest.mark.usefixtures("lends_little")
@pytest.mark.parametrize("on_error", [am.fail, am.skip], ids=["fail", "skip"])
@pytest.mark.parametrize("case", ENDLESS)
async def test_the_task_fails_and_the_function_is_named(
    case: str, on_error: am.OnError
) -> None:
    env = Env()
    stream = ENDLESS[case](events(env), on_error).name("culprit")
    with pytest.raises(am.JobFailedError) as caught:
        await stream.rebalance().map(lambda number: number).collect()
    check(caught.value)


@pytest.mark.real_time
@pytest.mark.parametrize("case", ["process", "timer", "window", "apply", "side"])
async def test_a_record_whose_results_nobody_takes_has_an_end_as_well(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "_PASSED_MAX", 50)
    env = Env()
    if case == "side":
        culprit = events(env).process(EndlessSide()).name("culprit")
    else:
        culprit = ENDLESS[case](events(env), am.skip).name("culprit")
    with pytest.raises(am.JobFailedError) as caught:
        await culprit.filter(lambda number: False).collect()
    check(caught.value)


async def test_many_records_may_together_emit_what_one_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Many(am.ProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            for number in range(2_000):
                out.collect(number)

    monkeypatch.setattr(collector, "_PASSED_MAX", 3)
    env = Env()
    stream = env.from_collection(range(50)).process(Many())
    assert await stream.filter(lambda number: number == 1).count() == 50


@pytest.mark.real_time
@pytest.mark.parametrize("fails", ["endless", "error"])
async def test_nothing_that_was_to_be_awaited_is_left_behind(
    fails: str, recwarn: pytest.WarningsRecorder
) -> None:
    class Much(am.ProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            for number in range(100_000):
                out.collect(number)
                context.output(SIDE, number)
            if fails == "endless":
                emit_for_ever(out.collect)
            raise ValueError

    # What tests before this one have left is theirs.
    gc.collect()
    recwarn.clear()
    stream = events(Env()).process(Much())
    with pytest.raises(am.JobFailedError):
        await stream.map(lambda number: number).collect()
    gc.collect()
    assert [str(one.message) for one in recwarn] == []


@pytest.mark.real_time
async def test_a_side_output_has_an_end_as_well() -> None:
    stream = events(Env()).process(EndlessSide()).name("culprit")
    with pytest.raises(am.JobFailedError) as caught:
        await stream.get_side_output(SIDE).rebalance().map(lambda n: n).collect()
    check(caught.value)


@pytest.mark.real_time
async def test_results_are_bounded_also_before_an_operator_that_awaits() -> None:
    """The operators are chained: results are held until the function has returned."""

    async def slow(number: int) -> int:
        return number

    stream = events(Env()).process(Endless()).name("culprit")
    with pytest.raises(am.JobFailedError) as caught:
        await stream.map(slow).collect()
    check(caught.value)


@pytest.mark.real_time
async def test_a_function_cannot_catch_the_end_of_its_task() -> None:
    stream = events(Env()).process(Stubborn(), on_error=am.skip).name("culprit")
    with pytest.raises(am.JobFailedError, match="overdraft ceiling"):
        await stream.rebalance().map(lambda number: number).collect()


def test_who_catches_the_end_of_the_task_again_and_again_gets_no_more_memory() -> None:
    class Full:
        def emit_run(self, run: Any) -> None:
            raise OverdraftCeilingError("full")

    results = collector.Collector(Full())  # type: ignore[arg-type]
    for _ in range(100):
        with pytest.raises(OverdraftCeilingError) as caught:
            emit_for_ever(results.collect)
        where = [frame.name for frame in caught.traceback]
        assert "emit_for_ever" in where
        assert len(where) < 10


async def test_what_one_record_emits_fits_if_it_is_consumed_at_once() -> None:
    """Results go on while the function runs: only the end of a chain keeps them."""

    class Many(am.ProcessFunction):
        def process_element(self, value: Any, context: Any, out: Any) -> None:
            for number in range(200_000):
                out.collect(number)

    env = Env()
    total = 0

    def add(number: int) -> None:
        nonlocal total
        total += number

    env.from_collection([1]).process(Many()).filter(lambda n: n % 2).sink_to(add)
    await env.execute()
    assert total == sum(range(1, 200_000, 2))


async def test_results_keep_their_order_before_an_operator_that_awaits() -> None:
    class Some(am.ProcessFunction):
        def process_element(self, value: int, context: Any, out: Any) -> None:
            for number in range(1_000):
                out.collect((value, number))

    async def same(pair: Any) -> Any:
        return pair

    found = await Env().from_collection([1, 2, 3]).process(Some()).map(same).collect()
    assert found == [(v, n) for v in (1, 2, 3) for n in range(1_000)]


async def test_an_error_behind_a_function_is_not_its_own() -> None:
    """``skip`` is for the records of the function, not for those it has emitted."""

    class Some(am.ProcessFunction):
        def process_element(self, value: int, context: Any, out: Any) -> None:
            for number in range(5_000):
                out.collect(number)

    def broken(number: int) -> int:
        return 1 // (number - 4_000)

    stream = Env().from_collection([1]).process(Some(), on_error=am.skip)
    with pytest.raises(am.JobFailedError) as caught:
        await stream.map(broken).name("culprit").collect()
    assert user_error_of(caught.value).operator == "culprit"


async def test_an_asynchronous_function_may_return_items_without_end() -> None:
    """They are emitted in pieces; whoever takes enough of them ends the job."""

    async def numbers(_: Any) -> Any:
        return itertools.count()

    found = await Env().from_collection([1]).flat_map(numbers).take(5_000)
    assert found == list(range(5_000))
