"""Finished calls are not made again: the operator with its journal, step by step."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import aiomailbox as am
from aiomailbox.errors import (
    CorruptStreamError,
    FencedError,
    IllegalStateError,
    InvalidArgumentError,
    JobFailedError,
    JournalError,
    RecordIdReusedError,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.journal.job import JobJournal
from aiomailbox.journal.journals import Journals
from aiomailbox.journal.place import JournalPlace
from aiomailbox.operators.async_io.journal import ResultCodec, Rounds
from aiomailbox.operators.async_io.operator import AsyncMapOperator
from aiomailbox.operators.async_io.settings import current_call
from aiomailbox.operators.core.user_code import dead_letter, skip
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.cache import Cache
from aiomailbox.policies.retry import Retry
from aiomailbox.records.events import OutputTag

FAILED = OutputTag("failed")
ORDERS: list[dict[str, Any]] = [
    {"ordered": True},
    {"ordered": False},
    {"ordered": "key", "key": lambda value: value[0]},
]
MODES = pytest.mark.parametrize("order", ORDERS, ids=["ordered", "unordered", "key"])


class Answer(NamedTuple):
    text: str
    number: int


def own_id(value: Any) -> Any:
    return value


class Service:
    """Counts what it is asked, by the key that it is told."""

    def __init__(
        self, delay_s: float = 1.0, fails: Callable[[Any], bool] | None = None
    ):
        self.asked: Counter[str] = Counter()
        self.values: list[Any] = []
        self.keys: dict[Any, set[str]] = {}
        self.attempts: list[tuple[Any, int]] = []
        self._delay_s = delay_s
        self._fails = fails or (lambda _: False)

    async def __call__(self, value: Any) -> Answer:
        call = current_call()
        self.asked[call.idempotency_key] += 1
        self.values.append(value)
        number = len(self.values)
        self.keys.setdefault(value, set()).add(call.idempotency_key)
        self.attempts.append((value, call.attempt))
        await asyncio.sleep(self._delay_s)
        if self._fails(value):
            message = f"no {value}"
            raise ValueError(message)
        return Answer(f"answer to {value}", number)


class Attempts:
    """Starts the operator again and again, as a job would."""

    def __init__(self, drive: Any, directory: Path) -> None:
        self._drive = drive
        self._place = JournalPlace(directory)
        self.epoch = -1
        self.journal = JobJournal(self._place)

    async def start(
        self,
        service: Any,
        *,
        state: Any = None,
        oldest: int | None = None,
        subtask: tuple[int, int] = (0, 1),
        begin: bool = True,
        classes: tuple[Any, ...] = (Answer,),
        **arguments: Any,
    ) -> Any:
        index, parallelism = subtask
        if begin:
            self.epoch += 1
            self.journal.begin(self.epoch, {"enrich-1": range(parallelism)}, oldest)
        context = {
            "journals": Journals(self._place, self.epoch, classes),
            "subtask_index": index,
            "parallelism": parallelism,
            "attempt": self.epoch,
        }
        settings = {"journal": True, "id": own_id, "concurrency": 3, **arguments}
        driven = await self._drive(service, state=state, context=context, **settings)
        # Reading the journal takes a thread's time.
        while driven.operator._rows is None or not driven.context.tasks:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        return driven


@pytest.fixture
def attempts(drive: Any, tmp_path: Path) -> Attempts:
    return Attempts(drive, tmp_path)


def texts(values: list[Any]) -> list[str]:
    return [value.text for value in values]


def answers(*values: Any) -> list[str]:
    return [f"answer to {value}" for value in values]


@MODES
async def test_finished_calls_are_not_made_again_and_those_in_flight_are(
    attempts: Attempts, order: dict[str, Any]
) -> None:
    service = Service()
    driven = await attempts.start(service, **order)
    names = ["a1", "b1", "c1", "a2", "b2", "c2", "d1", "e1"]
    driven.send(names)
    await asyncio.sleep(1.5)
    finished, in_flight = service.values[:3], set(service.values[3:])
    assert len(service.values) == 6
    # No checkpoint was taken: the next attempt begins anew.
    await driven.close()
    again = await attempts.start(service, **order)
    again.send(names)
    results = await again.finish()
    assert sorted(texts(results)) == sorted(answers(*names))
    if order["ordered"] is True:
        assert texts(results) == answers(*names)
    repeated = {value for value in names if service.values.count(value) > 1}
    assert repeated == in_flight
    # The same call has the same key, and another one has another.
    assert all(len(keys) == 1 for keys in service.keys.values())
    assert len(service.asked) == len(names)
    # What was found is what the service answered then.
    then = {result.text: result.number for result in results}
    assert [then[text] for text in answers(*finished)] == [1, 2, 3]
    assert again.metrics["calls_found"] == 3


@MODES
async def test_calls_in_flight_are_in_the_snapshot_with_their_attempts(
    attempts: Attempts, order: dict[str, Any]
) -> None:
    """One row failed twice and waits, one is being called, one has not begun."""
    service = Service(fails=lambda value: value == "a")
    retry = Retry(attempts=4, initial=2.0, multiplier=1.0, jitter=0)
    arguments = {**order, "retry": retry, "on_error": dead_letter(FAILED)}
    driven = await attempts.start(service, concurrency=1, **arguments)
    driven.send(["a"])
    await asyncio.sleep(4.5)
    driven.send(["b", "c"])
    await asyncio.sleep(0.1)
    assert service.attempts == [("a", 1), ("a", 2), ("b", 1)]
    driven.operator.prepare_snapshot_pre_barrier(1)
    state = driven.operator.snapshot()
    await driven.close()
    del service.attempts[:]
    again = await attempts.start(
        service, concurrency=1, state=state, oldest=1, **arguments
    )
    results = await again.finish()
    assert texts(results) == answers("b", "c")
    assert [one for one in service.attempts if one[0] == "a"] == [("a", 3), ("a", 4)]
    (letter,) = again.output.sides[FAILED]
    assert letter.value.attempts == 4
    assert len(service.keys["a"]) == 1


async def test_a_batch_gives_no_row_fewer_attempts_than_it_may_have(
    attempts: Attempts,
) -> None:
    seen: list[tuple[list[str], int]] = []

    async def ask(values: list[str]) -> list[str]:
        seen.append((values, current_call().attempt))
        with pytest.raises(IllegalStateError, match="use idempotency_keys"):
            _ = current_call().idempotency_key
        assert len(set(current_call().idempotency_keys)) == len(values)
        await asyncio.sleep(1)
        message = "not now"
        raise ValueError(message)

    retry = Retry(attempts=3, initial=1.0, multiplier=1.0, jitter=0)
    arguments = {"batch": Batch(2, 0.1), "retry": retry, "on_error": skip}
    driven = await attempts.start(ask, **arguments)
    driven.send(["a", "b"])
    await asyncio.sleep(1.5)
    driven.send(["c", "d"])
    await asyncio.sleep(0.2)
    state = driven.operator.snapshot()
    await driven.close()
    del seen[:]
    again = await attempts.start(ask, state=state, **arguments)
    assert await again.finish() == []
    assert sorted(number for values, number in seen if values == ["a", "b"]) == [2, 3]
    assert sorted(number for values, number in seen if values == ["c", "d"]) == [
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("policy", [dead_letter(FAILED), skip], ids=["letter", "skip"])
async def test_failures_that_are_final_are_final(
    attempts: Attempts, policy: Any
) -> None:
    service = Service(fails=lambda value: value == "bad")
    driven = await attempts.start(service, on_error=policy)
    driven.send(["bad", "good"])
    await asyncio.sleep(2)
    assert texts(driven.values) == answers("good")
    await driven.close()
    again = await attempts.start(service, on_error=policy)
    again.send(["bad", "good", "new"])
    assert texts(await again.finish()) == answers("good", "new")
    assert sorted(service.values) == ["bad", "good", "new"]
    if policy is skip:
        ((_, _, facts),) = [
            entry for entry in again.context.log.entries if "skipped" in str(entry)
        ]
        assert "no bad" in str(facts)
    else:
        ((before,), (after,)) = (one.output.sides[FAILED] for one in (driven, again))
        assert after.value == before.value
        assert after.value.error_type == "ValueError"
        assert "raise ValueError" in after.value.traceback


async def test_an_error_that_answers_the_end_of_the_job_is_no_outcome(
    attempts: Attempts,
) -> None:
    """It says nothing of the record, whose call may well succeed the next time."""

    async def rolls_back(value: Any) -> Answer:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise ValueError("no rollback") from None
        return Answer(f"answer to {value}", 0)

    driven = await attempts.start(rolls_back, on_error=dead_letter(FAILED))
    driven.send(["a"])
    await asyncio.sleep(2)
    await driven.close()
    assert "no rollback" in str(driven.context.log.entries)
    service = Service()
    again = await attempts.start(service, on_error=dead_letter(FAILED))
    again.send(["a"])
    assert texts(await again.finish()) == answers("a")
    assert FAILED not in again.output.sides


@pytest.mark.parametrize(
    "answer",
    [lambda values: [ValueError(value) for value in values], lambda _: []],
    ids=["errors", "too few"],
)
async def test_a_batch_that_answers_the_end_of_the_job_with_errors_is_called_again(
    attempts: Attempts, answer: Any
) -> None:
    async def answers_its_end(values: list[Any]) -> list[Any]:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return answer(values)
        return values

    async def at_once(values: list[Any]) -> list[Any]:
        return values

    batch = Batch(2, within=0)
    driven = await attempts.start(answers_its_end, batch=batch, on_error=skip)
    driven.send(["a", "b"])
    await asyncio.sleep(2)
    await driven.close()
    assert "call failed while closing" in str(driven.context.log.entries)
    again = await attempts.start(at_once, batch=batch, on_error=skip)
    again.send(["a", "b"])
    assert await again.finish() == ["a", "b"]
    assert again.metrics["calls_found"] == 0


async def test_a_failure_that_fails_the_job_is_no_outcome(attempts: Attempts) -> None:
    """A job is started again in order to try again."""
    broken = [True]
    service = Service(fails=lambda _: broken[0])
    driven = await attempts.start(service)
    driven.send(["a"])
    with pytest.raises(UserFunctionError, match="no a"):
        await asyncio.wait_for(driven.runner, 10)
    await driven.close()
    broken[0] = False
    again = await attempts.start(service)
    again.send(["a"])
    assert texts(await again.finish()) == answers("a")
    assert service.values == ["a", "a"]


async def test_another_subtask_finds_what_one_has_finished(attempts: Attempts) -> None:
    service = Service()
    first = await attempts.start(service, subtask=(0, 2))
    second = await attempts.start(service, subtask=(1, 2), begin=False)
    first.send(["a", "b"])
    second.send(["c", "d"])
    await asyncio.sleep(2)
    await first.close()
    await second.close()
    alone = await attempts.start(service)
    alone.send(["d", "a", "c", "b", "e"])
    assert texts(await alone.finish()) == answers("d", "a", "c", "b", "e")
    assert sorted(service.values) == ["a", "b", "c", "d", "e"]


async def test_the_same_id_with_other_content_is_an_error(attempts: Attempts) -> None:
    service = Service()
    by_first = {"id": lambda value: value[0]}
    for together in (True, False):
        driven = await attempts.start(service, **by_first)
        driven.send(["a1", "a2"] if together else ["a1"])
        if not together:
            await asyncio.sleep(2)
            driven.send(["a2"])
        with pytest.raises(RecordIdReusedError) as caught:
            await asyncio.wait_for(driven.runner, 10)
        assert (
            "operator 'enrich' (uid 'enrich-1'): two records with the id 'a' "
            in str(caught.value)
        )
        assert (caught.value.operator, caught.value.uid) == ("enrich", "enrich-1")
        assert caught.value.record == "'a2'"
        assert caught.value.__cause__ is None
        notes = getattr(caught.value, "__notes__", [])
        assert ("the other record: 'a1'" in notes) is together
        # A job's error names the operator once.
        assert "in operator" not in str(JobFailedError("j", caught.value))
        await driven.close()
    # Also when the first one was finished in an earlier attempt.
    driven = await attempts.start(service, **by_first)
    driven.send(["a3"])
    with pytest.raises(RecordIdReusedError):
        await asyncio.wait_for(driven.runner, 10)
    assert "a2" not in service.values
    assert "a3" not in service.values


@MODES
async def test_the_same_record_again_is_one_call(
    attempts: Attempts, order: dict[str, Any]
) -> None:
    service = Service()
    driven = await attempts.start(service, **order)
    driven.send(["a", "a", "b"])
    await asyncio.sleep(2)
    driven.send(["a"])
    assert sorted(texts(await driven.finish())) == answers("a", "a", "a", "b")
    assert service.values == ["a", "b"]


async def test_a_result_leaves_only_when_it_is_durable(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service()
    driven = await attempts.start(service)
    journal = driven.operator._rows.journal._journal
    may_sync, sync = asyncio.Event(), journal.sync

    async def slow() -> None:
        await may_sync.wait()
        await sync()

    monkeypatch.setattr(journal, "sync", slow)
    assert driven.metrics["waiting_for_journal"] == 0
    driven.send(["a", "b", "c", "d"])
    await asyncio.sleep(5)
    assert driven.values == []
    # Finished calls hold no slot.
    assert service.values == ["a", "b", "c", "d"]
    # The thread is at three of them, and one came meanwhile.
    assert driven.metrics["waiting_for_journal"] == 4
    assert driven.metrics["journalled"] == 4
    may_sync.set()
    assert texts(await driven.finish()) == answers("a", "b", "c", "d")
    assert driven.metrics["waiting_for_journal"] == 0


@pytest.mark.parametrize("fails", [True, False])
async def test_the_next_row_of_a_key_is_called_before_the_result_is_durable(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """An outcome that the journal has is the key's turn, whatever the disk does."""
    service = Service(fails=lambda value: fails and value == "a1")
    driven = await attempts.start(service, **ORDERS[2], on_error=skip)
    journal = driven.operator._rows.journal._journal
    may_sync, sync = asyncio.Event(), journal.sync

    async def slow() -> None:
        await may_sync.wait()
        await sync()

    monkeypatch.setattr(journal, "sync", slow)
    driven.send(["a1", "a2"])
    await asyncio.sleep(1.5)
    assert service.values == ["a1", "a2"]
    # It has its attempts once: a checkpoint now has no row without an id to trip over.
    driven.send(["a3"])
    await asyncio.sleep(0.1)
    driven.operator.prepare_snapshot_pre_barrier(1)
    may_sync.set()
    expected = answers("a2", "a3") if fails else answers("a1", "a2", "a3")
    assert texts(await driven.finish()) == expected
    assert service.values == ["a1", "a2", "a3"]


