"""Laws of processing time, on the loop and as mail of an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiomailbox.clock import clock_of
from aiomailbox.errors import IllegalStateError, InvalidArgumentError, StopTask
from aiomailbox.mailbox.processor import MailboxProcessor
from aiomailbox.task.processing_time import (
    MailboxProcessingTimeService,
    ServiceState,
    SystemProcessingTimeService,
)


class System:
    """A service on the running loop; times are milliseconds since it was made."""

    def __init__(self) -> None:
        self.clock = clock_of(asyncio.get_running_loop())
        self.start = self.clock.now_ms()
        self.errors: list[BaseException] = []
        self.fired: list[tuple[int, int]] = []
        self.service = SystemProcessingTimeService(self.clock)

    @property
    def now(self) -> int:
        return self.clock.now_ms() - self.start

    def note(self, timestamp_ms: int) -> None:
        """Write down the time asked for and the time it is."""
        self.fired.append((timestamp_ms - self.start, self.now))

    def at(self, time: int, callback: Callable[[int], object] | None = None) -> Any:
        return self.service.register_timer(self.start + time, callback or self.note)


async def sleep_ms(ms: int) -> None:
    await asyncio.sleep(ms / 1000)


async def test_a_timer_fires_when_its_millisecond_has_passed() -> None:
    """MB-87, of one that fires."""
    system = System()
    timer = system.at(10)
    await sleep_ms(10)
    assert (system.fired, timer.done) == ([], False)
    await sleep_ms(2)
    assert system.fired == [(10, 11)]
    assert (timer.done, timer.cancelled, timer.cancel()) == (True, False, False)


async def test_a_timer_of_this_millisecond_fires_in_the_next() -> None:
    system = System()
    system.at(0)
    await sleep_ms(5)
    assert system.fired == [(0, 1)]


async def test_a_timer_in_the_past_fires_at_once() -> None:
    system = System()
    await sleep_ms(50)
    system.at(20)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert system.fired == [(20, 50)]


async def test_cancelled_timers_leave_the_schedule_at_once() -> None:
    """MB-87, MB-95."""
    system = System()
    timers = [
        system.at(1000),
        system.service.schedule_at_fixed_rate(system.note, 0, 10),
    ]
    assert len(system.service._timers) == 2
    for timer in timers:
        assert timer.cancel()
        assert (timer.done, timer.cancelled, timer.cancel()) == (True, True, False)
    assert not system.service._timers
    await sleep_ms(2000)
    assert system.fired == []


async def test_a_periodic_timer_cancels_itself() -> None:
    system = System()
    timer = system.service.schedule_at_fixed_rate(lambda _: timer.cancel(), 5, 10)
    await sleep_ms(100)
    assert timer.cancelled
    assert not system.service._timers


async def test_fixed_rate_keeps_its_nominal_times_when_runs_are_late() -> None:
    """MB-90."""
    system = System()
    timer = system.service.schedule_at_fixed_rate(system.note, 10, 10)
    await sleep_ms(15)
    system.clock.advance(0.040)  # type: ignore[attr-defined]
    await sleep_ms(15)
    timer.cancel()
    assert [nominal for nominal, _ in system.fired] == [10, 20, 30, 40, 50, 60, 70]
    assert [now for _, now in system.fired] == [10, 55, 55, 55, 55, 60, 70]


async def test_the_loop_is_told_of_an_error_and_the_schedule_goes_on() -> None:
    system = System()
    told: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))

    def fail(timestamp_ms: int) -> None:
        system.note(timestamp_ms)
        raise ValueError("broken")

    timer = system.service.schedule_at_fixed_rate(fail, 0, 10)
    await sleep_ms(25)
    timer.cancel()
    assert [str(error) for error in told] == ["broken"] * 3


async def test_quiesce_cancels_what_is_scheduled_and_swallows_what_follows() -> None:
    """MB-89, MB-92."""
    system = System()
    periodic = system.service.schedule_at_fixed_rate(system.note, 0, 10)
    pending = system.at(100)
    system.service.quiesce()
    system.service.quiesce()
    assert (periodic.cancelled, pending.cancelled) == (True, True)
    late = [
        system.at(-50),
        system.service.schedule_at_fixed_rate(system.note, 0, 10),
    ]
    assert not system.service._timers
    await sleep_ms(200)
    assert system.fired == []
    assert not any(timer.done for timer in late)


async def test_a_callback_may_quiesce_the_service() -> None:
    """MB-88, MB-94."""
    system = System()

    def callback(timestamp_ms: int) -> None:
        system.service.quiesce()
        system.at(-10)

    timer = system.service.schedule_at_fixed_rate(callback, 10, 10)
    await sleep_ms(100)
    assert (timer.cancelled, system.fired) == (True, [])


async def test_shutdown_refuses_everything_from_now_on() -> None:
    """MB-93; what runs on the loop ends by itself, nothing can tear it."""
    system = System()

    def callback(timestamp_ms: int) -> None:
        system.service.shutdown()
        assert system.service.state is ServiceState.SHUTDOWN

    system.at(0, callback)
    other = system.at(10)
    await sleep_ms(50)
    assert other.cancelled
    assert not system.service._timers
    for register in (
        system.at,
        lambda t: system.service.schedule_at_fixed_rate(system.note, t, 1),
    ):
        with pytest.raises(IllegalStateError, match="shut down"):
            register(10)
    system.service.shutdown()
    system.service.quiesce()
    assert system.service.state is ServiceState.SHUTDOWN


@pytest.mark.parametrize("period", [0, -1])
async def test_a_period_is_positive(period: int) -> None:
    system = System()
    with pytest.raises(InvalidArgumentError, match="period_ms"):
        system.service.schedule_at_fixed_rate(system.note, 0, period)


class Mailed(System):
    """An operator's service, in a task that runs until `stop`."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = False
        self.processor = MailboxProcessor(self.default_action)
        self.mailbox = self.processor.executor(3)
        self.timers = MailboxProcessingTimeService(
            self.service, self.mailbox, self.errors.append
        )

    async def default_action(self, controller: Any) -> None:
        if self.stopped:
            controller.all_actions_completed()
        await asyncio.sleep(0.001)

    def at(self, time: int, callback: Any = None) -> Any:
        return self.timers.register_timer(self.start + time, callback or self.note)

    async def run(self, ms: int) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(ms / 1000, setattr, self, "stopped", True)
        self.stopped = False
        await self.processor.run_mailbox_loop()


