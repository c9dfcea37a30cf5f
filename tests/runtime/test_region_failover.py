"""A part of a job that shares no data with the rest fails, and begins again alone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import CheckpointFailedError, JobFailedError, WorldError
from aiomailbox.operators.sources.source import StaticEnumerator
from aiomailbox.runtime import sources
from aiomailbox.runtime.sources import SourceCoordinator
from aiomailbox.testing import ScriptedSource

COUNT = 600


class Trials:
    """Where functions were opened, and the values that they still stumble over."""

    def __init__(self, *values: int) -> None:
        self.opened: Counter[int] = Counter()
        self.waiting = list(values)

    def __deepcopy__(self, memo: Any) -> Trials:
        return self


class Stumbles(am.ProcessFunction[int, int]):
    """Counts where it is opened; raises at some values, each time once."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials

    def open(self, context: am.RuntimeContext) -> None:
        self.trials.opened[context.subtask_index] += 1

    async def process_element(self, value: int, context: Any, out: Any) -> None:
        if value % 20 == 0:
            # The second half takes longer.
            await asyncio.sleep(0.01 if value < COUNT // 2 else 0.02)
        if value in self.trials.waiting:
            self.trials.waiting.remove(value)
            raise RuntimeError(f"stumbled over {value}")
        out.collect(value)


def environment(interval: float | None = 0.02, **settings: Any) -> Any:
    env = am.StreamExecutionEnvironment(parallelism=2)
    if interval is not None:
        env.enable_checkpointing(am.seconds(interval), **settings)
    return env.configure(restart=am.restart.fixed_delay(3, 0.01))


def halves(env: Any, trials: Trials, sink: Any, start: int = 0) -> None:
    """Two subtasks that share nothing, each with half of the numbers."""
    env.from_collection(list(range(start, COUNT))).process(Stumbles(trials)).sink_to(
        sink
    )


async def test_a_region_begins_again_and_the_other_is_never_interrupted() -> None:
    results: list[int] = []
    env = environment()
    trials = Trials(450)
    halves(env, trials, results.append)
    async with env.start() as job:
        await job.result()
    assert trials.opened == {0: 1, 1: 2}
    seen = Counter(results)
    assert set(seen) == set(range(COUNT))
    assert all(seen[value] == 1 for value in range(COUNT // 2))
    assert job.restarts == 1
    metrics = job.metrics()
    assert [task["num_task_restarts"] for task in metrics.tasks.values()] == [0, 1]


async def test_a_region_goes_on_from_the_last_checkpoint() -> None:
    results: list[int] = []
    env = environment(None)
    env.enable_checkpointing(None)
    trials = Trials(450)
    halves(env, trials, results.append)
    async with env.start() as job:
        while not any(value >= 400 for value in results):
            await asyncio.sleep(0.001)
        await job.trigger_checkpoint()
        await job.result()
    assert trials.opened == {0: 1, 1: 2}
    again = [value for value, times in Counter(results).items() if times > 1]
    assert again
    assert min(again) >= 400


async def test_without_checkpoints_a_region_begins_at_its_beginning() -> None:
    results: list[int] = []
    env = environment(None)
    trials = Trials(450)
    halves(env, trials, results.append)
    async with env.start() as job:
        await job.result()
    assert trials.opened == {0: 1, 1: 2}
    seen = Counter(results)
    assert all(seen[value] == 1 for value in range(COUNT // 2))
    assert all(seen[value] == 2 for value in range(300, 440))
    assert all(seen[value] == 1 for value in range(460, COUNT))


async def test_a_region_that_has_finished_stays_finished() -> None:
    results: list[int] = []
    env = environment(None)

    trials = Trials(590)
    halves(env, trials, results.append)
    async with env.start() as job:
        await job.result()
    assert trials.opened == {0: 1, 1: 2}


async def test_regions_fail_one_after_the_other_and_each_counts() -> None:
    results: list[int] = []
    env = environment()
    trials = Trials(100, 450, 200)
    halves(env, trials, results.append)
    async with env.start() as job:
        await job.result()
    assert sum(trials.opened.values()) == 2 + job.restarts
    assert set(results) == set(range(COUNT))


async def test_the_strategy_counts_failures_of_regions() -> None:
    env = environment()
    env.configure(restart=am.restart.fixed_delay(1, 0.01))
    trials = Trials(100, 450, 200)
    halves(env, trials, [].append)
    with pytest.raises(JobFailedError, match="stumbled over"):
        await env.execute()


async def test_a_key_by_makes_all_of_it_one_region() -> None:
    results: list[int] = []
    env = environment()
    trials = Trials(450)
    (
        env.from_collection(list(range(COUNT)))
        .process(Stumbles(trials))
        .key_by(lambda value: value % 7)
        .map(lambda value: value)
        .sink_to(results.append)
    )
    async with env.start() as job:
        await job.result()
    assert trials.opened == {0: 2, 1: 2}
    assert set(results) == set(range(COUNT))


@pytest.mark.parametrize("seed", range(4))
async def test_splits_that_readers_got_since_the_checkpoint_come_back(
    tmp_path: Path, seed: int
) -> None:
    """SEM-243: what a checkpoint has goes on with the reader, the rest to whoever asks."""
    chance = random.Random(seed)
    inputs = tmp_path / "in"
    inputs.mkdir()
    for number in range(20):
        lines = [f"{number * 50 + row}\n" for row in range(50)]
        (inputs / f"{number:02}.txt").write_text("".join(lines))
    trials = Trials(*chance.sample(range(1_000), 3))
    env = environment(chance.choice([None, 0.01, 0.05]))
    env.configure(restart=am.restart.fixed_delay(3, 0.01))
    rows = env.from_source(am.FileSource(inputs, format="text"), name="rows")
    numbers = rows.map(int).process(Stumbles(trials))
    numbers.map(str).sink_to(am.FileSink(tmp_path / "out", format="text"))
    async with env.start() as job:
        await job.result()
    assert sum(trials.opened.values()) < 2 * (1 + job.restarts) or job.restarts == 0
    found = Counter(
        int(line)
        for path in (tmp_path / "out").rglob("*.txt")
        for line in path.read_text().splitlines()
    )
    assert found == Counter(range(1_000))
    # What failed attempts had prepared is gone.
    left = [
        one for one in tmp_path.rglob("*") if "stag" in one.name or ".part" in one.name
    ]
    assert left == []


class EndlessAsked:
    """A source whose readers ask for ever, as those of a watched directory do."""

    boundedness = am.Boundedness.UNBOUNDED

    def __init__(self) -> None:
        self.given: list[tuple[int, int]] = []
        self.back: list[Any] = []

    def create_enumerator(self, context: Any, state: Any = None) -> Any:
        self.context = context
        return self

    def create_reader(self, context: Any) -> Any:
        raise AssertionError("there are no tasks here")

    def start(self) -> None: ...

    def add_reader(self, subtask_index: int) -> None: ...

    def handle_split_request(self, subtask_index: int) -> None:
        self.context.assign_splits(subtask_index, [len(self.given)])

    def add_splits_back(self, splits: list[Any], subtask_index: int) -> None:
        self.back = splits

    def snapshot(self) -> list[Any]:
        return []

    def close(self) -> None: ...


def coordinator_of(source: EndlessAsked) -> SourceCoordinator:
    item: Any = SimpleNamespace(name="asked", uid=None, source=source)
    return SourceCoordinator(
        item,
        2,
        lambda index, splits, _: source.given.extend((index, s) for s in splits),
    )


def test_a_source_keeps_a_bounded_number_of_the_splits_that_it_gave_away() -> None:
    """Without checkpoints there is none that lets it forget them."""
    source = EndlessAsked()
    coordinator = coordinator_of(source)
    for _ in range(25_000):
        coordinator.request_split(0)
        kept = sum(map(len, coordinator._assigned.values()))
        assert kept <= 10_000
    assert len(source.given) == 25_000
    assert not coordinator.can_reset(0)
    assert coordinator.can_reset(1)
    with pytest.raises(WorldError, match="subtask 0 of source 'asked' has got more"):
        coordinator.reset_reader(0, -1)


def test_a_checkpoint_lets_a_reader_restart_alone_again() -> None:
    source = EndlessAsked()
    coordinator = coordinator_of(source)
    for _ in range(10_001):
        coordinator.request_split(0)
    coordinator.snapshot(1)
    coordinator.request_split(0)
    assert not coordinator.can_reset(0)
    coordinator.on_checkpoint_complete(1)
    assert coordinator.can_reset(0)
    coordinator.reset_reader(0, 1)
    assert source.back == [10_001]


async def test_all_regions_restart_if_a_source_does_not_know_what_one_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_KEPT_SPLITS_MAX", 3)
    for number in range(20):
        lines = [f"{number * 50 + row}\n" for row in range(50)]
        (tmp_path / f"{number:02}.txt").write_text("".join(lines))
    results: list[int] = []
    trials = Trials(990)
    env = environment(None)
    env.configure(restart=am.restart.fixed_delay(1, 0.01))
    rows = env.from_source(am.FileSource(tmp_path, format="text"), name="rows")
    rows.map(int).process(Stumbles(trials)).sink_to(results.append)
    async with env.start() as job:
        await job.result()
    assert trials.opened == {0: 2, 1: 2}
    assert job.restarts == 1
    assert set(results) == set(range(1_000))


async def test_an_enumerator_that_fails_fails_all_regions() -> None:
    trials = Trials()
    failures = [RuntimeError("no more splits")]

    class Fails(StaticEnumerator[Any]):
        def handle_split_request(self, subtask_index: int) -> None:
            if failures and subtask_index == 1:
                raise failures.pop()
            super().handle_split_request(subtask_index)

    class Asking(ScriptedSource):
        def create_enumerator(self, context: Any, state: Any = None) -> Any:
            made = super().create_enumerator(context, state)
            splits = [split for _, split in made._unassigned]
            return Fails(context, splits, on_request=True)

        def create_reader(self, context: Any) -> Any:
            reader = super().create_reader(context)
            asked = reader.start

            def start() -> None:
                asked()
                context.request_split()

            reader.start = start
            finish = reader.add_splits

            def add_splits(splits: Any) -> None:
                finish(splits)
                context.request_split()

            reader.add_splits = add_splits
            return reader

    env = environment(None)
    seen: list[int] = []
    source = Asking({"a": [1, 2], "b": [3, 4]})
    env.from_source(source, name="asked").process(Stumbles(trials)).sink_to(seen.append)
    async with env.start() as job:
        await job.result()
    assert trials.opened == {0: 2, 1: 2}
    assert set(seen) == {1, 2, 3, 4}


async def test_finished_calls_are_not_made_again_for_all_regions_begin_again(
    tmp_path: Path,
) -> None:
    calls: Counter[int] = Counter()
    failing = [450]

    async def call(value: int) -> int:
        calls[value] += 1
        await asyncio.sleep(0.01)
        return value

    def stumble(value: int) -> int:
        if value in failing:
            failing.remove(value)
            raise RuntimeError("stumbled")
        return value

    env = environment(None)
    env.enable_checkpointing(am.seconds(0.05), directory=tmp_path)
    seen: list[int] = []
    (
        env.from_collection(list(range(COUNT)))
        .map_async(call, concurrency=4, journal=True, id=lambda value: str(value))
        .uid("calls")
        .map(stumble)
        .sink_to(seen.append)
    )
    async with env.start() as job:
        await job.result()
    assert job.restarts == 1
    assert set(seen) == set(range(COUNT))
    again = {value for value, times in calls.items() if times > 1}
    # A split that comes back may go to a subtask that has not read what was finished.
    assert [task["num_task_restarts"] for task in job.metrics().tasks.values()] == [
        1,
        1,
    ]
    # In flight when the job failed: at most `concurrency` of each subtask.
    assert len(again) <= 8


async def test_a_region_that_fails_while_another_waits_shares_the_rest_of_its_delay() -> (
    None
):
    loop = asyncio.get_running_loop()
    began: dict[int, list[float]] = {0: [], 1: []}
    failed: dict[int, float] = {}

    class Fails(am.ProcessFunction[int, int]):
        """Its first subtask fails after 1 s, its second one 3 s later, each once."""

        def __deepcopy__(self, memo: Any) -> Fails:
            return self

        async def process_element(self, value: int, context: Any, out: Any) -> None:
            index = 0 if value < 2 else 1
            began[index].append(loop.time())
            if index not in failed:
                await asyncio.sleep(1 + 3 * index)
                failed[index] = loop.time()
                raise RuntimeError(f"{index} fails")

    env = environment(None)
    env.configure(restart=am.restart.fixed_delay(1, 30))
    env.from_collection([0, 1, 2, 3]).process(Fails()).sink_to(lambda _: None)
    async with env.start() as job:
        await job.result()
    first, second = (began[index][1] - failed[index] for index in (0, 1))
    # Both are counted as one failure: a second one would have ended the job.
    assert first == pytest.approx(30, abs=0.5)
    assert second == pytest.approx(27, abs=0.5)
    assert job.restarts == 2


async def test_a_job_that_is_stopped_while_a_region_waits_ends_well() -> None:
    trials = Trials(450)
    results: list[int] = []
    env = environment()
    env.configure(restart=am.restart.fixed_delay(3, 10))
    halves(env, trials, results.append)
    async with env.start() as job:
        while job.state is not am.JobState.RESTARTING:
            await asyncio.sleep(0.001)
        await job.stop()
        await job.result()
    assert trials.opened == {0: 1, 1: 2}
    assert job.state is am.JobState.FINISHED


async def test_a_job_that_is_cancelled_while_a_region_waits_ends_at_once() -> None:
    trials = Trials(450)
    env = environment()
    env.configure(restart=am.restart.fixed_delay(3, 1_000))
    halves(env, trials, [].append)
    loop = asyncio.get_running_loop()
    async with env.start() as job:
        while job.state is not am.JobState.RESTARTING:
            await asyncio.sleep(0.001)
        before = loop.time()
        await job.cancel()
    assert loop.time() - before < 1
    assert job.state is am.JobState.CANCELED


async def test_checkpoints_wait_until_a_region_runs_again() -> None:
    trials = Trials(450)
    env = environment(None)
    env.enable_checkpointing(None)
    env.configure(restart=am.restart.fixed_delay(3, 5))
    halves(env, trials, [].append)
    loop = asyncio.get_running_loop()
    async with env.start() as job:
        while job.state is not am.JobState.RESTARTING:
            await asyncio.sleep(0.001)
        failed_at = loop.time()
        await job.trigger_checkpoint()
        assert loop.time() - failed_at >= 4.9
        await job.result()


async def test_a_savepoint_that_ends_the_job_and_fails_fails_all_regions(
    tmp_path: Path,
) -> None:
    trials = Trials(450)
    results: list[int] = []
    env = environment(None)
    env.enable_checkpointing(None, directory=tmp_path / "checkpoints")

    class Late(Stumbles):
        async def process_element(self, value: int, context: Any, out: Any) -> None:
            if value == 440:
                self.trials.log.set()
                await asyncio.sleep(5)
            await super().process_element(value, context, out)

    trials.log = asyncio.Event()  # type: ignore[attr-defined]
    numbers = env.from_collection(list(range(COUNT)))
    numbers.process(Late(trials)).sink_to(results.append)
    async with env.start() as job:
        await trials.log.wait()  # type: ignore[attr-defined]
        with pytest.raises(CheckpointFailedError):
            await job.stop_with_savepoint(tmp_path / "savepoint")
        await job.result()
    assert trials.opened == {0: 2, 1: 2}
    assert set(results) == set(range(COUNT))


class Told:
    """A sink that writes down what its committer is asked for."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def create_writer(self, context: Any) -> Any:
        return ToldWriter(context)

    def create_committer(self, context: Any) -> Any:
        return self

    def begin(self, *, restored: bool) -> None:
        self.log.append("begin")

    def commit(self, found: list[Any], *, checkpoint_id: int, is_final: bool) -> None:
        self.log += found

    def recover(self) -> None:
        self.log.append("recover")

    def recover_writers(self, subtasks: set[int], before: int) -> None:
        self.log.append((subtasks, before))

    def end(self, *, succeeded: bool) -> None:
        self.log.append("end")


class ToldWriter:
    def __init__(self, context: Any) -> None:
        self.name = (context.subtask_index, context.attempt)
        self.count = 0

    def write_run(self, run: Any) -> None:
        self.count += len(run)

    def flush(self, *, end_of_input: bool) -> None:
        pass

    def prepare_commit(self) -> list[Any]:
        count, self.count = self.count, 0
        return [(*self.name, count)] if count else []

    def snapshot(self) -> list[int]:
        return [self.count]

    def restore(self, state: list[int]) -> None:
        self.count += sum(state)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("interval", [None, 0.02])
async def test_committers_hear_which_writers_are_over_and_what_they_had_is_not_committed(
    interval: float | None,
) -> None:
    trials = Trials(450)
    log: list[Any] = []
    env = environment(interval)
    halves(env, trials, Told(log))
    async with env.start() as job:
        await job.result()
    assert log.count("recover") == 1
    ((_, before),) = [one for one in log if isinstance(one, tuple) and len(one) == 2]
    assert ({1}, before) in log
    committed = [one for one in log if isinstance(one, tuple) and len(one) == 3]
    # What was prepared by an attempt that is over was of a complete checkpoint.
    assert sum(count for _, _, count in committed) == COUNT
    if interval is None:
        assert {attempt for subtask, attempt, _ in committed if subtask == 1} == {
            before
        }
