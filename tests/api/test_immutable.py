"""Streams and windows do not change: what sets something returns another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import aiomailbox as am

SETTINGS: dict[str, Callable[[Any], Any]] = {
    ".name('x')": lambda stream: stream.name("x"),
    ".uid('x')": lambda stream: stream.uid("x"),
    ".set_parallelism(2)": lambda stream: stream.set_parallelism(2),
    ".set_max_parallelism(8)": lambda stream: stream.set_max_parallelism(8),
    ".slot_sharing_group('x')": lambda stream: stream.slot_sharing_group("x"),
    ".disable_chaining()": lambda stream: stream.disable_chaining(),
    ".start_new_chain()": lambda stream: stream.start_new_chain(),
}


@pytest.fixture
def env() -> am.StreamExecutionEnvironment:
    return am.StreamExecutionEnvironment()


def doubled(env: am.StreamExecutionEnvironment) -> Any:
    return env.from_collection([1, 2]).map(lambda n: 2 * n)


def operators(env: am.StreamExecutionEnvironment) -> list[str]:
    lines = env.explain().splitlines()
    return [line.strip() for line in lines if line.strip().startswith("- ")]


@pytest.mark.parametrize("call", SETTINGS)
async def test_a_setting_that_is_dropped_is_refused_where_the_job_would_miss_it(
    env: am.StreamExecutionEnvironment, call: str
) -> None:
    stream = doubled(env)
    SETTINGS[call](stream)
    stream.sink_to(print)
    with pytest.raises(am.UsageError) as caught:
        await env.execute()
    assert f"write `stream = stream{call}`" in str(caught.value)
    assert f"{__file__}:" in str(caught.value)
    with pytest.raises(am.UsageError, match="A stream does not change"):
        await stream.collect()


@pytest.mark.parametrize("call", SETTINGS)
async def test_a_stream_has_what_was_set_and_the_one_before_has_not(
    env: am.StreamExecutionEnvironment, call: str
) -> None:
    before = doubled(env)
    after = SETTINGS[call](before)
    assert after is not before
    assert type(after) is type(before)
    assert before._operator.uid is None
    assert before._operator.name == "map"
    assert sorted(await after.collect()) == [2, 4]


async def test_no_operator_runs_twice_because_it_was_named_between_two_branches(
    env: am.StreamExecutionEnvironment,
) -> None:
    stream = doubled(env)
    stream.sink_to(print)
    stream.uid("doubled").sink_to(print)
    with pytest.raises(am.UsageError, match=r"as it was before \.uid\('doubled'\)"):
        await env.execute()


async def test_two_streams_of_one_base_are_two_operators_with_what_they_were_given(
    env: am.StreamExecutionEnvironment,
) -> None:
    base = doubled(env)
    found: list[int] = []
    for name in ("a", "b"):
        base.uid(name).sink_to(found.append)
    assert sum(f"uid='{name}'" in env.explain() for name in ("a", "b")) == 2
    await env.execute()
    assert sorted(found) == [2, 2, 4, 4]


async def test_all_that_is_set_in_a_chain_is_kept(
    env: am.StreamExecutionEnvironment,
) -> None:
    stream = doubled(env).name("double").uid("d").set_parallelism(3)
    stream.sink_to(print)
    assert "- double uid='d'" in "\n".join(operators(env))
    assert "(parallelism 3)" in env.explain()


async def test_a_sink_has_what_is_set_after_it_also_if_the_result_is_dropped(
    env: am.StreamExecutionEnvironment,
) -> None:
    found: list[int] = []
    doubled(env).sink_to(found.append).name("found").uid("f")
    assert any("found uid='f'" in line for line in operators(env))
    await env.execute()
    assert found == [2, 4]


async def test_a_sink_of_a_job_that_has_started_is_not_changed_any_more(
    env: am.StreamExecutionEnvironment,
) -> None:
    sink = doubled(env).sink_to(lambda number: None)
    await env.execute()
    with pytest.raises(am.UsageError, match=r"\.uid\('late'\) comes too late"):
        sink.uid("late")


async def test_a_keyed_stream_stays_keyed(env: am.StreamExecutionEnvironment) -> None:
    keyed = doubled(env).key_by(lambda number: number).uid("numbers")
    assert await keyed.aggregate(am.count()).collect() == [1, 1]


async def test_a_setting_of_a_checked_stream_is_that_of_its_operator(
    env: am.StreamExecutionEnvironment,
) -> None:
    stream = env.from_collection([1]).map(str, output_type=str).uid("text")
    assert await stream.collect() == ["1"]
    stream.sink_to(print)
    assert [line for line in operators(env) if "uid='text'" in line] == [
        "- map uid='text'"
    ]


def windowed(env: am.StreamExecutionEnvironment) -> Any:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    numbers = env.from_collection(
        [1, 2, 3], strategy.with_timestamp_assigner(lambda number: number)
    )
    keyed = numbers.key_by(lambda number: "all")
    return keyed.window(am.TumblingEventTimeWindows.of(am.seconds(1)))


async def test_windows_may_be_the_base_of_several(
    env: am.StreamExecutionEnvironment,
) -> None:
    base = windowed(env)
    each = base.trigger(am.CountTrigger.of(1)).aggregate(am.count())
    assert await base.aggregate(am.count()).collect() == [3]
    assert await each.collect() == [1, 2, 3]


@pytest.mark.parametrize(
    "setting",
    [
        lambda windows: windows.trigger(am.CountTrigger.of(1)),
        lambda windows: windows.evictor(am.CountEvictor.of(1)),
        lambda windows: windows.allowed_lateness(am.seconds(1)),
        lambda windows: windows.side_output_late_data(am.OutputTag("late")),
    ],
)
def test_a_warning_says_that_a_setting_of_windows_was_dropped(
    env: am.StreamExecutionEnvironment, setting: Callable[[Any], Any]
) -> None:
    windows = windowed(env)
    with pytest.warns(RuntimeWarning, match="windows do not change"):
        setting(windows)
    windows.aggregate(am.count())


async def test_windows_of_joins_do_not_change(
    env: am.StreamExecutionEnvironment,
) -> None:
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    numbers = env.from_collection(
        [1, 2], strategy.with_timestamp_assigner(lambda number: number)
    )
    sides = numbers.join(numbers).where(lambda _: "all").equal_to(lambda _: "all")
    base = sides.window(am.TumblingEventTimeWindows.of(am.seconds(1)))
    other = base.trigger(am.CountTrigger.of(3))
    assert other is not base
    assert len(await base.apply(lambda one, two: (one, two)).collect()) == 4
    assert len(await other.apply(lambda one, two: (one, two)).collect()) == 2


def test_the_error_of_a_method_that_is_gone_names_the_argument(
    env: am.StreamExecutionEnvironment,
) -> None:
    windows = windowed(env)
    with pytest.raises(AttributeError, match=r"aggregate\(\.\.\., on_error=\.\.\.\)"):
        windows.on_error(am.skip)
    numbers = env.from_collection([1])
    sides = numbers.join(numbers).where(lambda _: 1).equal_to(lambda _: 1)
    joined: Any = sides.window(am.TumblingEventTimeWindows.of(am.seconds(1)))
    with pytest.raises(AttributeError, match=r"apply\(function, on_error=\.\.\.\)"):
        joined.on_error(am.skip)