@pytest.mark.parametrize(
    ("bounds", "waiting"),
    [((2, 8), 5), ((3, 3), 2), ((1, 1), 0)],
    ids=["more-places-than-slots", "as-many", "one"],
)
async def test_results_share_a_commit_until_calls_would_wait_for_it(
    attempts: Attempts, bounds: tuple[int, int], waiting: int
) -> None:
    concurrency, capacity = bounds
    driven = await attempts.start(
        Service(0.1), concurrency=concurrency, capacity=capacity
    )
    driven.operator._rows.journal._commits.pause_s = 100
    # The first one of all waits for nobody.
    driven.send(["first"])
    await asyncio.sleep(1)
    assert texts(driven.values) == answers("first")
    names = [f"order {number}" for number in range(waiting + 1)]
    driven.send(names[:-1])
    await asyncio.sleep(50)
    assert driven.metrics["waiting_for_journal"] == waiting
    assert texts(driven.values) == answers("first")
    driven.send(names[-1:])
    await asyncio.sleep(1)
    assert texts(driven.values) == answers("first", *names)


@pytest.mark.parametrize(("arrived", "more"), [(1, 3), (2, 0)])
async def test_the_more_results_come_during_a_commit_the_sooner_is_the_next_one(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch, arrived: int, more: int
) -> None:
    """As many may come again, before there is no room: here for six."""
    driven = await attempts.start(Service(0.1), concurrency=2, capacity=8)
    rows = driven.operator._rows.journal
    rows._commits.pause_s = 100
    may_sync, sync = asyncio.Event(), rows._journal.sync

    async def slow() -> None:
        await may_sync.wait()
        await sync()

    monkeypatch.setattr(rows._journal, "sync", slow)
    driven.send(["first"])
    await asyncio.sleep(1)
    names = [f"order {number}" for number in range(arrived + more)]
    driven.send(names[:arrived])
    await asyncio.sleep(1)
    may_sync.set()
    await asyncio.sleep(1)
    for number in range(more):
        assert texts(driven.values) == answers("first")
        driven.send([names[arrived + number]])
        await asyncio.sleep(10)
    assert texts(driven.values) == answers("first", *names)


