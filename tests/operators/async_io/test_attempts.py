"""Laws of attempts: timeouts, deadlines, retries, limits, errors, cancellation."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.errors import (
    AsyncTimeoutError,
    CallCancelledError,
    DeadlineExceededError,
    RetryLater,
    StopTask,
    UserFunctionError,
    WrongTypeError,
)
from aiomailbox.operators.async_io.calls import Call, CallEntry
from aiomailbox.operators.core.user_code import dead_letter, skip
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.cache import Cache
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.policies.retry import Retry
from aiomailbox.records.events import OutputTag

FAILED = OutputTag("failed")
STEADY = Retry(attempts=3, initial=10, multiplier=1, jitter=0)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def at(*seconds: float) -> list[Any]:
    return [pytest.approx(second, abs=0.05) for second in seconds]


async def failure_of(driven: Any) -> UserFunctionError:
    with pytest.raises(UserFunctionError) as caught:
        await driven.runner
    return caught.value


class Server:
    """Answers after a script by value: a result, an exception, or None for never."""

    def __init__(self, script: dict[Any, list[Any]], delay_s: float = 0.0) -> None:
        self.script = {value: list(answers) for value, answers in script.items()}
        self.delay_s = delay_s
        self.log: list[tuple[float, Any]] = []

    async def __call__(self, value: Any) -> Any:
        self.log.append((now_s(), value))
        await asyncio.sleep(self.delay_s)
        answers = self.script.get(value)
        answer = answers.pop(0) if answers else value
        if answer is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def times(self, value: Any) -> list[float]:
        return [when for when, called in self.log if called == value]


async def test_an_error_fails_the_task_naming_operator_uid_and_line(drive: Any) -> None:
    async def look_up(value: int) -> int:
        raise KeyError("no such city")

    driven = await drive(look_up)
    driven.send([1])
    failure = await failure_of(driven)
    assert (failure.operator, failure.uid) == ("enrich", "enrich-1")
    line = look_up.__code__.co_firstlineno + 1
    assert failure.location == f"{__file__}:{line}"
    assert isinstance(failure.__cause__, KeyError)


async def test_a_failure_reaches_a_task_that_waits_for_room(drive: Any) -> None:
    server = Server({0: [ValueError()], 1: [None]}, delay_s=1)
    driven = await drive(server, concurrency=2, capacity=2)
    driven.send(range(10))
    assert isinstance((await failure_of(driven)).__cause__, ValueError)


async def test_a_failure_reaches_a_task_that_waits_for_its_last_calls(
    drive: Any,
) -> None:
    """MB-130."""
    driven = await drive(Server({0: [ValueError()], 1: [None]}, delay_s=1))
    driven.send([0, 1])
    driven.end()
    assert isinstance((await failure_of(driven)).__cause__, ValueError)


async def test_skipped_records_are_counted_and_logged(drive: Any) -> None:
    driven = await drive(Server({1: [ValueError("bad")]}), on_error=skip)
    driven.send([0, 1, 2])
    assert await driven.finish() == [0, 2]
    assert driven.metrics["skipped"] == 1
    assert any("skipped" in event for _, event, _ in driven.context.log.entries)


async def test_a_dead_letter_tells_all_and_keeps_its_place_before_the_watermark(
    drive: Any, gates: Any
) -> None:
    driven = await drive(gates, on_error=dead_letter(FAILED))
    driven.send("ab", [1, 2])
    driven.watermark(5)
    await asyncio.sleep(0.1)
    await gates.fail("b", ValueError("bad"))
    assert driven.output.sides == {}
    await gates.finish("a")
    (record,) = driven.output.sides[FAILED]
    letter = record.value
    assert (letter.record, letter.timestamp, record.timestamp) == ("b", 2, 2)
    assert (letter.operator, letter.uid) == ("enrich", "enrich-1")
    assert (letter.attempts, letter.error_type, letter.error) == (
        1,
        "ValueError",
        "bad",
    )
    assert "in __call__" in letter.traceback
    assert driven.shown == ["a", "wm 5"]
    assert driven.metrics["dead_letters"] == 1


async def test_calls_that_wait_for_their_turn_and_those_being_made_are_counted(
    drive: Any,
) -> None:
    async def call(value: int) -> int:
        await asyncio.sleep(10)
        return value

    driven = await drive(call, concurrency=2, capacity=5)
    driven.send(range(7))
    await asyncio.sleep(1)
    names = ("in_flight", "waiting_for_slot", "buffered")
    assert [driven.metrics[name] for name in names] == [2, 3, 5]
    assert await driven.finish() == [*range(7)]
    assert [driven.metrics[name] for name in names] == [0, 0, 0]


async def test_a_retry_keeps_its_place_in_the_order_but_not_its_slot(
    drive: Any,
) -> None:
    server = Server({0: [ValueError(), ValueError()]})
    driven = await drive(server, concurrency=1, capacity=10, retry=STEADY)
    driven.send(range(4))
    await asyncio.sleep(1)
    assert [value for _, value in server.log] == [0, 1, 2, 3]
    assert driven.values == []
    assert driven.metrics["waiting_for_retry"] == 1
    assert driven.metrics["buffered"] == 4
    assert driven.metrics["buffer_max"] == 10
    assert await driven.finish() == [0, 1, 2, 3]
    assert server.times(0) == at(0, 10, 20)
    assert driven.metrics["retries"] == 2
    assert driven.metrics["calls"] == 6


async def test_a_retry_goes_before_rows_that_have_not_been_called(drive: Any) -> None:
    server = Server({0: [ValueError()]}, delay_s=1)
    retry = Retry(attempts=2, initial=1.5, jitter=0)
    driven = await drive(server, concurrency=1, capacity=10, retry=retry)
    driven.send(range(6))
    await driven.finish()
    assert [value for _, value in server.log] == [0, 1, 2, 0, 3, 4, 5]


async def test_the_timeout_of_an_attempt_that_failed_does_not_fire(drive: Any) -> None:
    """MB-129."""
    server = Server({1: [ValueError(), None]}, delay_s=1)
    driven = await drive(
        server, timeout=5, retry=Retry(attempts=3, initial=2, jitter=0)
    )
    driven.send([1])
    assert await driven.finish() == [1]
    assert server.times(1) == at(0, 3, 12)
    assert driven.metrics["timeouts"] == 1


async def test_a_timeout_leaves_no_trace_in_the_coroutine_that_made_the_call(
    drive: Any, gates: Any
) -> None:
    driven = await drive(gates, concurrency=1, timeout=1, on_error=dead_letter(FAILED))
    driven.send("ab")
    await asyncio.sleep(1.5)
    await gates.cancel("b")
    await driven.finish()
    errors = [record.value.error_type for record in driven.output.sides[FAILED]]
    assert errors == ["AsyncTimeoutError", "CallCancelledError"]


async def test_a_result_may_be_asked_again_and_the_last_one_counts(drive: Any) -> None:
    """SEM-113."""
    server = Server({1: ["", "", ""], 2: [0, 0, 0], 3: [0, 0, 0]})
    retry = Retry(
        attempts=3,
        initial=10,
        multiplier=1,
        jitter=0,
        retry_if=lambda result: not result,
    )
    driven = await drive(server, retry=retry)
    driven.send([1])
    await asyncio.sleep(25)
    driven.send([2, 3])
    assert await driven.finish() == ["", 0, 0]
    assert server.times(1) == at(0, 10, 20)
    assert driven.metrics["unwanted_results"] == 3
    # The first one is told, and how many there are says the metric.
    ((_, event, more),) = driven.context.log.entries
    assert event.startswith("a result goes on that retry_if wants again")
    assert (more["attempts"], more["result"]) == (3, "''")


async def test_after_the_last_attempt_the_letter_says_how_many_there_were(
    drive: Any,
) -> None:
    server = Server({1: [ValueError("a"), ValueError("b"), ValueError("c")]})
    driven = await drive(server, retry=STEADY, on_error=dead_letter(FAILED))
    driven.send([1])
    await driven.finish()
    (record,) = driven.output.sides[FAILED]
    assert (record.value.attempts, record.value.error) == (3, "c")


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_failure_says_after_how_many_attempts_it_came(attempts: int) -> None:
    async def refused(number: int) -> int:
        raise ConnectionError("refused")

    numbers = am.StreamExecutionEnvironment().from_collection([1])
    called = numbers.map_async(refused, retry=am.Retry(attempts))
    with pytest.raises(am.JobFailedError) as caught:
        await called.collect()
    assert caught.value.__cause__ is not None
    notes = getattr(caught.value.__cause__.__cause__, "__notes__", [])
    assert [note for note in notes if "attempts" in note] == (
        ["after 2 attempts"] if attempts == 2 else []
    )


async def test_the_end_of_input_waits_for_retries_with_all_their_attempts(
    drive: Any,
) -> None:
    """Flink tries only once more; here nothing is cut short at the end of the input."""
    server = Server({1: [ValueError(), ValueError()]})
    driven = await drive(server, retry=STEADY)
    driven.send([1])
    await asyncio.sleep(5)
    assert await driven.finish() == [1]
    assert server.times(1) == at(0, 10, 20)


async def test_the_timeout_is_for_one_attempt(drive: Any) -> None:
    server = Server({1: [None, None]})
    driven = await drive(server, timeout=2, retry=STEADY)
    driven.send([1])
    assert await driven.finish() == [1]
    assert server.times(1) == at(0, 12, 24)
    assert driven.metrics["timeouts"] == 2


async def test_a_timeout_without_retries_fails_the_task(drive: Any) -> None:
    """SEM-107, MB-127, of one record."""
    driven = await drive(Server({1: [None]}), timeout=10)
    driven.send([1, 2])
    assert isinstance((await failure_of(driven)).__cause__, AsyncTimeoutError)
    assert now_s() == pytest.approx(10, abs=0.05)


async def test_the_timeout_error_of_the_function_itself_is_not_ours(drive: Any) -> None:
    driven = await drive(Server({1: [TimeoutError("theirs")]}), timeout=10)
    driven.send([1])
    assert "theirs" in str(await failure_of(driven))
    assert driven.metrics["timeouts"] == 0


async def test_a_function_that_ignores_its_timeout_is_too_late(drive: Any) -> None:
    async def stubborn(value: int) -> int:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        return value

    driven = await drive(
        stubborn, concurrency=1, timeout=1, on_error=dead_letter(FAILED)
    )
    driven.send([1, 2])
    await asyncio.sleep(1.5)
    assert len(driven.output.sides[FAILED]) == 1
    assert driven.metrics["in_flight"] == 1
    assert await driven.finish() == []
    assert [record.value.record for record in driven.output.sides[FAILED]] == [1, 2]


@pytest.mark.parametrize("fails", [True, False])
async def test_what_comes_of_an_attempt_after_its_timeout_does_not_count(
    drive: Any, fails: bool
) -> None:
    attempts: list[int] = []

    async def stubborn(value: int) -> str:
        attempts.append(value)
        if len(attempts) > 1:
            return "in time"
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
            if fails:
                raise ValueError(value) from None
        return "late"

    driven = await drive(stubborn, timeout=1, retry=STEADY)
    driven.send([1])
    assert await driven.finish() == ["in time"]
    assert [now_s()] == at(11)
    await asyncio.sleep(60)
    assert attempts == [1, 1]


async def test_a_result_at_the_very_moment_of_the_timeout_counts_once(
    drive: Any,
) -> None:
    """SEM-116."""
    driven = await drive(
        Server({}, delay_s=1.0), timeout=1.0, on_error=dead_letter(FAILED)
    )
    driven.send(range(20))
    await driven.finish()
    letters = [record.value.record for record in driven.output.sides.get(FAILED, [])]
    assert sorted(driven.values + letters) == list(range(20))


async def test_the_deadline_ends_an_attempt_and_the_wait_for_another(
    drive: Any,
) -> None:
    """SEM-114; our deadline is its timeout."""
    server = Server({1: [ValueError(), None]})
    driven = await drive(
        server, deadline=15, retry=STEADY, on_error=dead_letter(FAILED)
    )
    driven.send([1, 2])
    await driven.finish()
    assert now_s() == pytest.approx(15, abs=0.05)
    (record,) = driven.output.sides[FAILED]
    assert record.value.error_type == "DeadlineExceededError"
    assert server.times(1) == at(0, 10)
    await asyncio.sleep(50)
    assert server.times(1) == at(0, 10)


async def test_a_wait_that_would_end_after_the_deadline_is_not_begun(
    drive: Any,
) -> None:
    driven = await drive(
        Server({1: [RetryLater(retry_after=60)]}), deadline=20, retry=STEADY
    )
    driven.send([1])
    failure = await failure_of(driven)
    assert isinstance(failure.__cause__, DeadlineExceededError)
    assert isinstance(failure.__cause__.__cause__, RetryLater)
    assert now_s() < 1


async def test_a_result_that_is_asked_for_again_has_a_deadline_too(drive: Any) -> None:
    """At the very deadline no attempt begins; it is told at once."""
    retry = replace(STEADY, retry_if=lambda result: not result)
    driven = await drive(Server({1: [""]}), deadline=10, retry=retry)
    driven.send([1])
    failure = await failure_of(driven)
    assert isinstance(failure.__cause__, DeadlineExceededError)
    assert failure.__cause__.__cause__ is None
    assert [now_s()] == at(0)


async def test_the_deadline_counts_from_the_first_attempt(drive: Any) -> None:
    server = Server({1: [ValueError(), ValueError(), ValueError()]})
    retry = Retry(attempts=9, initial=10, multiplier=1, jitter=0)
    driven = await drive(server, deadline=25, retry=retry)
    driven.send([1])
    assert isinstance((await failure_of(driven)).__cause__, DeadlineExceededError)
    # The next one would begin at 30.
    assert server.times(1) == at(0, 10, 20)
    assert [now_s()] == at(20)
    assert driven.metrics["timeouts"] == 1
    assert driven.metrics["waiting_for_retry"] == 0


async def test_a_call_that_reaches_its_deadline_is_cancelled_and_counted(
    drive: Any,
) -> None:
    ended: list[float] = []

    async def call(value: int) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(now_s())

    driven = await drive(call, deadline=15, on_error=skip)
    driven.send([1])
    assert await driven.finish() == []
    await asyncio.sleep(1)
    assert ended == at(15)
    assert driven.metrics["timeouts"] == 1


async def test_the_deadline_of_a_batch_ends_with_its_call(drive: Any) -> None:
    async def call(values: list[int]) -> list[int]:
        return values

    driven = await drive(call, batch=Batch(2, within=0), deadline=15)
    driven.send([1, 2])
    assert await driven.finish() == [1, 2]
    await asyncio.sleep(60)
    assert driven.metrics["timeouts"] == 0


async def test_an_error_that_is_not_to_be_retried_is_final_also_if_that_is_unknown(
    drive: Any,
) -> None:
    server = Server({1: [ValueError()]})
    driven = await drive(server, retry=replace(STEADY, retry_on=KeyError))
    driven.send([1])
    assert isinstance((await failure_of(driven)).__cause__, ValueError)
    assert server.times(1) == at(0)
    # The error that asks is not lost over the one of who is asked.
    server = Server({1: [ValueError()]})
    driven = await drive(
        server, retry=replace(STEADY, retry_on=lambda error: error.code == 5)
    )
    driven.send([1])
    cause = (await failure_of(driven)).__cause__
    assert isinstance(cause, AttributeError)
    assert isinstance(cause.__context__, ValueError)
    assert server.times(1) == at(0)
    # Nor that of a timeout, which is no error of the function.
    driven = await drive(
        Server({1: [None]}),
        timeout=1,
        retry=replace(STEADY, retry_on=lambda error: error.code == 5),
    )
    driven.send([1])
    cause = (await failure_of(driven)).__cause__
    assert isinstance(cause, AttributeError)
    assert isinstance(cause.__context__, AsyncTimeoutError)


async def test_a_long_wait_that_a_server_asks_for_is_told_once(drive: Any) -> None:
    later = [RetryLater(retry_after=wait_s) for wait_s in (59, 60, 60)]
    driven = await drive(Server({1: later}), retry=replace(STEADY, attempts=4))
    driven.send([1])
    assert await driven.finish() == [1]
    told = [more for _, event, more in driven.context.log.entries if "waits" in event]
    assert [more["wait_s"] for more in told] == [60]


async def test_a_retry_after_may_be_longer_than_the_timeout(drive: Any) -> None:
    server = Server({1: [RetryLater(retry_after=30)]})
    driven = await drive(server, timeout=1, deadline=100, retry=STEADY)
    driven.send([1])
    assert await driven.finish() == [1]
    assert server.times(1) == at(0, 30)
    # Nor is anything of a call that has ended kept.
    assert not driven.operator._rows.caller._deadlines


async def test_a_retry_that_waits_for_its_slot_still_has_its_deadline(
    drive: Any,
) -> None:
    server = Server({1: [ValueError()], 2: [None]})
    driven = await drive(
        server,
        concurrency=1,
        capacity=5,
        deadline=15,
        retry=STEADY,
        on_error=dead_letter(FAILED),
    )
    driven.send([1, 2])
    await driven.finish()
    assert [r.value.record for r in driven.output.sides[FAILED]] == [1, 2]
    assert server.times(1) == at(0)


async def test_waiting_for_the_limit_counts_for_the_deadline_not_for_the_timeout(
    drive: Any,
) -> None:
    server = Server({})
    driven = await drive(
        server,
        limit=RateLimit(1, per=10),
        timeout=1,
        deadline=25,
        on_error=dead_letter(FAILED),
    )
    driven.send(range(5))
    await asyncio.sleep(5)
    assert driven.metrics["waiting_for_limit"] == 4
    assert await driven.finish() == [0, 1, 2]
    assert [r.value.record for r in driven.output.sides[FAILED]] == [3, 4]


async def test_two_operators_at_parallelism_4_never_exceed_their_shared_limit(
    drive: Any,
) -> None:
    log: list[tuple[float, int]] = []
    rng = random.Random(11)

    async def call(value: int) -> int:
        log.append((now_s(), 1 + value % 3))
        await asyncio.sleep(rng.random() * 0.3)
        if rng.random() < 0.2:
            raise RetryLater(retry_after=rng.choice([None, 0.2]))
        return value

    subtasks = []
    for _operator in range(2):
        for index in range(4):
            driven = await drive(
                call,
                concurrency=40,
                limit=RateLimit(50, per=1.0, name="api"),
                weight=lambda value: 1 + value % 3,
                retry=Retry(attempts=20, initial=0.01),
                context={"parallelism": 4, "subtask_index": index},
            )
            driven.send(range(100))
            subtasks.append(driven)
    for driven in subtasks:
        assert await driven.finish() == list(range(100))
    for start, _ in log:
        assert sum(units for when, units in log if start <= when <= start + 1.0) <= 50
    # It is used, too: 800 rows of 2 units and a quarter more for retries.
    units = sum(units for _, units in log)
    assert units / log[-1][0] > 30


@pytest.mark.parametrize("retry", [STEADY, None])
@pytest.mark.parametrize("batch", [Batch(1), None])
async def test_a_retry_after_holds_back_all_who_share_the_limit(
    drive: Any, retry: Any, batch: Any
) -> None:
    limit = RateLimit(1000, name="api")
    server, second = Server({1: [RetryLater(retry_after=7)]}), Server({})

    async def each(values: list[int]) -> list[Any]:
        called = (server(value) for value in values)
        return await asyncio.gather(*called, return_exceptions=True)

    first = each if batch else server
    one = await drive(first, limit=limit, batch=batch, retry=retry, on_error=skip)
    other = await drive(second, limit=limit)
    one.send([1])
    await asyncio.sleep(1)
    other.send([2])
    assert await other.finish() == [2]
    assert second.times(2) == at(7)


async def test_attempts_use_units_not_rows(drive: Any) -> None:
    server = Server({1: [ValueError(), ValueError()]})
    retry = Retry(attempts=3, initial=0, jitter=0)
    driven = await drive(server, limit=RateLimit(1, per=10), retry=retry)
    driven.send([1])
    assert await driven.finish() == [1]
    assert server.times(1) == at(0, 10, 20)


async def test_a_weight_no_lease_can_have_is_an_error_of_its_record(drive: Any) -> None:
    driven = await drive(
        Server({}),
        limit=RateLimit(5),
        weight=float,
        retry=STEADY,
        on_error=dead_letter(FAILED),
    )
    driven.send([1, 6])
    assert await driven.finish() == [1]
    assert driven.output.sides[FAILED][0].value.attempts == 1


async def test_a_weight_that_is_no_number_of_units_is_an_error_of_its_record(
    drive: Any,
) -> None:
    """A negative one would give units back that nobody had."""
    weights = {1: -1, 2: float("nan"), 3: "2", 4: 0, 5: 2}
    driven = await drive(
        Server({}), limit=RateLimit(5), weight=weights.get, on_error=dead_letter(FAILED)
    )
    driven.send(weights)
    assert await driven.finish() == [4, 5]
    letters = [one.value for one in driven.output.sides[FAILED]]
    assert [one.record for one in letters] == [1, 2, 3]
    assert all("as the weight of a record" in one.error for one in letters)


async def test_one_bad_record_of_a_batch_fails_alone_and_is_retried_alone(
    drive: Any,
) -> None:
    calls = []

    async def call(values: list[int]) -> list[Any]:
        calls.append(values)
        return [ValueError(str(v)) if v % 2 and len(calls) < 3 else v for v in values]

    driven = await drive(call, batch=Batch(4, within=0), retry=STEADY)
    driven.send(range(4))
    assert await driven.finish() == [0, 1, 2, 3]
    assert calls == [[0, 1, 2, 3], [1, 3], [1, 3]]


@pytest.mark.parametrize(
    ("retry", "attempts"),
    [(None, 1), (STEADY, 3), (replace(STEADY, retry_on=KeyError), 1)],
)
async def test_one_bad_record_of_a_batch_is_a_dead_letter_alone_when_it_is_not_retried(
    drive: Any, retry: Any, attempts: int
) -> None:
    async def call(values: list[int]) -> list[Any]:
        return [ValueError(str(v)) if v == 1 else v for v in values]

    batch = Batch(4, within=0)
    driven = await drive(call, batch=batch, retry=retry, on_error=dead_letter(FAILED))
    driven.send(range(4))
    assert await driven.finish() == [0, 2, 3]
    letters = [record.value for record in driven.output.sides[FAILED]]
    assert [(one.record, one.attempts, str(one.error)) for one in letters] == [
        (1, attempts, "1")
    ]


async def test_a_batch_waits_as_long_as_any_of_its_records_has_to(drive: Any) -> None:
    calls = []
    answers = [ValueError(), RetryLater(retry_after=30), RetryLater(retry_after=20), 4]

    async def call(values: list[int]) -> list[Any]:
        calls.append((now_s(), values))
        return answers if len(calls) == 1 else values

    driven = await drive(call, batch=Batch(4, within=0), retry=STEADY)
    driven.send([1, 2, 3, 4])
    assert await driven.finish() == [1, 2, 3, 4]
    assert calls == [(*at(0), [1, 2, 3, 4]), (*at(30), [1, 2, 3])]


@pytest.mark.parametrize("limit", [RateLimit(1000, name="api"), None])
async def test_a_batch_waits_for_its_records_that_are_not_called_again_too(
    drive: Any, limit: Any
) -> None:
    calls = []
    busy = RetryLater(retry_after=20)
    final = ValueError()
    final.retry_after = 30  # type: ignore[attr-defined]

    async def call(values: list[int]) -> list[Any]:
        calls.append((now_s(), values))
        return [busy, final] if len(calls) == 1 else values

    retry = replace(STEADY, retry_on=ConnectionError)
    driven = await drive(
        call, batch=Batch(2, within=0), retry=retry, limit=limit, on_error=skip
    )
    other = await drive(Server({}), limit=limit)
    driven.send([1, 2])
    await asyncio.sleep(1)
    other.send([3])
    assert await other.finish() == [3]
    assert [now_s()] == at(30 if limit else 1)
    assert await driven.finish() == [1]
    assert calls == [(*at(0), [1, 2]), (*at(30), [1])]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("retry", [STEADY, None])
async def test_a_batch_keeps_its_results_whatever_its_errors_raise_when_looked_at(
    drive: Any, ordered: bool, retry: Any
) -> None:
    class OddError(Exception):
        @property
        def response(self) -> Any:
            raise RuntimeError("no response has been set")

    async def call(values: list[int]) -> list[Any]:
        return [OddError("odd") if value == 2 else value for value in values]

    batch = Batch(3, within=0)
    driven = await drive(
        call, batch=batch, retry=retry, ordered=ordered, on_error=dead_letter(FAILED)
    )
    driven.send([1, 2, 3])
    assert await driven.finish() == [1, 3]
    (letter,) = driven.output.sides[FAILED]
    assert (letter.value.record, letter.value.error) == (2, "odd")


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_batch_fails_as_a_whole_before_anybody_is_told_of_a_part(
    drive: Any, ordered: bool
) -> None:
    def wants(result: int) -> bool:
        return 1 / (3 - result) < 0

    async def call(values: list[int]) -> list[int]:
        return values

    driven = await drive(
        call,
        batch=Batch(3, within=0),
        retry=replace(STEADY, retry_if=wants),
        ordered=ordered,
        on_error=dead_letter(FAILED),
    )
    driven.send([1, 2, 3])
    assert await driven.finish() == []
    letters = [one.value for one in driven.output.sides[FAILED]]
    assert [letter.record for letter in letters] == [1, 2, 3]


async def test_results_of_a_batch_that_are_not_wanted_are_asked_for_again_alone(
    drive: Any,
) -> None:
    calls = []

    async def call(values: list[int]) -> list[Any]:
        calls.append(values)
        return [None if v == 1 and len(calls) == 1 else v for v in values]

    retry = replace(STEADY, retry_if=lambda result: result is None)
    driven = await drive(call, batch=Batch(4, within=0), retry=retry)
    driven.send(range(4))
    assert await driven.finish() == [0, 1, 2, 3]
    assert calls == [[0, 1, 2, 3], [1]]


@pytest.mark.parametrize("retry", [replace(STEADY, retry_if=lambda _: False), None])
async def test_an_exception_that_a_call_returns_is_a_result(
    drive: Any, retry: Any
) -> None:
    async def call(value: int) -> Any:
        calls.append(value)
        return ValueError(value)

    calls: list[int] = []
    driven = await drive(call, retry=retry)
    driven.send([1, 2])
    found = await driven.finish()
    assert driven.metrics["unwanted_results"] == 0
    assert [type(one) for one in found] == [ValueError, ValueError]
    assert calls == [1, 2]
    told = [event for _, event, _ in driven.context.log.entries]
    assert told == ["a call returned an exception: it is a result like any other"]


async def test_a_failed_batch_is_a_dead_letter_for_each_record(drive: Any) -> None:
    async def call(values: list[int]) -> list[Any]:
        raise ValueError("down")

    driven = await drive(call, batch=Batch(4, within=0), on_error=dead_letter(FAILED))
    driven.send(range(4))
    await driven.finish()
    assert [r.value.record for r in driven.output.sides[FAILED]] == [0, 1, 2, 3]


async def test_the_weight_of_a_batch_is_that_of_its_records(
    drive: Any, limiters: Any
) -> None:
    async def call(values: list[int]) -> list[int]:
        return values

    limit = RateLimit(10, per=10)
    driven = await drive(call, batch=Batch(4, within=0), limit=limit, weight=2)
    driven.send(range(8))
    assert await driven.finish() == list(range(8))
    assert now_s() == pytest.approx(10, abs=0.05)


async def test_a_call_without_a_weight_uses_one_unit_however_many_rows_it_has(
    drive: Any,
) -> None:
    async def call(values: list[int]) -> list[int]:
        return values

    limit = RateLimit(2, per=10)
    driven = await drive(call, batch=Batch(10, within=0), limit=limit)
    driven.send(range(30))
    assert await driven.finish() == list(range(30))
    # Ten tenths are not quite one.
    assert driven.metrics["units_used"] == 3
    assert [now_s()] == at(10)
    # Nor does anybody add up what no key has used.
    assert driven.context.metrics.key_totals.top() == []


async def test_a_unit_is_shared_by_the_keys_of_the_rows_of_its_call(drive: Any) -> None:
    async def call(values: list[str]) -> list[str]:
        return values

    limit = RateLimit(10)
    batch = Batch(4, within=0)
    driven = await drive(call, batch=batch, limit=limit, key=lambda value: value)
    driven.send("aaab")
    assert await driven.finish() == list("aaab")
    totals = driven.context.metrics.key_totals.top()
    assert {one.key: one.units for one in totals} == {"'a'": 0.75, "'b'": 0.25}


@pytest.mark.parametrize("answer", [[1], 5, "ab"])
async def test_a_batch_answered_with_another_number_of_results_is_refused(
    drive: Any, answer: Any
) -> None:
    async def call(values: list[int]) -> Any:
        return answer if 1 in values else values

    driven = await drive(call, batch=Batch(2, within=0), retry=STEADY)
    driven.send([1, 2])
    assert isinstance((await failure_of(driven)).__cause__, WrongTypeError)
    # All of its rows failed, and the next ones do not.
    driven = await drive(call, batch=Batch(2, within=0), on_error=dead_letter(FAILED))
    driven.send([1, 2, 3, 4])
    assert await driven.finish() == [3, 4]
    assert not any(task.done() for task in driven.context.tasks)
    letters = [record.value for record in driven.output.sides[FAILED]]
    assert [(one.record, one.error_type) for one in letters] == [
        (1, "WrongTypeError"),
        (2, "WrongTypeError"),
    ]


@pytest.mark.parametrize("fn", [lambda value: value, lambda value: asyncio.sleep])
async def test_a_function_that_is_not_asynchronous_is_refused(
    drive: Any, fn: Any
) -> None:
    driven = await drive(fn, retry=STEADY)
    driven.send([1])
    assert "Give an async def function" in str(await failure_of(driven))
    assert now_s() < 1


async def test_a_coroutine_as_result_is_refused(drive: Any) -> None:
    async def call(value: int) -> Any:
        return asyncio.sleep(0)

    driven = await drive(call)
    driven.send([1])
    assert "Await it inside the function." in str(await failure_of(driven))


async def test_a_failure_is_not_cached_and_fails_those_who_wait_for_it(
    drive: Any,
) -> None:
    server = Server({"a": [ValueError()]}, delay_s=1)
    driven = await drive(
        server, cache=Cache(lambda value: value), on_error=dead_letter(FAILED)
    )
    driven.send("aa")
    await asyncio.sleep(2)
    assert len(driven.output.sides[FAILED]) == 2
    driven.send("a")
    assert await driven.finish() == ["a"]
    assert len(server.log) == 2


@pytest.mark.parametrize("where", ["key", "cache"])
async def test_a_key_that_cannot_be_read_is_an_error_of_its_record(
    drive: Any, where: str
) -> None:
    def read(value: Any) -> Any:
        return {} if value == 2 else 1 // value

    arguments: dict[str, Any] = (
        {"ordered": "key", "key": read} if where == "key" else {"cache": Cache(read)}
    )
    server = Server({})
    driven = await drive(server, on_error=dead_letter(FAILED), **arguments)
    driven.send([0, 1, 2, "3"])
    assert await driven.finish() == [1]
    letters = [record.value for record in driven.output.sides[FAILED]]
    assert [one.error_type for one in letters] == [
        "ZeroDivisionError",
        "BadResultError",
        "TypeError",
    ]
    # There was no call, and no attempt but that to read the key.
    assert [one.attempts for one in letters] == [1, 1, 1]
    assert [value for _, value in server.log] == [1]
    # The remedy is that of who wrote the function.
    assert "of the field" not in letters[1].error


@pytest.mark.parametrize("where", ["key", "cache"])
async def test_a_field_that_can_be_no_key_is_named_with_a_remedy(
    drive: Any, where: str
) -> None:
    arguments: dict[str, Any] = (
        {"ordered": "key", "key": "tags"}
        if where == "key"
        else {"cache": Cache("tags")}
    )
    driven = await drive(Server({}), **arguments)
    driven.send([{"tags": ["a"]}])
    text = str((await failure_of(driven)).__cause__)
    assert "a key without a hash" in text
    assert "Give a function that makes one of the field." in text


async def test_a_cancellation_nobody_asked_for_is_a_failure(
    drive: Any, gates: Any
) -> None:
    driven = await drive(gates)
    driven.send("a")
    await asyncio.sleep(0.1)
    await gates.cancel("a")
    failure = await failure_of(driven)
    assert isinstance(failure.__cause__, CallCancelledError)
    assert isinstance(failure.__cause__.__cause__, asyncio.CancelledError)
    # It names the line that was awaiting.
    call = type(gates).__call__.__code__
    assert failure.location == f"{call.co_filename}:{call.co_firstlineno + 3}"


async def test_a_function_that_cancels_its_own_task_fails_the_job(drive: Any) -> None:
    called = []

    async def call(value: int) -> int:
        called.append(value)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)
        return value

    driven = await drive(call, concurrency=1, on_error=skip, retry=STEADY, deadline=30)
    driven.send([1, 2])
    assert isinstance((await failure_of(driven)).__cause__, CallCancelledError)
    # Its task has ended, and makes no more calls; nor does this one fail again.
    await asyncio.sleep(60)
    assert called == [1]
    assert driven.metrics["timeouts"] == 0


async def test_stop_task_ends_the_task_whatever_on_error_says(drive: Any) -> None:
    driven = await drive(Server({1: [StopTask("enough")]}), on_error=skip, retry=STEADY)
    driven.send([1])
    with pytest.raises(StopTask):
        await driven.runner


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.5, 4.0, 11.5, 15.0])
@pytest.mark.parametrize("ordered", [True, False, "key"])
async def test_cancelled_at_any_moment_nothing_is_lost_and_no_task_is_left(
    drive: Any, moment: float, ordered: Any
) -> None:
    server = Server({2: [ValueError(), ValueError()], 3: [None]}, delay_s=1)
    arguments: dict[str, Any] = {
        "concurrency": 2,
        "capacity": 4,
        "timeout": 3,
        "deadline": 40,
        "retry": STEADY,
        "limit": RateLimit(2, per=5),
        "ordered": ordered,
        "key": (lambda value: value % 3) if ordered == "key" else None,
    }
    driven = await drive(server, **arguments)
    driven.send(range(8))
    await asyncio.sleep(moment)
    state = driven.operator.snapshot()
    emitted = list(driven.values)
    await driven.close()
    taken = emitted + [row[0] for row in state.own.elements("held-records")]
    # What is in neither is still with the runner, as the rest of its run.
    assert sorted(taken) == list(range(len(taken)))
    await asyncio.sleep(100)
    assert driven.values == emitted
    again = await drive(Server({}), **arguments, state=state)
    again.send(range(len(taken), 8))
    rest = await again.finish()
    assert sorted(emitted + rest) == list(range(8))
    if ordered is True:
        assert emitted + rest == list(range(8))


async def test_a_record_that_waited_too_long_fails_alone(drive: Any) -> None:
    """SEM-107, MB-127: the record after it is still within its time."""
    driven = await drive(
        Server({1: [None]}, delay_s=4), timeout=10, on_error=dead_letter(FAILED)
    )
    driven.send([1], [0])
    await asyncio.sleep(5)
    driven.send([2], [5])
    assert await driven.finish() == [2]
    (letter,) = driven.output.sides[FAILED]
    assert (letter.value.record, letter.value.error_type) == (1, "AsyncTimeoutError")


async def test_a_function_may_answer_its_own_timeout(drive: Any) -> None:
    """SEM-108, MB-128: Flink's overridden ``timeout`` is an ``except`` here."""

    async def tripled_if_slow(value: int) -> int:
        try:
            async with asyncio.timeout(10):
                await asyncio.sleep(100)
        except TimeoutError:
            return 3 * value
        return value

    driven = await drive(tripled_if_slow)
    driven.send([1], [0])
    await asyncio.sleep(5)
    driven.send([2], [5])
    assert await driven.finish() == [3, 6]
    assert now_s() == pytest.approx(15, abs=0.05)


def test_no_row_of_a_batch_has_fewer_attempts_left_than_alone() -> None:
    """Rows that a checkpoint held may have been in other batches before."""
    rows = [
        CallEntry(value, None, attempts)
        for value, attempts in zip("abc", (3, 1, 2), strict=True)
    ]
    assert Call(rows).attempts == 1
    assert [Call([row]).attempts for row in rows] == [3, 1, 2]