async def test_an_operators_timer_runs_as_mail_of_its_priority() -> None:
    task = Mailed()
    timer = task.at(10)
    await sleep_ms(20)
    mail = task.processor.mailbox.try_take(3)
    assert mail is not None
    assert (mail.priority, task.fired, timer.done) == (3, [], False)
    assert "processing-time timer at" in str(mail)


async def test_an_operators_callback_is_awaited_before_other_mail() -> None:
    task, log = Mailed(), []

    async def slowly(timestamp_ms: int) -> None:
        log.append("start")
        task.mailbox.execute(log.append, "other mail")
        await asyncio.sleep(0.005)
        log.append("end")

    timer = task.at(10, slowly)
    await task.run(50)
    assert (log, timer.done) == (["start", "end", "other mail"], True)


async def test_a_timer_can_be_cancelled_while_its_mail_waits() -> None:
    task = Mailed()
    timer = task.at(10)
    await sleep_ms(20)
    assert timer.cancel()
    await task.run(20)
    assert (task.fired, timer.cancelled, timer.cancel()) == ([], True, False)


async def test_timers_put_no_mail_after_quiesce_but_mail_in_the_box_still_runs() -> (
    None
):
    """MB-88: what is registered afterwards is never done."""
    task = Mailed()
    task.at(10)
    rate = task.timers.schedule_at_fixed_rate(task.note, 100, 10)
    await sleep_ms(20)
    await task.timers.quiesce()
    late = [
        task.at(30),
        task.timers.schedule_at_fixed_rate(task.note, 0, 10),
        task.timers.schedule_with_fixed_delay(task.note, 0, 10),
    ]
    await task.run(200)
    assert [time for time, _ in task.fired] == [10]
    assert not any(timer.done for timer in [rate, *late])
    assert task.service.state is ServiceState.ALIVE


async def test_a_late_fixed_rate_has_one_mail_and_misses_no_nominal_time() -> None:
    task = Mailed()
    timer = task.timers.schedule_at_fixed_rate(task.note, 10, 10)
    await sleep_ms(55)
    assert task.processor.mailbox.size() == 1
    await task.run(10)
    timer.cancel()
    assert [time for time, _ in task.fired] == [10, 20, 30, 40, 50, 60]


async def test_a_fixed_delay_counts_from_the_end_of_its_mail() -> None:
    """MB-91."""
    task = Mailed()

    async def slowly(timestamp_ms: int) -> None:
        task.note(timestamp_ms)
        await asyncio.sleep(0.020)

    timer = task.timers.schedule_with_fixed_delay(slowly, 10, 10)
    await task.run(100)
    timer.cancel()
    gaps = [b - a for (a, _), (b, _) in zip(task.fired, task.fired[1:], strict=False)]
    assert len(gaps) >= 2
    assert all(30 <= gap <= 34 for gap in gaps)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_failing_callback_ends_in_the_handler(is_async: bool) -> None:
    task = Mailed()

    def fail(timestamp_ms: int) -> None:
        raise ValueError("broken")

    async def fail_later(timestamp_ms: int) -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    timer = task.timers.schedule_at_fixed_rate(fail_later if is_async else fail, 0, 10)
    await task.run(25)
    timer.cancel()
    assert [str(error) for error in task.errors] == ["broken"] * 3


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_callback_may_stop_its_task(is_async: bool) -> None:
    task = Mailed()

    def stop(timestamp_ms: int) -> None:
        raise StopTask("enough")

    async def stop_later(timestamp_ms: int) -> None:
        await asyncio.sleep(0)
        raise StopTask("enough")

    task.at(5, stop_later if is_async else stop)
    with pytest.raises(StopTask):
        await task.run(100)
    assert task.errors == []


async def test_a_callback_that_is_cancelled_is_not_reported_as_failed() -> None:
    task = Mailed()
    task.at(5, lambda _: asyncio.sleep(1000))
    running = asyncio.get_running_loop().create_task(task.run(5000))
    await sleep_ms(50)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert task.errors == []


async def test_a_timer_of_a_task_that_has_ended_is_dropped() -> None:
    task = Mailed()
    timer = task.at(10)
    rate = task.timers.schedule_at_fixed_rate(task.note, 10, 10)
    task.processor.mailbox.close()
    await sleep_ms(50)
    assert (task.errors, timer.cancelled, rate.cancelled) == ([], True, True)
    assert not task.service._timers