async def test_a_commit_waits_as_long_as_suits_the_place(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = 0

    async def sync() -> None:
        nonlocal commits
        commits += 1

    monkeypatch.setattr(JournalPlace, "commit_pause_s", 10.0)
    driven = await attempts.start(Service(1), concurrency=1, capacity=100)
    monkeypatch.setattr(driven.operator._rows.journal._journal, "sync", sync)
    driven.send([f"order {number}" for number in range(25)])
    assert len(await driven.finish()) == 25
    # At 1, 11, 21 and 31 s.
    assert commits == 4


async def test_rounds_are_one_at_a_time_and_as_often_as_they_are_asked_for() -> None:
    begun: list[float] = []

    async def work() -> None:
        begun.append(round(loop.time() - start_s, 3))
        await asyncio.sleep(work_s)

    loop, work_s = asyncio.get_running_loop(), 1.0
    rounds = Rounds(work)
    rounds.pause_s = 10
    running = asyncio.create_task(rounds.run())
    await asyncio.sleep(5)
    start_s = loop.time()
    assert begun == []
    rounds.request()
    rounds.request()
    await asyncio.sleep(0.5)
    assert begun == [0]
    # In the middle of one: the next begins when the pause is over, however often it is
    # asked for.
    rounds.request()
    await asyncio.sleep(8)
    rounds.request()
    await asyncio.sleep(1)
    assert begun == [0]
    await asyncio.sleep(5.5)
    assert begun == [0, 10]
    # An urgent one begins at once, and the one after it does not.
    rounds.request(is_urgent=True)
    await asyncio.sleep(2)
    assert begun == [0, 10, 15]
    rounds.request()
    await asyncio.sleep(3)
    assert begun == [0, 10, 15]
    rounds.request(is_urgent=True)
    await asyncio.sleep(100)
    assert begun == [0, 10, 15, 20]
    running.cancel()
    # Without a pause one begins as soon as it is asked for.
    rounds = Rounds(work)
    running = asyncio.create_task(rounds.run())
    del begun[:]
    start_s, work_s = loop.time(), 0.25
    for _ in range(3):
        rounds.request()
        await asyncio.sleep(0.1)
    await asyncio.sleep(3)
    assert begun == [0, 0.25]
    running.cancel()


async def test_no_more_calls_are_made_than_the_capacity_before_results_are_durable(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a crash repeats no more of them, however long an upload takes."""
    service = Service()
    driven = await attempts.start(service, capacity=6)
    journal = driven.operator._rows.journal._journal
    may_sync, sync = asyncio.Event(), journal.sync

    async def slow() -> None:
        await may_sync.wait()
        await sync()

    monkeypatch.setattr(journal, "sync", slow)
    names = [f"order {number}" for number in range(20)]
    driven.send(names)
    await asyncio.sleep(100)
    assert service.values == names[:6]
    may_sync.set()
    assert texts(await driven.finish()) == answers(*names)


async def test_results_of_a_stopped_attempt_do_not_leave(attempts: Attempts) -> None:
    service = Service()
    old = await attempts.start(service)
    old.send(["a"])
    await asyncio.sleep(0.5)
    new = await attempts.start(service)
    new.send(["a"])
    with pytest.raises(JournalError) as caught:
        await asyncio.wait_for(old.runner, 10)
    assert isinstance(caught.value.__cause__, FencedError)
    assert old.values == []
    assert texts(await new.finish()) == answers("a")


async def test_a_full_disk_fails_the_task_and_loses_nothing(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service()
    driven = await attempts.start(service, ordered="key", key=len)
    log = driven.operator._rows.journal._journal._log

    def full(_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    driven.send(["a"])
    await asyncio.sleep(2)
    monkeypatch.setattr(log, "append_one", full)
    # Nor does what is not kept let the next row of its key begin.
    driven.send(["b", "c"])
    with pytest.raises(JournalError) as caught:
        await asyncio.wait_for(driven.runner, 10)
    assert "journal of operator 'enrich' (uid 'enrich-1')" in str(caught.value)
    assert "No space left" in str(caught.value)
    assert "a result that was kept" not in str(caught.value)
    held = driven.operator.snapshot().own.elements("held-records")
    assert [row[0] for row in held] == ["b", "c"]
    assert texts(driven.values) == answers("a")
    await driven.close()
    again = await attempts.start(service)
    again.send(["a", "b"])
    assert texts(await again.finish()) == answers("a", "b")
    assert service.values == ["a", "b", "b"]


async def test_what_a_checkpoint_holds_outlives_pruning(attempts: Attempts) -> None:
    """The first row hangs, so those behind it are finished and have not left."""
    hangs = asyncio.Event()

    class Hanging(Service):
        async def __call__(self, value: Any) -> Answer:
            if value == "slow":
                self.values.append(value)
                await hangs.wait()
            return await super().__call__(value)

    service = Hanging(0.1)
    driven = await attempts.start(service)
    driven.send(["early"])
    await asyncio.sleep(1)
    driven.send(["slow", "x", "y"])
    await asyncio.sleep(1)
    driven.operator.prepare_snapshot_pre_barrier(1)
    state = driven.operator.snapshot()
    driven.send(["z"])
    await asyncio.sleep(1)
    driven.operator.prepare_snapshot_pre_barrier(2)
    attempts.journal.prune(1)
    await driven.close()
    hangs.set()
    again = await attempts.start(service, state=state, oldest=1)
    again.send(["z", "w"])
    expected = answers("slow", "x", "y", "z", "w")
    assert texts(await again.finish()) == expected
    counts = Counter(service.values)
    assert [counts[name] for name in ("early", "x", "y", "z", "w")] == [1] * 5


@pytest.mark.parametrize("found", [True, False])
async def test_what_no_checkpoint_holds_is_pruned_and_called_again(
    attempts: Attempts, found: bool
) -> None:
    """Its source is behind it: nobody asks for it again, unless a record is repeated."""
    service = Service(0.1)
    driven = await attempts.start(service)
    if found:
        driven.send(["early"])
        await asyncio.sleep(1)
        await driven.close()
        driven = await attempts.start(service)
    driven.send(["early"])
    await asyncio.sleep(1)
    driven.operator.prepare_snapshot_pre_barrier(1)
    driven.send(["late"])
    await asyncio.sleep(1)
    attempts.journal.prune(1)
    if found:
        await driven.close()
        driven = await attempts.start(service, oldest=1)
    driven.send(["early", "late"])
    assert texts(await driven.finish())[-2:] == answers("early", "late")
    assert service.values == ["early", "late", "early"]


@pytest.mark.parametrize("found", [True, False])
async def test_a_checkpoint_holds_finished_calls_of_all_before_it(
    attempts: Attempts, found: bool
) -> None:
    """Of rows in all orders, also of those that were found finished."""
    hangs = asyncio.Event()

    class Hanging(Service):
        async def __call__(self, value: Any) -> Answer:
            if value == "slow":
                await hangs.wait()
            return await super().__call__(value)

    service = Hanging(0.1)
    driven = await attempts.start(service)
    if found:
        driven.send(["x"])
        await asyncio.sleep(1)
        await driven.close()
        driven = await attempts.start(service)
    driven.send(["slow", "x"])
    await asyncio.sleep(1)
    driven.operator.prepare_snapshot_pre_barrier(1)
    driven.send(["y"])
    await asyncio.sleep(1)
    driven.operator.prepare_snapshot_pre_barrier(2)
    state = driven.operator.snapshot()
    attempts.journal.prune(2)
    await driven.close()
    hangs.set()
    again = await attempts.start(service, state=state, oldest=2)
    assert texts(await again.finish()) == answers("slow", "x", "y")
    counts = Counter(service.values)
    assert [counts[name] for name in ("x", "y")] == [1, 1]


async def test_a_failure_is_no_outcome_any_more_when_failures_end_the_job(
    attempts: Attempts,
) -> None:
    broken = [True]
    service = Service(fails=lambda _: broken[0])
    driven = await attempts.start(service, on_error=skip)
    driven.send(["a"])
    await asyncio.sleep(2)
    await driven.close()
    broken[0] = False
    again = await attempts.start(service)
    again.send(["a"])
    assert texts(await again.finish()) == answers("a")
    assert service.values == ["a", "a"]
    assert again.metrics["calls_found"] == 0


def full(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_journal_that_fails_names_the_operator_and_lets_nothing_leave(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full_disk() -> None:
        full()

    service = Service()
    driven = await attempts.start(service)
    journal = driven.operator._rows.journal._journal
    monkeypatch.setattr(journal._log, "roll", full)
    driven.send(["a"])
    await asyncio.sleep(2)
    with pytest.raises(JournalError, match="operator 'enrich'") as caught:
        driven.operator.prepare_snapshot_pre_barrier(1)
    assert isinstance(caught.value.__cause__, OSError)
    monkeypatch.setattr(journal, "sync", full_disk)
    driven.send(["b"])
    with pytest.raises(JournalError, match="operator 'enrich'") as caught:
        await asyncio.wait_for(driven.runner, 10)
    assert isinstance(caught.value.__cause__, OSError)
    assert texts(driven.values) == answers("a")


async def test_a_journal_that_cannot_be_opened_names_the_operator(
    drive: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    journals = Journals(JournalPlace(tmp_path / "file"), 0, [Answer])
    driven = await drive(
        Service(), journal=True, id=own_id, context={"journals": journals}
    )
    with pytest.raises(JournalError, match="operator 'enrich'") as caught:
        await asyncio.wait_for(driven.runner, 10)
    assert isinstance(caught.value.__cause__, OSError)
    # It is closed all the same, though nothing of it was begun.
    await driven.close()


async def test_a_journal_that_fails_while_the_operator_closes_is_told_of(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stubborn(value: str) -> Answer:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
        return Answer(value, 1)

    driven = await attempts.start(stubborn)
    monkeypatch.setattr(driven.operator._rows.journal._journal._log, "append_one", full)
    driven.send(["a"])
    await asyncio.sleep(1)
    await driven.close()
    driven.context.repeated.flush()
    ((_, event, more),) = driven.context.log.entries
    assert event == "journal failed while closing"
    assert (more["count"], "No space left" in str(more)) == (1, True)


async def test_a_closed_operator_has_no_file_open(
    attempts: Attempts, tmp_path: Path
) -> None:
    def opened() -> list[str]:
        links = []
        for one in os.listdir("/proc/self/fd"):
            # That of the listing itself is gone.
            with contextlib.suppress(FileNotFoundError):
                links.append(os.readlink(f"/proc/self/fd/{one}"))
        return [link for link in links if link.startswith(str(tmp_path))]

    driven = await attempts.start(Service())
    driven.send(["a"])
    await driven.finish()
    assert opened()
    await driven.close()
    assert opened() == []


async def test_a_result_of_a_class_that_is_gone_is_named(attempts: Attempts) -> None:
    driven = await attempts.start(Service())
    driven.send(["a"])
    await driven.finish()
    await driven.close()
    again = await attempts.start(Service(), classes=())
    again.send(["a"])
    with pytest.raises(JournalError, match="a result that was kept: "):
        await asyncio.wait_for(again.runner, 10)


@pytest.mark.parametrize("payload", [b"", b"abc", b"\x02\0\0\0\xc1\xc1", b"\0\0\0\0"])
def test_bytes_that_are_no_result_are_refused(payload: bytes) -> None:
    with pytest.raises(CorruptStreamError):
        ResultCodec("ask").decode(payload)


async def test_a_row_from_the_cache_is_finished_too(attempts: Attempts) -> None:
    service = Service()
    cache = Cache(lambda value: value[0])
    driven = await attempts.start(service, cache=cache)
    driven.send(["a1", "a2"])
    await asyncio.sleep(2)
    driven.send(["a3"])
    await asyncio.sleep(1)
    assert texts(driven.values) == answers("a1", "a1", "a1")
    await driven.close()
    again = await attempts.start(service, cache=cache)
    again.send(["a3", "a2"])
    assert texts(await again.finish()) == answers("a1", "a1")
    assert service.values == ["a1"]


async def test_a_result_that_has_no_bytes_is_named(attempts: Attempts) -> None:
    asked = []

    async def ask(value: str) -> object:
        asked.append(value)
        return object()

    one_key = {"ordered": "key", "key": len}
    driven = await attempts.start(ask, **one_key)
    driven.send(["a", "b"])
    with pytest.raises(JournalError) as caught:
        await asyncio.wait_for(driven.runner, 10)
    # Nor does it let the next row of its key begin.
    assert asked == ["a"]
    text = str(caught.value)
    assert "operator 'enrich' (uid 'enrich-1'): the result for the id 'a'" in text


async def test_a_record_without_an_id_is_a_record_that_fails(
    attempts: Attempts,
) -> None:
    service = Service()
    driven = await attempts.start(
        service, id=lambda value: value or None, on_error=dead_letter(FAILED)
    )
    driven.send(["a", ""])
    assert texts(await driven.finish()) == answers("a")
    (letter,) = driven.output.sides[FAILED]
    assert "None is a NoneType" in letter.value.error
    assert letter.value.attempts == 1


async def test_records_that_no_codec_knows_by_order_have_a_fingerprint(
    attempts: Attempts,
) -> None:
    async def ask(value: Any) -> int:
        return len(value)

    driven = await attempts.start(ask, id=lambda value: value["id"])
    driven.send([{"id": 1, 2: {"x", "y"}, "big": 2**80, "c": complex(1, 2)}])
    await asyncio.sleep(1)
    await driven.close()
    again = await attempts.start(ask, id=lambda value: value["id"])
    again.send([{"c": complex(1, 2), "big": 2**80, 2: {"y", "x"}, "id": 1}])
    assert await again.finish() == [4]
    assert again.metrics["calls"] == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"journal": True}, InvalidArgumentError, "there is no id="),
        ({"journal": 1, "id": "name"}, WrongTypeError, "journal=True"),
        ({"journal": True, "id": 7}, WrongTypeError, "id"),
    ],
)
def test_what_cannot_be_journalled_is_refused_where_it_is_written(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    async def ask(value: Any) -> Any:
        return value

    with pytest.raises(error, match=message):
        AsyncMapOperator(ask, concurrency=1, **arguments)
    with pytest.raises(error, match=message):
        stream = am.StreamExecutionEnvironment().from_collection([1])
        stream.map_async(ask, **arguments)


def test_there_is_no_call_outside_of_calls() -> None:
    with pytest.raises(IllegalStateError, match="has id="):
        current_call()


async def test_a_key_is_another_one_in_another_operator_or_job(drive: Any) -> None:
    keys = []

    async def ask(_: str) -> None:
        keys.append(current_call().idempotency_key)

    for change in ({}, {"operator_id": "other"}, {"job_id": "other"}, {}):
        driven = await drive(ask, id=own_id)
        for name, value in change.items():
            setattr(driven.context, name, value)
        driven.operator.open()
        driven.send(["a"])
        await driven.finish()
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3
