"""How streams are joined, split, described and measured."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import msgspec
import pytest

import aiomailbox as am

Env = am.StreamExecutionEnvironment


class Reading(NamedTuple):
    sensor: str
    value: float
    at: int


async def test_a_union_has_the_records_of_all_its_streams(env: Env) -> None:
    low = env.from_collection([1, 2])
    high = env.from_collection([10, 20]).map(lambda n: n * 10)
    more = env.from_collection([5])
    assert sorted(await low.union(high, more).map(str).collect()) == sorted(
        ["1", "2", "100", "200", "5"]
    )


async def test_a_stream_can_be_united_with_itself(env: Env) -> None:
    numbers = env.from_collection([1, 2])
    assert sorted(await numbers.union(numbers).collect()) == [1, 1, 2, 2]


async def test_connected_streams_have_a_function_each(env: Env) -> None:
    numbers = env.from_collection([1, 2])
    words = env.from_collection(["a", "b"])
    both = numbers.connect(words).map(lambda n: n * 2, str.upper)
    assert sorted(await both.map(str).collect()) == ["2", "4", "A", "B"]
    split = numbers.connect(words).flat_map(lambda n: [n] * n, lambda w: [])
    assert sorted(await split.collect()) == [1, 2, 2]


async def test_connected_keyed_streams_share_the_state_of_a_key(env: Env) -> None:
    class Join(am.KeyedCoProcessFunction):
        def open(self, context: Any) -> None:
            self.seen = context.keyed_state.get_list(
                am.ListStateDescriptor("seen", str)
            )

        def process_element1(self, value: Any, context: Any, out: Any) -> None:
            self._remember("left", value, context, out)

        def process_element2(self, value: Any, context: Any, out: Any) -> None:
            self._remember("right", value, context, out)

        def _remember(self, side: str, value: Any, context: Any, out: Any) -> None:
            self.seen.add(side)
            if len(list(self.seen.get())) == 2:
                out.collect(context.current_key)

    left = env.from_collection([("a", 1), ("b", 2)]).key_by(lambda pair: pair[0])
    right = env.from_collection(["b", "a", "c"]).key_by(lambda word: word)
    assert sorted(await left.connect(right).process(Join()).collect()) == ["a", "b"]


async def test_a_side_output_is_a_stream_of_its_own(env: Env) -> None:
    odd = am.OutputTag("odd")

    class Split(am.ProcessFunction):
        def process_element(self, value: int, context: Any, out: Any) -> None:
            if value % 2:
                context.output(odd, value)
            else:
                out.collect(value)

    evens = env.from_collection(list(range(6))).process(Split())
    seen: dict[str, list[int]] = {"even": [], "odd": []}
    evens.sink_to(seen["even"].append)
    evens.get_side_output(odd).map(lambda n: -n).sink_to(seen["odd"].append)
    await env.execute()
    assert seen == {"even": [0, 2, 4], "odd": [-1, -3, -5]}
    assert await evens.get_side_output(odd).collect() == [1, 3, 5]
    assert await evens.collect() == [0, 2, 4]


async def test_late_records_go_to_their_side_output(env: Env) -> None:
    late = am.OutputTag("late")
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    # Event time has passed the first window when the last record comes.
    stream = env.from_collection(
        [Reading("a", 1, 1_000), Reading("a", 2, 70_000), Reading("a", 4, 2_000)],
        strategy.with_timestamp_assigner("at"),
    ).map(lambda reading: reading)
    counts = (
        stream.key_by("sensor")
        .window(am.TumblingEventTimeWindows.of(am.minutes(1)))
        .side_output_late_data(late)
        .aggregate(am.aggregates(n=am.count(), total=am.sum_("value")))
    )
    windows: list[Any] = []
    records: list[Any] = []
    counts.sink_to(windows.append)
    counts.get_side_output(late).sink_to(records.append)
    await env.execute()
    total = sum(window.total for window in windows) + sum(r.value for r in records)
    assert total == 7


async def test_a_pipeline_is_attached_to_any_stream(env: Env) -> None:
    @am.pipeline
    def doubled(numbers: am.DataStream[int]) -> am.DataStream[int]:
        return numbers.map(lambda n: 2 * n)

    assert await env.from_collection([1]).through(doubled).collect() == [2]
    other = am.StreamExecutionEnvironment()
    twice = other.from_collection([1]).through(doubled).through(doubled)
    assert await twice.collect() == [4]
    assert "doubled" in repr(doubled)


def test_a_pipeline_gives_a_stream_of_the_environment_it_was_given(env: Env) -> None:
    foreign = am.StreamExecutionEnvironment().from_collection([1])

    @am.pipeline
    def lost(numbers: am.DataStream[int]) -> am.DataStream[int]:
        return foreign

    given = env.from_collection([1])
    for attach in (lambda: given.through(lost), lambda: lost(given)):
        with pytest.raises(am.UsageError, match="belongs to another environ"):
            attach()
    with pytest.raises(am.UsageError, match=r"lost.*belongs to another"):
        am.pipeline(lambda numbers: lost(numbers))(given)


async def test_records_of_one_key_stay_in_order_across_a_shuffle() -> None:
    env = am.StreamExecutionEnvironment(parallelism=4).configure(
        buffer_timeout=am.millis(0)
    )
    pairs = [(key, n) for n in range(200) for key in "abc"]
    stream = env.from_collection(iter(pairs)).rebalance().map(lambda pair: pair)
    # One subtask per key sees its records; those came through four others.
    counts = stream.key_by(lambda pair: pair[0]).aggregate(am.count())
    assert sorted(await counts.collect()) == sorted([*range(1, 201)] * 3)


@pytest.mark.parametrize(
    "spread", ["rebalance", "rescale", "shuffle", "global_", "forward"]
)
async def test_spreading_records_loses_none(spread: str) -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    numbers = env.from_collection(list(range(100)))
    assert sorted(await getattr(numbers, spread)().map(str).collect()) == sorted(
        map(str, range(100))
    )


async def test_broadcasting_gives_every_subtask_every_record() -> None:
    env = am.StreamExecutionEnvironment(parallelism=3)
    numbers = env.from_collection([1, 2]).broadcast().map(lambda n: n)
    assert sorted(await numbers.collect()) == [1, 1, 1, 2, 2, 2]


async def test_a_custom_partitioner_says_where_records_go() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    chosen: list[tuple[int, int]] = []

    def choose(key: int, count: int) -> int:
        chosen.append((key, count))
        return key % count

    numbers = env.from_collection([1, 2, 3]).partition_custom(choose, lambda n: n)
    assert sorted(await numbers.map(lambda n: n).collect()) == [1, 2, 3]
    assert sorted(chosen) == [(1, 2), (2, 2), (3, 2)]


async def look_up(n: int) -> int:
    await asyncio.sleep(0.1)
    return n


def doubled(n: int) -> int:
    return 2 * n


def test_explain_says_what_runs_where_and_how(env: Env) -> None:
    numbers = env.from_collection([1, 2], name="numbers")
    stream = numbers.map(doubled).map(look_up).map_async(look_up, concurrency=7)
    stream.name("calls").uid("u-1").key_by(lambda n: n).aggregate(am.count()).name(
        "counts"
    ).set_parallelism(3).sink_to(print)
    text = env.explain("numbers job")
    assert "'numbers job'" in text
    assert "numbers" in text
    assert "sync doubled" in text
    assert "async look_up" in text
    one_at_a_time = [
        line for line in text.splitlines() if "one record at a time" in line
    ]
    assert len(one_at_a_time) == 1, "map with an async function, and only that"
    assert "map_async" in one_at_a_time[0]
    assert "uid='u-1'" in text
    assert "parallelism 3" in text
    assert "=HASH=>" in text
    assert "3 channels" in text
    assert "Exchange memory bound" in text
    assert "Key groups: 128" in text
    (calls,) = [line for line in text.splitlines() if "- calls" in line]
    assert "holds at most" in calls


def test_what_is_said_of_a_stream_is_said_of_the_operator_not_of_a_check() -> None:
    env = Env(2)
    numbers = env.from_collection([1], output_type=int).name("numbers")
    doubled = numbers.map(lambda n: 2 * n, output_type=int)
    doubled = doubled.name("double").uid("d").set_parallelism(3)
    doubled.key_by(lambda n: n, on_error=am.skip).reduce(max).sink_to(print)
    lines = env.explain().splitlines()
    assert [line for line in lines if line.startswith("[")] == [
        "[0] numbers -> map  (parallelism 2)",
        "[1] double -> map -> key  (parallelism 3)",
        "[2] reduce -> FunctionSink  (parallelism 2)",
    ]
    assert "    - double uid='d'" in lines


async def test_the_side_output_of_a_checked_stream_is_that_of_its_operator() -> None:
    env, failed = Env(), am.OutputTag("failed")
    numbers = env.from_collection(["1", "x"]).map(
        int, output_type=int, on_error=am.dead_letter(failed)
    )
    letters: list[am.DeadLetter] = []
    numbers.get_side_output(failed).sink_to(letters.append)
    numbers.sink_to(print)
    await env.execute()
    assert [letter.record for letter in letters] == ["x"]


def test_without_chaining_every_operator_is_a_task(env: Env) -> None:
    env.from_collection([1]).map(doubled).sink_to(print)
    assert "1 task chain" in env.explain()
    env.configure(operator_chaining=False)
    assert "3 task chains" in env.explain()


def test_a_slot_sharing_group_stays_apart_and_is_shown(env: Env) -> None:
    numbers = env.from_collection([1])
    slow = numbers.map(doubled).name("slow").slot_sharing_group("gpu")
    slow.filter(bool).sink_to(print)
    text = env.explain()
    assert "2 task chains" in text
    assert "- slow slot_sharing_group='gpu'" in text
    assert "- filter slot_sharing_group='gpu'" in text
    with pytest.raises(am.UsageError, match="name"):
        slow.slot_sharing_group("")


def test_an_operator_can_stay_alone_or_begin_a_chain(env: Env) -> None:
    numbers = env.from_collection([1]).map(doubled)
    numbers.map(doubled).start_new_chain().sink_to(print)
    assert "2 task chains" in env.explain()
    env = am.StreamExecutionEnvironment()
    numbers = env.from_collection([1]).map(doubled).disable_chaining()
    numbers.map(doubled).sink_to(print)
    assert "3 task chains" in env.explain()


async def test_metrics_tell_rows_calls_retries_and_dead_letters(env: Env) -> None:
    failed = am.OutputTag("failed")

    async def flaky(n: int) -> int:
        if n == 0 or (
            n == 1 and flaky_calls.append(n) is None and len(flaky_calls) < 3
        ):
            raise ValueError("not now")
        return n

    flaky_calls: list[int] = []
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    stream = (
        env.from_collection(
            [0, 1, 2, 3],
            strategy.with_timestamp_assigner(lambda n: n * 1000),
            name="numbers",
        )
        .map_async(
            flaky,
            retry=am.Retry(3, initial=0.1),
            on_error=am.dead_letter(failed),
        )
        .name("calls")
    )
    stream.sink_to(lambda n: None)
    stream.get_side_output(failed).sink_to(lambda letter: None)
    async with env.start() as job:
        await job.result()
    metrics = job.metrics()
    calls = metrics.operators["calls"]
    assert metrics.state is am.JobState.FINISHED
    assert metrics.duration_s > 0
    assert (calls["num_records_in"], calls["num_records_out"]) == (4, 3)
    assert calls["calls"] == 3 + 3 + 1 + 1
    assert calls["retries"] == 4
    assert calls["dead_letters"] == 1
    assert metrics.total("dead_letters") == 1
    reached = {place.timestamp_ms for place in job.watermarks().values()}
    assert reached == {2**63 - 1}
    assert set(job.watermarks()) == set(metrics.operators)
    assert all(task["mails"] for task in metrics.tasks.values())


async def test_operators_of_one_name_have_metrics_of_their_own(env: Env) -> None:
    stream = env.from_collection([1, 2]).map(doubled)
    stream.filter(lambda n: n > 2).rebalance().map(doubled).sink_to(lambda n: None)
    async with env.start() as job:
        await job.result()
    operators = job.metrics().operators
    assert operators["map"]["num_records_in"] == 2
    assert operators["map #2"]["num_records_in"] == 1


async def test_metrics_and_await_tree_can_be_looked_at_while_a_job_runs(
    env: Env,
) -> None:
    async def numbers() -> Any:
        for n in range(10):
            yield n
            await asyncio.sleep(1)

    env.configure(buffer_timeout=am.millis(0))
    env.from_async_iterable(numbers, name="numbers").map(doubled).name(
        "double"
    ).sink_to(lambda n: None)
    async with env.start("slow") as job:
        await asyncio.sleep(4.5)
        assert job.metrics().operators["double"]["num_records_in"] == 5
        tree = job.await_tree()
        assert "job 'slow': running" in tree
        assert "numbers" in tree
        assert "slow" in repr(job)


async def test_metrics_have_every_operator_from_the_first_moment(env: Env) -> None:
    stream = env.from_collection(range(5)).map(str).map(int).rebalance().map(str)
    stream.sink_to(lambda text: None)
    async with env.start() as job:
        first = job.metrics().operators
        await job.result()
    last = job.metrics().operators
    assert list(first) == ["collection", "map", "map #2", "map #3", "FunctionSink"]
    assert list(first) == list(last)
    assert first["collection"] == {"num_records_out": 0}
    for name in list(first)[1:]:
        assert first[name] == {"num_records_in": 0, "num_records_out": 0}
    assert last["map #3"]["num_records_in"] == last["map #3"]["num_records_out"] == 5


async def test_metrics_have_every_operator_while_a_job_waits_for_its_restart(
    env: Env,
) -> None:
    env.configure(restart=am.restart.fixed_delay(3, 60.0))
    env.from_collection([0]).map(lambda n: 1 / n).name("divide").sink_to(print)
    async with env.start() as job:
        await asyncio.sleep(30)
        assert job.state is am.JobState.RESTARTING
        assert job.metrics().operators["divide"]["num_records_out"] == 0


def test_sinks_are_numbered_as_other_operators_and_keep_the_ids_of_savepoints(
    env: Env,
) -> None:
    stream = env.from_collection([1])
    stream.sink_to(print)
    stream.sink_to(repr)
    [vertex] = msgspec.json.decode(env.explain(format="json"))["vertices"]
    # As they were when the first savepoints were written.
    assert {one["name"]: one["operator_id"] for one in vertex["operators"]} == {
        "collection": "collection@74c2e421a3061c9c",
        "FunctionSink": "FunctionSink@e9f5739f251d88c0",
        "FunctionSink #2": "FunctionSink-2@12ea812496285aea",
    }
