"""Asking a running job, putting into it, and reading from it while it runs."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.connectors.inbox import Questions


class Total(am.KeyedProcessFunction[str, Any, Any]):
    """Adds up what each user asks, and answers with the sum."""

    def open(self, context: Any) -> None:
        descriptor = am.ValueStateDescriptor("total", int)
        self.total = context.keyed_state.get_value(descriptor)

    def process_element(self, question: Any, context: Any, out: Any) -> None:
        total = (self.total.value() or 0) + question.value[1]
        self.total.update(total)
        out.collect(question.answer(total))


def totals(env: am.StreamExecutionEnvironment, size: int = 1024) -> None:
    questions = env.from_questions(size=size)
    keyed = questions.key_by(lambda question: question.value[0])
    keyed.process(Total()).name("totals").sink_to(am.Answers())


async def test_each_question_gets_its_own_answer_and_state_is_kept() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    totals(env)
    async with env.start() as job:
        answers = await asyncio.gather(
            *(job.ask((f"user {n % 5}", n)) for n in range(200))
        )
        for user in range(5):
            assert await job.ask((f"user {user}", 0)) == sum(range(user, 200, 5))
    assert len(answers) == 200


async def hang(question: Any) -> Any:
    await asyncio.sleep(100 if question.value == "late" else 0)
    return question.answer(question.value)


async def test_a_late_answer_is_a_timeout_and_is_dropped() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_questions().map_async(hang, ordered=False).sink_to(am.Answers())
    async with env.start() as job:
        with pytest.raises(am.AsyncTimeoutError, match="within 5 s"):
            await job.ask("late", timeout=5)
        assert await job.ask("soon", timeout=5) == "soon"
        await asyncio.sleep(200)
        assert await job.ask("again") == "again"


async def test_a_cancelled_question_is_forgotten() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_questions()
    stream.map_async(hang, ordered=False).sink_to(am.Answers())
    async with env.start() as job:
        asking = asyncio.get_running_loop().create_task(job.ask("late"))
        await asyncio.sleep(1)
        questions = job._questions[0]
        assert questions.open_count == 1
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert questions.open_count == 0


async def test_open_questions_are_bounded() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_questions(size=3).map_async(hang, ordered=False).sink_to(am.Answers())
    async with env.start() as job:
        loop = asyncio.get_running_loop()
        asking = [loop.create_task(job.ask("late")) for _ in range(10)]
        await asyncio.sleep(1)
        assert job._questions[0].open_count == 3
        with pytest.raises(am.AsyncTimeoutError):
            await job.ask("soon", timeout=10)
        assert await asyncio.gather(*asking) == ["late"] * 10


async def test_a_job_that_fails_fails_who_asks() -> None:
    def answer(question: Any) -> Any:
        return question.answer(1 / question.value)

    env = am.StreamExecutionEnvironment()
    env.from_questions().map(answer).sink_to(am.Answers())
    with pytest.raises(am.JobFailedError):
        async with env.start(on_failure="log") as job:
            assert await job.ask(4) == 0.25
            with pytest.raises(am.JobFailedError, match="ZeroDivisionError"):
                await job.ask(0)
            with pytest.raises(am.JobFailedError):
                await job.ask(1)


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_job_that_starts_again_is_asked_again_what_it_has_not_answered(
    ordered: bool,
) -> None:
    asked: list[int] = []

    async def answer(question: Any) -> Any:
        asked.append(question.value)
        await asyncio.sleep(1)
        if question.value == 3 and asked.count(3) == 1:
            raise ConnectionError("once")
        return question.answer(-question.value)

    restart = am.restart.fixed_delay(1, 5.0)
    env = am.StreamExecutionEnvironment(config=am.JobConfig(restart=restart))
    stream = env.from_questions(size=4).map_async(
        answer, concurrency=2, ordered=ordered
    )
    stream.sink_to(am.Answers())
    async with env.start() as job:
        async with asyncio.timeout(100):
            answers = await asyncio.gather(*(job.ask(number) for number in range(10)))
            late = asyncio.get_running_loop().create_task(job.ask(99, timeout=50))
            assert await late == -99
        assert job.restarts == 1
        assert job._questions[0].open_count == 0
    assert answers == [-number for number in range(10)]
    assert asked.count(3) == 2


async def test_a_question_that_was_given_up_is_not_asked_again() -> None:
    asked: list[str] = []

    async def answer(question: Any) -> Any:
        asked.append(question.value)
        await asyncio.sleep(5)
        if question.value == "fails" and asked.count("fails") == 1:
            raise ConnectionError("once")
        return question.answer(question.value)

    restart = am.restart.fixed_delay(1, 1.0)
    env = am.StreamExecutionEnvironment(config=am.JobConfig(restart=restart))
    env.from_questions().map_async(answer, concurrency=4).sink_to(am.Answers())
    async with env.start() as job:
        fails = asyncio.get_running_loop().create_task(job.ask("fails"))
        with pytest.raises(am.AsyncTimeoutError):
            await job.ask("forgotten", timeout=2)
        assert await fails == "fails"
    assert asked.count("forgotten") == 1


async def test_a_job_that_has_ended_answers_nobody() -> None:
    env = am.StreamExecutionEnvironment()
    totals(env)
    async with env.start() as job:
        assert await job.ask(("a", 1)) == 1
        await job.stop()
        with pytest.raises(am.IllegalStateError, match="job has ended"):
            await job.ask(("a", 1))


async def test_a_job_without_questions_says_how_to_take_some() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_collection([1]).sink_to(lambda one: None)
    async with env.start() as job:
        with pytest.raises(am.UsageError, match="from_questions"):
            await job.ask(1)


async def test_what_is_no_answer_is_refused() -> None:
    env = am.StreamExecutionEnvironment()
    env.from_questions().map(lambda question: question.value).sink_to(am.Answers())
    with pytest.raises(am.JobFailedError, match=r"question\.answer"):
        async with env.start() as job:
            await job.ask(1)


@pytest.mark.real_time
@pytest.mark.timeout(180)
async def test_workers_answer_too() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    totals(env)
    async with env.start(deployment=am.Processes(2)) as job:
        answers = await asyncio.gather(*(job.ask((f"u{n % 3}", 1)) for n in range(30)))
    assert sorted(answers) == sorted([*range(1, 11)] * 3)


async def test_who_puts_into_a_full_inbox_waits_for_room() -> None:
    inbox: am.Inbox[int] = am.Inbox(size=2)
    seen: list[int] = []

    async def slow(number: int) -> None:
        await asyncio.sleep(1)
        seen.append(number)

    env = am.StreamExecutionEnvironment()
    env.from_source(inbox, name="inbox").sink_to(slow)
    async with env.start() as job:
        async with asyncio.timeout(100):
            for number in range(50):
                await inbox.put(number)
        # A few are in the pipeline, and two wait.
        assert len(inbox) <= 2
        assert len(seen) > 30
        inbox.close()
        await job.result()
        with pytest.raises(am.IllegalStateError, match="closed"):
            await inbox.put(1)
    assert seen == list(range(50))
    with pytest.raises(am.InvalidArgumentError, match="size"):
        am.Inbox(size=0)


async def test_an_inbox_takes_records_while_its_job_waits_for_a_restart() -> None:
    inbox: am.Inbox[int] = am.Inbox(size=10)
    seen: list[int] = []
    stumbles = [0]

    def stumble(number: int) -> int:
        if number in stumbles:
            stumbles.clear()
            raise ConnectionError("the network is gone")
        return number

    env = am.StreamExecutionEnvironment()
    env.configure(restart=am.restart.fixed_delay(1, 60))
    env.from_source(inbox).map(stumble).sink_to(seen.append)
    async with env.start() as job:
        await inbox.put(0)
        await asyncio.sleep(1)
        assert job.state is am.JobState.RESTARTING
        await inbox.put(1)
        assert inbox.try_put(2)
        inbox.close()
        await job.result()
        assert job.restarts == 1
    assert seen == [1, 2]


async def test_a_dead_letter_can_answer_its_question() -> None:
    async def divide(question: am.Question[int]) -> am.Answer[float]:
        return question.answer(6 / question.value)

    env = am.StreamExecutionEnvironment()
    failed = am.OutputTag("failed")
    divided = env.from_questions().map_async(divide, on_error=am.dead_letter(failed))
    divided.sink_to(am.Answers())
    divided.get_side_output(failed).map(
        lambda letter: letter.record.answer(letter.error_type)
    ).sink_to(am.Answers())
    async with env.start() as job:
        assert await job.ask(2) == 3
        assert await job.ask(0, timeout=5) == "ZeroDivisionError"
        await job.stop()


@pytest.mark.parametrize("drain", [True, False])
async def test_a_stop_finishes_what_was_put_into_the_inbox_before(drain: bool) -> None:
    """Whoever put it in was told that it was taken."""
    inbox: am.Inbox[int] = am.Inbox(size=5_000)
    env = am.StreamExecutionEnvironment()
    seen: list[int] = []

    async def slow(number: int) -> int:
        await asyncio.sleep(0.01)
        return number

    env.from_source(inbox).map(slow).sink_to(seen.append)
    async with env.start() as job:
        for number in range(3_000):
            await inbox.put(number)
        await asyncio.sleep(0.05)
        await job.stop(drain=drain)
    assert seen == list(range(3_000))
    assert len(inbox) == 0


async def test_askers_are_answered_first_come_first_served() -> None:
    """Each of a hundred asks a hundred times; the last must not wait for all the others."""
    env = am.StreamExecutionEnvironment()
    answers: list[int] = []

    async def answer(question: Any) -> Any:
        await asyncio.sleep(0.01)
        return question.answer(question.value)

    async def ask(job: am.JobClient, asker: int) -> None:
        for _ in range(100):
            assert await job.ask(asker) == asker
            answers.append(asker)

    env.from_questions(size=10).map_async(answer, concurrency=10).sink_to(am.Answers())
    async with env.start() as job, asyncio.TaskGroup() as group:
        for asker in range(100):
            group.create_task(ask(job, asker))
    assert len(answers) == 10_000
    check_served_in_turn(answers)


def check_served_in_turn(served: list[int]) -> None:
    """Of a hundred, each has had its turn before another one has had three more."""
    for count in range(100, len(served) + 1, 100):
        turns = Counter(served[:count])
        assert len(turns) == 100
        assert max(turns.values()) - min(turns.values()) <= 2


async def test_records_are_put_first_come_first_served() -> None:
    inbox: am.Inbox[int] = am.Inbox(size=2)
    seen: list[int] = []

    async def slow(number: int) -> None:
        await asyncio.sleep(1)
        seen.append(number)

    async def put(putter: int) -> None:
        for _ in range(10):
            await inbox.put(putter)

    env = am.StreamExecutionEnvironment()
    env.from_source(inbox).sink_to(slow)
    async with env.start() as job:
        async with asyncio.TaskGroup() as group:
            for putter in range(100):
                group.create_task(put(putter))
            await asyncio.sleep(0)
        inbox.close()
        await job.result()
    check_served_in_turn(seen[2:])


def take(inbox: am.Inbox[str]) -> str:
    """Take one record out, as a reader does."""
    record = inbox._waiting.popleft()
    inbox._on_taken(1)
    return record


async def test_who_gives_up_waiting_for_room_leaves_its_place_to_the_next() -> None:
    inbox: am.Inbox[str] = am.Inbox(size=1)
    put = asyncio.get_running_loop().create_task
    assert inbox.try_put("first")
    waiting = [put(inbox.put(name)) for name in ("second", "third", "fourth")]
    await asyncio.sleep(1)
    waiting[0].cancel()
    await asyncio.sleep(1)
    assert take(inbox) == "first"
    # The place is that of the third, whose turn has come and who has not run since.
    assert not inbox.try_put("fifth")
    waiting[1].cancel()
    await asyncio.wait(waiting)
    assert [task.cancelled() for task in waiting] == [True, True, False]
    assert not inbox.try_put("fifth")
    assert take(inbox) == "fourth"
    assert inbox.try_put("fifth")


@asynccontextmanager
async def failing_block() -> AsyncIterator[None]:
    with pytest.raises(am.JobFailedError):
        yield


@pytest.mark.parametrize(
    ("way", "told"),
    [("stop", "has finished"), ("cancel", "was cancelled"), ("fail", "has failed")],
)
async def test_an_inbox_whose_job_is_over_refuses_records(
    way: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox: am.Inbox[int] = am.Inbox(size=3)

    async def hang(number: int) -> int:
        if way == "fail":
            await asyncio.sleep(10)
            raise ValueError(number)
        await asyncio.sleep(0 if way == "stop" else 1_000)
        return number

    env = am.StreamExecutionEnvironment()
    # It reads three ahead, and holds one in the function.
    env.from_source(inbox).map_async(hang, concurrency=1, capacity=1).sink_to(print)
    async with (
        nullcontext() if way != "fail" else failing_block(),
        env.start("shop", on_failure="log") as job,
    ):
        if way == "stop":
            await inbox.put(1)
        else:
            putting = asyncio.get_running_loop().create_task(put_all(inbox, 100))
            await asyncio.sleep(1)
            assert len(inbox) == 3
        if way == "fail":
            with pytest.raises(am.JobFailedError):
                await job.result()
        else:
            await (job.stop() if way == "stop" else job.cancel())
        message = f"job 'shop', which read it, {told}"
        with pytest.raises(am.IllegalStateError, match=message):
            await inbox.put(2)
        with pytest.raises(am.IllegalStateError, match=message):
            inbox.try_put(2)
        if way != "stop":
            # It waited for room.
            with pytest.raises(am.IllegalStateError, match=message):
                await putting
            (line,) = [one for one in caplog.records if "never read" in one.message]
            assert vars(line)["records"] == len(inbox) == 3
        # What waits is for the next job, and then the inbox takes records again.
        waiting = list(inbox._waiting)
    await read_all(inbox, waiting)


async def put_all(inbox: am.Inbox[int], count: int) -> None:
    for number in range(count):
        await inbox.put(number)


async def read_all(inbox: am.Inbox[int], waiting: list[int]) -> None:
    seen: list[int] = []
    env = am.StreamExecutionEnvironment()
    env.from_source(inbox).sink_to(seen.append)
    async with env.start() as job:
        await inbox.put(99)
        inbox.close()
        await job.result()
    assert seen == [*waiting, 99]


async def test_while_a_job_is_being_stopped_its_inbox_takes_nothing_that_is_lost() -> (
    None
):
    inbox: am.Inbox[int] = am.Inbox(size=10)
    seen: list[int] = []
    taken: list[int] = []

    async def slow(number: int) -> int:
        await asyncio.sleep(1)
        return number

    async def put_until_refused() -> str:
        for number in range(1_000):
            try:
                await inbox.put(number)
            except am.IllegalStateError as error:
                return str(error)
            taken.append(number)
        return ""

    env = am.StreamExecutionEnvironment()
    env.from_source(inbox).map(slow).sink_to(seen.append)
    async with env.start() as job:
        putting = asyncio.get_running_loop().create_task(put_until_refused())
        await asyncio.sleep(5.5)
        await job.stop()
        assert "is being stopped" in await putting
    assert seen == taken


async def test_an_inbox_goes_on_where_a_job_takes_over() -> None:
    """What comes between the two jobs waits for the second one."""
    inbox: am.Inbox[int] = am.Inbox(size=2)
    seen: list[int] = []

    def reading() -> am.StreamExecutionEnvironment:
        env = am.StreamExecutionEnvironment()
        env.enable_checkpointing(
            am.seconds(10), mode=am.CheckpointingMode.AT_LEAST_ONCE
        )
        env.from_source(inbox, name="inbox").map(pause).sink_to(seen.append)
        return env

    async def pause(number: int) -> int:
        await asyncio.sleep(0.5)
        return number

    async def put() -> None:
        for number in range(40):
            await inbox.put(number)

    async with reading().start("first") as first:
        putting = asyncio.get_running_loop().create_task(put())
        await asyncio.sleep(5)
        async with reading().start("second", replace=first) as second:
            await putting
            inbox.close()
            await second.result()
    assert seen == list(range(40))


async def test_nobody_waits_for_ever_at_a_closed_inbox() -> None:
    inbox: am.Inbox[int] = am.Inbox(size=1)
    assert inbox.try_put(1)
    assert not inbox.try_put(2)
    waiting = asyncio.get_running_loop().create_task(inbox.put(2))
    await asyncio.sleep(1)
    inbox.close()
    with pytest.raises(am.IllegalStateError):
        await waiting


async def ticks() -> Any:
    for number in range(100):
        await asyncio.sleep(1)
        yield number


async def test_any_number_of_readers_come_and_go() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_async_iterable(ticks).map(lambda number: number * 10).publish()
    stream.sink_to(lambda number: None)
    first: list[int] = []
    async with env.start() as job:
        await asyncio.sleep(20.5)

        async def read(reader: am.Subscription[int], into: list[int]) -> None:
            async for number in reader:
                into.append(number)

        late: list[int] = []
        loop = asyncio.get_running_loop()
        reading = loop.create_task(read(job.subscribe(stream), first))
        await asyncio.sleep(30)
        async with job.subscribe(stream) as some:
            assert [await anext(some), await anext(some)] == [500, 510]
        last = loop.create_task(read(job.subscribe(stream), late))
        await job.result()
        await asyncio.gather(reading, last)
        # After the end there is nothing more.
        assert [number async for number in job.subscribe(stream)] == []
    assert first == [number * 10 for number in range(20, 100)]
    assert late == [number * 10 for number in range(52, 100)]


async def test_a_reader_that_is_too_slow_misses_the_oldest_or_is_waited_for() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(range(10_000)).publish()
    async with env.start() as job:
        lossy = job.subscribe(stream, size=10)
        await job.result()
        kept = [number async for number in lossy]
    assert kept == list(range(9_990, 10_000))
    assert lossy.dropped == 9_990
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(range(10_000)).publish()
    async with env.start() as job:
        patient = job.subscribe(stream, size=10, on_full="wait")
        await asyncio.sleep(10)
        assert job.state is am.JobState.RUNNING
        assert len(patient._records) < 10 + 2 * 1024
        assert [number async for number in patient] == list(range(10_000))
        await job.result()
    assert patient.dropped == 0


async def test_a_closed_reader_does_not_hold_the_job_up() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection(range(10_000)).publish()
    async with env.start() as job:
        patient = job.subscribe(stream, size=10, on_full="wait")
        await asyncio.sleep(1)
        patient.close()
        await job.result()


async def test_wrong_subscriptions_are_refused() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([1])
    stream.sink_to(lambda one: None)
    async with env.start() as job:
        with pytest.raises(am.UsageError, match=r"stream\.publish\(\)"):
            job.subscribe(stream)
        with pytest.raises(am.InvalidArgumentError, match="size"):
            job.subscribe(stream, size=0)
        with pytest.raises(am.InvalidArgumentError, match="on_full"):
            job.subscribe(stream, on_full="grow")  # type: ignore[arg-type]


def test_a_desk_that_nobody_holds_is_forgotten() -> None:
    questions = Questions()
    number = questions._desk
    del questions
    gc.collect()
    from aiomailbox.connectors.inbox import _desks

    assert number not in _desks
