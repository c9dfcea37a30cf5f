"""Jobs that fail and start again: nothing is lost, and nothing counts twice in state."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import (
    CheckpointFailedError,
    InvalidArgumentError,
    JobFailedError,
    KeyTypeError,
    NoCheckpointError,
    SourceChangedError,
    StateError,
    UsageError,
)
from tests.runtime.rows_writer import RowsWriter

AT_LEAST_ONCE = am.CheckpointingMode.AT_LEAST_ONCE
KEYS = 7
COUNT = 3_000


class FailsAt:
    """Raises at some values, each time once."""

    def __init__(self, *values: int) -> None:
        self.waiting = list(values)

    def __call__(self, value: int) -> int:
        if value in self.waiting:
            self.waiting.remove(value)
            raise RuntimeError(f"stumbled over {value}")
        return value


async def now_and_then(value: int) -> int:
    if value % 50 == 0:
        await asyncio.sleep(0.01)
    return value


def environment(interval: float | None = 0.05, **settings: Any) -> Any:
    env = am.StreamExecutionEnvironment(parallelism=settings.pop("parallelism", 2))
    every = None if interval is None else am.seconds(interval)
    env.enable_checkpointing(every, **settings)
    return env.configure(restart=am.restart.fixed_delay(5, 0.01))


def sums(env: Any, fails: FailsAt, results: list[tuple[int, int]]) -> None:
    (
        env.from_collection(list(range(COUNT)))
        .map(now_and_then)
        .map(fails)
        .map(lambda value: (value % KEYS, value))
        .key_by(lambda pair: pair[0])
        .reduce(lambda one, two: (one[0], one[1] + two[1]))
        .uid("sums")
        .sink_to(results.append)
    )


def totals(results: list[tuple[int, int]]) -> dict[int, int]:
    largest: dict[int, int] = {}
    for key, total in results:
        largest[key] = max(total, largest.get(key, 0))
    return largest


EXPECTED = {key: sum(range(key, COUNT, KEYS)) for key in range(KEYS)}


async def test_each_record_counts_once_in_state_however_often_the_job_fails() -> None:
    results: list[tuple[int, int]] = []
    env = environment()
    sums(env, FailsAt(700, 1_600, 2_900), results)
    async with env.start() as job:
        await job.result()
        assert job.restarts == 3
        assert len(job.checkpoints()) > 3
    assert totals(results) == EXPECTED


async def test_a_job_that_fails_too_often_has_failed_with_the_last_error() -> None:
    env = environment()
    env.configure(restart=am.restart.fixed_delay(1, 0.01))
    sums(env, FailsAt(100, 101, 102), [])
    with pytest.raises(JobFailedError, match=r"stumbled over 10[01]"):
        await env.execute()


async def test_without_checkpoints_a_job_that_starts_again_begins_anew() -> None:
    results: list[tuple[int, int]] = []
    env = am.StreamExecutionEnvironment()
    env.configure(restart=am.restart.fixed_delay(1, 0.01))
    sums(env, FailsAt(2_000), results)
    await env.execute()
    assert totals(results) == EXPECTED


async def test_another_program_goes_on_from_the_latest_checkpoint(
    tmp_path: Path,
) -> None:
    results: list[tuple[int, int]] = []

    def program(fails: FailsAt) -> Any:
        env = environment(directory=tmp_path, retention=am.Retention.ON_FAILURE)
        env.configure(restart=am.restart.none())
        sums(env, fails, results)
        return env

    with pytest.raises(JobFailedError):
        await program(FailsAt(2_000)).execute("sums")
    before = len(results)
    env = program(FailsAt())
    async with env.start("sums", restore_from="latest") as job:
        await job.result()
    assert totals(results) == EXPECTED
    assert len(results) - before < COUNT, "it began anew"
    # A job that has succeeded leaves nothing to go on from.
    assert not list(tmp_path.rglob("_metadata"))


async def test_a_savepoint_is_restored_with_another_parallelism(
    tmp_path: Path,
) -> None:
    results: list[tuple[int, int]] = []
    env = environment(None)
    sums(env, FailsAt(), results)
    async with env.start() as job:
        while len(results) < COUNT // 2:
            await asyncio.sleep(0.01)
        savepoint = await job.stop_with_savepoint(tmp_path / "savepoint")
    assert job.state is am.JobState.FINISHED
    before = len(results)
    assert before < COUNT
    env = environment(None, parallelism=3)
    sums(env, FailsAt(), results)
    await env.execute(restore_from=savepoint.place)
    assert totals(results) == EXPECTED
    assert len(results) == COUNT, "no record was processed twice"


async def test_an_async_iterable_goes_on_from_the_savepoint_that_stopped_it(
    tmp_path: Path,
) -> None:
    async def numbers(after: int | None) -> Any:
        for number in range(0 if after is None else after + 1, 20):
            await asyncio.sleep(1)
            yield number

    def program(results: list[int]) -> Any:
        env = environment(None, parallelism=1)
        source = env.from_async_iterable(numbers, offset=lambda number: number)
        source.uid("numbers").sink_to(results.append)
        return env

    results: list[int] = []
    async with program(results).start() as job:
        await asyncio.sleep(5.5)
        place = (await job.stop_with_savepoint(tmp_path / "savepoint")).place
    assert results == [0, 1, 2, 3, 4]
    await program(results).execute(restore_from=place)
    assert results == list(range(20))


async def test_a_savepoint_lets_the_job_go_on(tmp_path: Path) -> None:
    results: list[tuple[int, int]] = []
    env = environment(None)
    sums(env, FailsAt(), results)
    async with env.start() as job:
        while len(results) < COUNT // 2:
            await asyncio.sleep(0.01)
        place = (await job.trigger_savepoint(tmp_path / "savepoint")).place
        await job.result()
    assert totals(results) == EXPECTED
    sums(env, FailsAt(), results)
    with pytest.raises(InvalidArgumentError, match="exists already"):
        async with env.start() as job:
            await job.trigger_savepoint(place)


async def test_windows_stay_in_a_savepoint_unless_the_job_is_drained(
    tmp_path: Path,
) -> None:
    class Clock:
        """Emits one record, and then nothing until it is stopped."""

        def __aiter__(self) -> Any:
            return self._items()

        async def _items(self) -> Any:
            yield 5
            await asyncio.Event().wait()

    def windows(results: list[int]) -> Any:
        env = environment(None, parallelism=1, mode=AT_LEAST_ONCE)
        strategy = am.WatermarkStrategy.for_monotonous_timestamps()
        (
            env.from_async_iterable(
                Clock, strategy.with_timestamp_assigner(lambda value, _: value)
            )
            .key_by(lambda value: 0)
            .window(am.TumblingEventTimeWindows.of(am.seconds(10)))
            .aggregate(am.count())
            .sink_to(results.append)
        )
        return env

    fired: dict[bool, list[Any]] = {}
    for drain in (False, True):
        fired[drain] = []
        async with windows(fired[drain]).start() as job:
            await asyncio.sleep(1)
            place = tmp_path / f"drain-{drain}"
            await job.stop_with_savepoint(place, drain=drain)
    assert fired[False] == []
    assert len(fired[True]) == 1


async def test_what_a_sink_prepared_is_committed_once_with_its_checkpoint() -> None:
    visible: Counter[int] = Counter()
    commits: list[int] = []

    class Committer:
        done = 0

        def begin(self, *, restored: bool) -> None: ...

        async def commit(
            self, committables: list[int], *, checkpoint_id: int, is_final: bool
        ) -> None:
            await asyncio.sleep(0.001)
            if checkpoint_id > self.done:
                self.done = checkpoint_id
                commits.append(checkpoint_id)
                visible.update(committables)

        def end(self, *, succeeded: bool) -> None: ...

    class Sink:
        def create_writer(self, context: Any) -> RowsWriter:
            return RowsWriter()

        def create_committer(self, context: Any) -> Committer:
            return Committer()

    env = environment()
    fails = FailsAt(700, 1_600, 2_900)
    env.from_collection(list(range(COUNT))).map(now_and_then).map(fails).sink_to(Sink())
    await env.execute()
    assert visible == Counter(range(COUNT))
    assert len(commits) > 3
    assert commits == sorted(commits)


async def test_a_commit_that_fails_is_made_again() -> None:
    committed: list[int] = []
    fails = FailsAt(2)

    class Sink:
        def create_writer(self, context: Any) -> Any:
            return self

        def write_run(self, run: Any) -> None: ...
        def flush(self, *, end_of_input: bool) -> None: ...
        def prepare_commit(self) -> list[str]:
            return ["x"]

        def snapshot(self) -> list[Any]:
            return []

        def restore(self, elements: list[Any]) -> None: ...
        def close(self) -> None: ...
        def create_committer(self, context: Any) -> Any:
            return Committer()

    class Committer:
        def begin(self, *, restored: bool) -> None: ...
        def commit(
            self, committables: list[str], *, checkpoint_id: int, is_final: bool
        ) -> None:
            fails(checkpoint_id)
            if not is_final:
                committed.append(checkpoint_id)

        def end(self, *, succeeded: bool) -> None: ...

    env = environment()
    env.from_collection(list(range(COUNT))).map(now_and_then).sink_to(Sink())
    async with env.start() as job:
        await job.result()
        assert job.restarts == 1
    assert 2 in committed


async def test_what_cannot_be_restored_is_refused(tmp_path: Path) -> None:
    env = environment(None)
    sums(env, FailsAt(), [])
    with pytest.raises(JobFailedError) as caught:
        await env.execute(restore_from=tmp_path / "nothing")
    assert isinstance(caught.value.__cause__, NoCheckpointError)
    sums(env, FailsAt(), [])
    async with env.start() as job:
        place = (await job.trigger_savepoint(tmp_path / "savepoint")).place
        await job.cancel()
    other = environment(None)
    numbers = other.from_collection([1] * COUNT)
    kept = numbers.key_by(lambda value: value).reduce(max)
    kept.sink_to(lambda value: None)
    with pytest.raises(JobFailedError, match="sums") as caught:
        await other.execute(restore_from=place)
    assert isinstance(caught.value.__cause__, StateError)
    kept.sink_to(lambda value: None)
    await other.execute(restore_from=place, allow_unmatched_state=True)


async def test_a_source_that_changed_is_not_read_again_and_again(
    tmp_path: Path,
) -> None:
    """And what was kept of it stays, for the source as it was."""
    reads: list[int] = []

    async def read() -> AsyncIterator[int]:
        reads.append(1)
        yield 1
        await asyncio.sleep(1)
        raise SourceChangedError("other rows")

    env = environment(mode=AT_LEAST_ONCE, directory=tmp_path)
    env.from_async_iterable(read).sink_to(lambda value: None)
    with pytest.raises(JobFailedError) as caught:
        await env.execute()
    assert isinstance(caught.value.__cause__, SourceChangedError)
    assert reads == [1]
    assert list(tmp_path.rglob("_metadata"))


async def test_two_jobs_on_one_directory_are_refused(tmp_path: Path) -> None:
    def program() -> Any:
        env = environment(None, directory=tmp_path)
        sums(env, FailsAt(), [])
        return env

    async with program().start() as job:
        await job.trigger_checkpoint()
        with pytest.raises(JobFailedError, match="belongs to job 'job'"):
            await program().execute()
        await program().execute("another")


async def test_a_checkpoint_that_nobody_takes_says_why() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(print)
    async with env.start() as job:
        with pytest.raises(UsageError, match="enable_checkpointing"):
            await job.trigger_checkpoint()
    env = environment(None)
    env.from_collection([1]).sink_to(print)
    async with env.start() as job:
        await job.result()
        with pytest.raises(CheckpointFailedError, match="has ended"):
            await job.trigger_checkpoint()


async def test_cancelling_while_a_restart_is_waited_for_ends_the_job() -> None:
    env = environment()
    env.configure(restart=am.restart.fixed_delay(3, 3_600))
    sums(env, FailsAt(100), [])
    async with env.start() as job:
        while job.state is not am.JobState.RESTARTING:
            await asyncio.sleep(0.01)
        await job.cancel()
        with pytest.raises(am.JobCancelledError):
            await job.result()


async def test_what_had_finished_is_not_done_again(tmp_path: Path) -> None:
    """MB-106, MB-115."""
    lives: list[str] = []

    class Life(am.ProcessFunction):
        def __init__(self, name: str) -> None:
            self.name = name

        def open(self, context: Any) -> None:
            lives.append(f"open {self.name}")

        def process_element(self, value: Any, context: Any, out: Any) -> None:
            out.collect(value)

        def finish(self, out: Any) -> None:
            lives.append(f"finish {self.name}")

    class Slow:
        """A bounded source that ends long after the other one."""

        def __aiter__(self) -> Any:
            return self._items()

        async def _items(self) -> Any:
            for value in range(10):
                await asyncio.sleep(1)
                yield value

    fails = FailsAt(5)
    results: list[int] = []
    env = environment(0.1, parallelism=1, mode=AT_LEAST_ONCE)
    env.configure(operator_chaining=False)
    short = env.from_collection([100]).process(Life("short"))
    long = env.from_async_iterable(Slow).map(fails).process(Life("long"))
    short.union(long).sink_to(results.append)
    async with env.start() as job:
        await job.result()
        assert job.restarts == 1
    assert lives.count("finish short") == 1
    assert lives.count("open short") == 1
    assert lives.count("open long") == 2
    assert lives.count("finish long") == 1
    assert results.count(100) == 1


async def test_a_source_that_cannot_replay_is_refused_and_named() -> None:
    env = environment()
    env.from_collection(iter([1, 2])).sink_to(print)
    with pytest.raises(InvalidArgumentError, match="'collection' cannot replay"):
        await env.execute()
    assert "source 'collection' cannot replay" in env.explain()
    with pytest.raises(InvalidArgumentError, match="'collection' cannot replay"):
        await environment().from_collection({"a", "b"}).collect()
    assert "at least once" in env.explain()


def test_explain_says_what_a_failure_costs() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(print)
    assert "no checkpoints" in env.explain()
    env.enable_checkpointing(am.seconds(1))
    assert "each record counts exactly once in state" in env.explain()
    assert "source 'collection' replays\n" in env.explain()
    assert "sink 'FunctionSink': at least once" in env.explain()


def test_a_sink_that_says_nothing_of_its_guarantee_counts_as_at_least_once() -> None:
    class Silent:
        def create_writer(self, context: Any) -> Any: ...

        def create_committer(self, context: Any) -> Any: ...

    class Exact(Silent):
        guarantee = am.Guarantee.EXACTLY_ONCE

    env = am.StreamExecutionEnvironment().enable_checkpointing(am.seconds(1))
    for sink in (Silent(), Exact()):
        env.from_collection([1]).sink_to(sink)
    assert "sink 'Silent': at least once" in env.explain()
    assert "sink 'Exact': exactly once" in env.explain()


@pytest.mark.parametrize("end", ["failed", "was cancelled"])
async def test_a_job_that_has_failed_leaves_the_journal_and_one_that_has_not_does_not(
    tmp_path: Path, end: str
) -> None:
    calls: Counter[int] = Counter()

    async def call(value: int) -> int:
        calls[value] += 1
        await asyncio.sleep(0.001)
        return value

    def program(fails: FailsAt) -> Any:
        env = environment(None, directory=tmp_path, parallelism=1)
        env.configure(restart=am.restart.none())
        stream = env.from_collection(list(range(20)))
        called = stream.map_async(
            call, concurrency=1, journal=True, id=lambda value: value
        )
        called.uid("call").map(fails).sink_to(lambda _: None)
        return env

    if end == "failed":
        with pytest.raises(JobFailedError):
            await program(FailsAt(10)).execute("calls")
    else:
        async with program(FailsAt()).start("calls") as job:
            while not calls[10]:
                await asyncio.sleep(0.001)
            await job.cancel()
    assert calls[5] == 1
    await program(FailsAt()).execute("calls", restore_from="latest")
    assert {calls[value] for value in range(10)} == {1}
    await program(FailsAt()).execute("calls", restore_from="latest")
    assert {calls[value] for value in range(10)} == {2}, "success ends the journal"


async def test_a_life_that_cannot_be_restored_loses_nothing_that_others_have_left(
    tmp_path: Path,
) -> None:
    results: list[tuple[int, int]] = []

    def program(fails: FailsAt, kind: type) -> Any:
        env = environment(directory=tmp_path).configure(restart=am.restart.none())
        descriptor = am.ValueStateDescriptor("sum", kind)

        class Sums(am.KeyedProcessFunction):
            def open(self, context: Any) -> None:
                self.sum = context.keyed_state.get_value(descriptor)

            def process_element(self, value: int, context: Any, out: Any) -> None:
                self.sum.update((self.sum.value() or kind()) + kind(value))
                out.collect((context.current_key, self.sum.value()))

        stream = env.from_collection(list(range(COUNT))).map(now_and_then).map(fails)
        keyed = stream.key_by(lambda value: value % KEYS)
        keyed.process(Sums()).uid("sums").sink_to(results.append)
        return env

    kept = program(FailsAt(2_000), int)
    kept.enable_checkpointing(
        am.seconds(0.05), directory=tmp_path, retention=am.Retention.ON_FAILURE
    )
    with pytest.raises(JobFailedError):
        await kept.execute("sums")
    # Somebody edits the program, and what was int is str now.
    with pytest.raises(JobFailedError, match="was written as int"):
        await program(FailsAt(), str).execute("sums", restore_from="latest")
    # Or looks at it for a moment only.
    async with program(FailsAt(), int).start("sums", restore_from="latest") as job:
        await job.cancel()
    results.clear()
    await program(FailsAt(), int).execute("sums", restore_from="latest")
    assert len(results) < COUNT
    assert totals(results) == EXPECTED


async def test_a_job_that_is_cancelled_at_once_gives_its_place_back(
    tmp_path: Path,
) -> None:
    for delays in range(12):
        env = environment(directory=tmp_path)
        sums(env, FailsAt(), [])
        async with env.start("sums") as job:
            for _ in range(delays):
                await asyncio.sleep(0)
            await job.cancel()
    env = environment(directory=tmp_path)
    sums(env, FailsAt(), [])
    await env.execute("sums")


@pytest.mark.parametrize("way", ["collect", "async for", "a function"])
async def test_results_that_are_taken_at_once_come_again_after_a_failure(
    way: str,
) -> None:
    """At least once: whoever takes them sees those since the checkpoint again."""
    env = environment(0.05, parallelism=1)
    stream = env.from_collection(list(range(COUNT))).map(now_and_then)
    stream = stream.map(FailsAt(2_000))
    results: list[int] = []
    if way == "collect":
        results = await stream.collect()
    elif way == "async for":
        async for number in stream:
            results.append(number)
    else:
        stream.sink_to(results.append)
        await env.execute()
    assert set(results) == set(range(COUNT))
    assert COUNT < len(results) < COUNT + 2_000
    # In order from where it went on.
    again = next(at for at in range(1, len(results)) if results[at] <= results[at - 1])
    assert results[:again] == list(range(results[again - 1] + 1))
    assert results[again:] == list(range(results[again], COUNT))


async def test_elements_that_cannot_come_again_are_lost_with_a_failure() -> None:
    queue = iter(range(COUNT))

    async def waiting() -> Any:
        for number in queue:
            await now_and_then(number)
            yield number

    env = environment(0.05, parallelism=1, mode=AT_LEAST_ONCE)
    results: list[int] = []
    env.from_async_iterable(waiting).map(FailsAt(2_000)).sink_to(results.append)
    assert "cannot replay: a failure loses its records" in env.explain()
    await env.execute()
    lost = set(range(COUNT)) - set(results)
    # What was on its way, and nothing from before that or from after it.
    assert 2_000 in lost
    assert lost == set(range(min(lost), max(lost) + 1))
    assert max(lost) < COUNT - 1
    assert len(results) == len(set(results))


async def test_who_starts_a_finished_job_again_is_told_that_it_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for round_ in range(2):
        results: list[int] = []
        env = environment(directory=tmp_path)
        env.from_collection([1, 2, 3]).sink_to(results.append)
        await env.execute("short", restore_from="latest")
        assert sorted(results) == [1, 2, 3]
        assert ("had finished before" in caplog.text) == (round_ == 1)


@pytest.mark.parametrize("backend", [am.HeapStateBackend, am.RocksDBStateBackend])
async def test_keys_of_another_type_than_those_that_were_restored_are_refused(
    tmp_path: Path, backend: Any
) -> None:
    """They would find nothing, and what was restored would never be found."""

    def program(key: Any) -> Any:
        env = environment(None)
        env.configure(restart=am.restart.none())
        env.configure(state_backend=backend())

        async def forever(after: int | None) -> Any:
            for number in range(0 if after is None else after + 1, 10**9):
                yield number
                await asyncio.sleep(0.001)

        numbers = env.from_async_iterable(forever, offset=lambda number: number)
        sums_of = numbers.uid("numbers").key_by(key).reduce(max)
        sums_of.uid("sums").sink_to(lambda _: None)
        return env

    async with program(lambda number: number % 3).start() as job:
        await asyncio.sleep(0.5)
        await job.stop_with_savepoint(tmp_path / "place")
    job = program(lambda number: str(number % 3)).start(restore_from=tmp_path / "place")
    with pytest.raises(JobFailedError, match="int") as caught:
        async with job as started:
            await started.result()
    assert isinstance(caught.value.__cause__, KeyTypeError)


async def test_union_state_is_whole_also_if_a_subtask_ended_before_the_others() -> None:
    """What a subtask that has finished had put in is not lost for those that go on."""
    seen: list[tuple[int, list[int]]] = []
    long_ones: list[int] = []

    class Together(am.ProcessFunction):
        def open(self, context: Any) -> None:
            store = context.operator_state
            self.all = store.get_union_list_state(am.ListStateDescriptor("all"))
            self.index = context.subtask_index
            seen.append((self.index, sorted(self.all.get())))

        async def process_element(self, value: Any, context: Any, out: Any) -> None:
            if self.index not in self.all.get():
                self.all.add(self.index)
            await asyncio.sleep(1 if self.index else 0.3)
            if self.index:
                long_ones.append(value)
                if len(long_ones) == 10:
                    raise RuntimeError("stumbled")
            out.collect(value)

    results: list[int] = []
    env = environment(1, parallelism=2)
    env.from_collection(list(range(40))).process(Together()).sink_to(results.append)
    async with env.start() as job:
        await job.result()
        assert job.restarts == 1
    assert set(results) == set(range(40))
    # Not only what it had put in itself.
    assert seen == [(0, []), (1, []), (1, [0, 1])]


class Opaque:
    """What only a pickle can hold."""

    def __init__(self, count: int) -> None:
        self.count = count


class CountsOpaquely(am.KeyedProcessFunction):
    """Keeps pickled state, and fails when it is told to."""

    def __init__(self, opened: asyncio.Queue[bool]) -> None:
        self.opened = opened

    def open(self, context: Any) -> None:
        self.seen = context.keyed_state.get_value(
            am.ValueStateDescriptor("seen", serializer=am.PickleSerializer())
        )
        self.opened.put_nowait(True)

    def process_element(self, value: str, context: Any, out: Any) -> None:
        if value == "fail":
            raise RuntimeError("told to")
        held = self.seen.value()
        count = 1 if held is None else held.count + 1
        self.seen.update(Opaque(count))
        out.collect(count)


def opaque_counts(
    directory: Path, inbox: Any, results: Any, opened: Any, config: Any = None
) -> Any:
    env = am.StreamExecutionEnvironment(config=config)
    env.enable_checkpointing(
        None,
        mode=AT_LEAST_ONCE,
        directory=directory,
        retention=am.Retention.ON_CANCELLATION,
    )
    env.configure(restart=am.restart.fixed_delay(3, 0.01))
    counts = env.from_source(inbox).key_by(lambda _: 0).process(CountsOpaquely(opened))
    counts.uid("counts").sink_to(results.put_nowait)
    return env


async def test_a_job_that_starts_again_trusts_the_pickles_that_it_has_written(
    tmp_path: Path,
) -> None:
    inbox: Any = am.Inbox()
    results: asyncio.Queue[int] = asyncio.Queue()
    opened: asyncio.Queue[bool] = asyncio.Queue()
    env = opaque_counts(tmp_path, inbox, results, opened)
    async with env.start("counts") as job:
        for value in ("a", "b"):
            await inbox.put(value)
        assert [await results.get(), await results.get()] == [1, 2]
        await job.trigger_checkpoint()
        await inbox.put("fail")
        await opened.get()
        await opened.get()
        await inbox.put("c")
        assert await results.get() == 3
        assert job.restarts == 1
        await job.cancel()
    # Another execution does not know who has written them.
    ended: Any = am.Inbox()
    env = opaque_counts(tmp_path, ended, results, opened)
    with pytest.raises((JobFailedError, StateError)) as caught:
        await env.execute("counts", restore_from="latest")
    message = f"{caught.value} {caught.value.__cause__}"
    assert "'seen' of operator 'counts'" in message
    assert "allow_pickled_state=True" in message
    config = am.JobConfig(allow_pickled_state=True)
    env = opaque_counts(tmp_path, ended, results, opened, config)
    async with env.start("counts", restore_from="latest") as job:
        await ended.put("d")
        # The record that came before the job was cancelled was not in a checkpoint.
        assert await results.get() == 3
        await job.cancel()
