"""The end of a task that somebody wants: cancelled, stopped, failed from outside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.errors import (
    CancelTimeoutError,
    MailFailedError,
    StopTask,
    UserFunctionError,
)
from aiomailbox.task.stream_task import TaskState


async def forever(*_: Any) -> None:
    await asyncio.Event().wait()


def ended(bench: Any, error: BaseException | None, state: TaskState) -> bool:
    task = bench.task
    return (
        error is None
        and task.lifecycle.state is state
        and not task.processor.mailbox.is_open
        and not bench.runner.cancelling()
    )


async def cancelled(bench: Any) -> bool:
    return ended(bench, await bench.end(), TaskState.CANCELED)


async def test_cancelled_before_it_runs_nothing_is_opened(bench: Any) -> None:
    bench.input()
    bench.logged("a")
    bench.output()
    task = bench.start()
    task.cancel()
    assert await cancelled(bench)
    assert bench.log == []


async def test_cancelled_before_run_is_even_called(bench: Any) -> None:
    bench.input()
    bench.logged("a")
    bench.build().cancel()
    bench.runner = asyncio.get_running_loop().create_task(bench.task.run())
    assert await cancelled(bench)
    assert bench.log == []


async def test_cancelled_while_its_operators_are_made(bench: Any) -> None:
    """MB-47."""
    bench.input()
    bench.logged("a")
    make = bench.plans[0].factory

    def slowly() -> Any:
        bench.task.cancel()
        return make()

    bench.plans[0].factory = slowly
    bench.output()
    bench.start()
    assert await cancelled(bench)
    assert bench.log[-1] == "a.close"


async def test_cancelled_while_open_awaits(bench: Any) -> None:
    bench.input()
    bench.logged("a")
    bench.logged("b", open=forever)
    task = bench.start()
    await bench.settle()
    task.cancel()
    assert await cancelled(bench)
    assert bench.log == ["b.open", "b.close", "a.close"]


async def test_cancelled_while_idle(bench: Any) -> None:
    bench.input()
    bench.logged("a")
    bench.output()
    task = bench.start()
    await bench.settle()
    task.cancel()
    assert await cancelled(bench)
    assert bench.log == ["a.open", "a.close"]


async def test_cancelled_while_backpressured(bench: Any) -> None:
    (producer,) = bench.input()
    bench.logged("a")
    bench.output(permits=2)
    task = bench.start()
    for number in range(8):
        producer.send(number)
        await bench.settle()
    assert task.metrics()["backpressured_ms"] is not None
    assert not task.processor.is_default_action_available
    task.cancel()
    assert await cancelled(bench)


async def test_cancelled_while_a_function_awaits(bench: Any) -> None:
    (producer,) = bench.input()
    cleaned: list[str] = []

    async def call(self: Any, run: Any) -> None:
        try:
            await forever()
        finally:
            cleaned.append("up")

    bench.logged("a", run=call)
    task = bench.start()
    producer.send(1)
    await bench.settle()
    task.cancel()
    assert await cancelled(bench)
    assert cleaned == ["up"]


async def test_cancelled_in_the_middle_of_finish(bench: Any) -> None:
    (producer,) = bench.input()
    bench.logged("a")
    bench.logged("b", finish=forever)
    bench.logged("c")
    task = bench.start()
    producer.end()
    await bench.settle()
    assert bench.log[-1] == "b.finish"
    task.cancel()
    assert await cancelled(bench)
    assert bench.log[-4:] == ["b.finish", "c.close", "b.close", "a.close"]


async def test_closing_is_not_interrupted(bench: Any) -> None:
    """MB-78."""
    (producer,) = bench.input()

    async def slowly(self: Any) -> None:
        await asyncio.sleep(5)
        self.log.append("a closed")

    bench.logged("a", close=slowly)
    task = bench.start()
    producer.end()
    await asyncio.sleep(1)
    assert bench.log[-1] == "a.close"
    task.cancel()
    task.cancel()
    assert await cancelled(bench)
    assert bench.log[-1] == "a closed"


async def test_cancelling_again_does_not_interrupt_again_at_once(bench: Any) -> None:
    (producer,) = bench.input()
    interrupts: list[int] = []

    async def call(self: Any, run: Any) -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            interrupts.append(1)
            await asyncio.sleep(1)
            raise

    bench.logged("a", run=call)
    task = bench.start()
    producer.send(1)
    await bench.settle()
    task.cancel()
    await bench.settle()
    task.cancel()
    assert await cancelled(bench)
    assert interrupts == [1]
    task.cancel()
    assert task.lifecycle.state is TaskState.CANCELED


@pytest.mark.parametrize("swallowed", [1, 2, 4])
async def test_a_swallowed_interrupt_is_repeated(bench: Any, swallowed: int) -> None:
    """Flink's TaskInterrupter: every sixth of the time that a task has to end."""
    (producer,) = bench.input()
    loop = asyncio.get_running_loop()
    bench.cancel_timeout_s = 6.0
    interrupted: list[float] = []

    async def call(self: Any, run: Any) -> None:
        while len(interrupted) < swallowed:
            try:
                await forever()
            except asyncio.CancelledError:
                interrupted.append(loop.time() - start)
        await forever()

    bench.logged("a", run=call)
    task = bench.start()
    producer.send(1)
    await bench.settle()
    start = loop.time()
    task.cancel()
    assert await cancelled(bench)
    assert interrupted == [float(number) for number in range(swallowed)]
    assert loop.time() - start == swallowed
    assert bench.log == ["a.open", "a.close"]


async def swallow_everything(*_: Any) -> None:
    while True:
        try:
            await asyncio.sleep(10**6)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("phase", ["open", "run", "end_input", "finish"])
async def test_who_never_gives_way_is_left_behind_and_named(
    bench: Any, phase: str
) -> None:
    (producer,) = bench.input()
    bench.cancel_timeout_s = 5.0
    bench.logged("a", **{phase: swallow_everything})
    bench.logged("b")
    bench.output()
    task = bench.start()
    producer.send(1)
    producer.end()
    await bench.settle()
    start = asyncio.get_running_loop().time()
    task.cancel()
    error = await bench.end()
    assert asyncio.get_running_loop().time() - start < 7
    assert isinstance(error, CancelTimeoutError)
    line = swallow_everything.__code__.co_firstlineno + 3
    assert f"{__file__}:{line}" in str(error)
    assert "took longer than 5.0 s" in str(error)
    assert "in operator 'a' " in str(error)
    assert task.lifecycle.state is TaskState.FAILED
    assert bench.log[-2:] == ["b.close", "a.close"]
    assert bench.gates[0].is_closed
    await bench.settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_helper_that_never_gives_way_is_ended_by_force(bench: Any) -> None:
    bench.input()
    bench.cancel_timeout_s = 5.0

    def on_open(self: Any) -> None:
        self.context.spawn(swallow_everything(), name="x")

    bench.logged("a", open=on_open)
    task = bench.start()
    await bench.settle()
    task.cancel()
    error = await bench.end()
    assert isinstance(error, CancelTimeoutError)
    line = swallow_everything.__code__.co_firstlineno + 3
    assert f"{__file__}:{line}" in str(error)
    assert task.lifecycle.state is TaskState.FAILED
    await bench.settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


EXITS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", EXITS)
async def test_whatever_a_close_hook_raises_all_is_closed_and_the_task_ends(
    bench: Any, kind: type[BaseException], is_async: bool
) -> None:
    (producer,) = bench.input()

    def leave(self: Any) -> Any:
        if not is_async:
            raise kind

        async def later() -> None:
            await asyncio.sleep(1)
            raise kind

        return later()

    bench.logged("a")
    bench.logged("b", close=leave)
    bench.logged("c", close=leave)
    bench.output()
    raised: list[BaseException] = []

    async def run() -> None:
        try:
            await task.run()
        except BaseException as error:
            raised.append(error)

    task = bench.build()
    bench.runner = asyncio.get_running_loop().create_task(run())
    producer.send(1)
    producer.end()
    assert await bench.end() is None
    (error,) = raised
    cause = error if isinstance(error, kind) else error.__cause__
    assert isinstance(cause, kind)
    assert any("in close() of operator 'c'" in note for note in error.__notes__)
    assert bench.log[-3:] == ["c.close", "b.close", "a.close"]
    assert task.lifecycle.state is TaskState.FAILED
    assert bench.gates[0].is_closed
    assert not task.processor.mailbox.is_open


async def test_cancelled_by_a_function_of_its_own(bench: Any) -> None:
    (producer,) = bench.input()

    async def slowly(self: Any) -> None:
        await asyncio.sleep(5)
        self.log.append("a closed")

    def call(self: Any, run: Any) -> None:
        bench.task.cancel()

    bench.logged("a", run=call, close=slowly)
    bench.output()
    bench.start()
    producer.send(1)
    assert await cancelled(bench)
    assert bench.log[-1] == "a closed"


async def test_a_function_that_swallows_its_interrupt_does_not_go_on_for_ever(
    bench: Any,
) -> None:
    (producer,) = bench.input()

    async def call(self: Any, run: Any) -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            self.log.append("swallowed")

    bench.logged("a", run=call)
    task = bench.start()
    producer.send(1)
    producer.send(2)
    await bench.settle()
    task.cancel()
    assert await cancelled(bench)
    assert bench.log == ["a.open", "swallowed", "a.close"]


@pytest.mark.parametrize("phase", ["open", "run", "end_input", "finish", "close"])
async def test_a_foreign_cancellation_is_a_failure(bench: Any, phase: str) -> None:
    """D13: awaiting what somebody else cancelled does not look like a clean end."""
    (producer,) = bench.input()

    async def call(*_: Any) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    bench.logged("a", **{phase: call})
    bench.logged("b")
    bench.output()
    task = bench.start()
    producer.send(1)
    producer.end()
    error = await bench.end()
    assert isinstance(error, MailFailedError | UserFunctionError)
    assert isinstance(error.__cause__, asyncio.CancelledError)
    assert task.lifecycle.state is TaskState.FAILED
    assert bench.log[-2:] == ["b.close", "a.close"]


@pytest.mark.parametrize("phase", ["open", "run", "finish"])
async def test_stop_task_ends_the_task_as_cancelled(bench: Any, phase: str) -> None:
    """MB-80."""
    (producer,) = bench.input()

    def stop(*_: Any) -> None:
        raise StopTask("enough")

    bench.logged("a", **{phase: stop})
    bench.start()
    producer.send(1)
    producer.end()
    assert await cancelled(bench)
    assert bench.log[-1] == "a.close"


async def test_a_failing_helper_fails_the_task(bench: Any) -> None:
    """MB-46: nothing is wrapped around the error, and it keeps its cause."""
    bench.input()

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("helper") from KeyError("cause")

    bench.logged("a", open=lambda self: self.context.spawn(fail(), name="x") and None)
    task = bench.start()
    error = await bench.end()
    assert repr(error) == "ValueError('helper')"
    assert repr(error.__cause__) == "KeyError('cause')"
    assert task.lifecycle.state is TaskState.FAILED


async def test_a_failing_helper_interrupts_a_function_that_awaits(bench: Any) -> None:
    (producer,) = bench.input()

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("helper")

    def on_open(self: Any) -> None:
        self.context.spawn(fail(), name="x")

    bench.logged("a", open=on_open, run=forever)
    task = bench.start()
    producer.send(1)
    error = await asyncio.wait_for(bench.end(), 10)
    assert repr(error) == "ValueError('helper')"
    assert task.lifecycle.state is TaskState.FAILED
    assert not bench.runner.cancelling()


async def test_a_helper_that_fails_during_open_interrupts_it(bench: Any) -> None:
    """MB-45."""
    bench.input()

    async def fail() -> None:
        raise ValueError("helper")

    def on_open(self: Any) -> Any:
        self.context.spawn(fail(), name="x")
        return forever()

    bench.logged("a", open=on_open)
    task = bench.start()
    assert repr(await asyncio.wait_for(bench.end(), 10)) == "ValueError('helper')"
    assert task.lifecycle.state is TaskState.FAILED


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_failing_timer_fails_the_task(bench: Any, is_async: bool) -> None:
    bench.input()

    def fail(_: int) -> Any:
        if is_async:
            return later()
        raise ValueError("timer")

    async def later() -> None:
        await asyncio.sleep(0)
        raise ValueError("timer")

    def on_open(self: Any) -> None:
        time = self.context.processing_time
        time.register_timer(time.current_processing_time() + 10, fail)

    bench.logged("a", open=on_open)
    task = bench.start()
    assert repr(await bench.end()) == "ValueError('timer')"
    assert task.lifecycle.state is TaskState.FAILED
    assert bench.log[-1] == "a.close"


async def test_a_failing_timer_interrupts_a_yield_around_it(bench: Any) -> None:
    (producer,) = bench.input()

    def fail(_: int) -> Any:
        raise ValueError("timer")

    async def wait(self: Any, run: Any) -> None:
        time = self.context.processing_time
        time.register_timer(time.current_processing_time() + 10, fail)
        await self.context.mailbox.yield_until(
            asyncio.get_running_loop().create_future()
        )

    bench.logged("a", run=wait)
    bench.start()
    producer.send(1)
    assert repr(await asyncio.wait_for(bench.end(), 10)) == "ValueError('timer')"


async def test_timers_stop_when_the_task_is_cancelled(bench: Any) -> None:
    """MB-82: exactly ten of a hundred due timers fire."""
    bench.input()
    fired: list[int] = []

    def fire(timestamp: int) -> None:
        fired.append(timestamp)
        if len(fired) == 10:
            bench.task.cancel()

    def on_open(self: Any) -> None:
        for number in range(100):
            self.context.processing_time.register_timer(number, fire)

    bench.logged("a", open=on_open)
    bench.start()
    assert await cancelled(bench)
    assert len(fired) == 10


async def test_no_timer_of_a_task_that_ends_meets_a_mailbox_that_takes_no_mail(
    bench: Any,
) -> None:
    """MB-69."""
    (producer,) = bench.input()
    told: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    task = bench.build()

    def submit(_: int) -> None:
        # Mail that takes longer than the timer waits: some is left for the very end.
        task.processor.main_executor.execute(asyncio.sleep, 0.005)

    bench.logged(
        "a", open=lambda _: task._timers.schedule_at_fixed_rate(submit, 1, 1) and None
    )
    bench.runner = loop.create_task(task.run())
    await asyncio.sleep(0.1)
    producer.end()
    assert await bench.end() is None
    assert task.processor.metrics.mails_processed > 10
    assert told == []


async def test_clean_up_that_hangs_is_given_up_and_frees_the_rest(bench: Any) -> None:
    (producer,) = bench.input()
    bench.cancel_timeout_s = 5.0
    bench.logged(
        "a", open=lambda self: self.context.spawn(forever(), name="x") and None
    )
    bench.logged("b", close=forever)
    bench.output()
    task = bench.start()
    producer.send(1)
    await bench.settle()
    start = asyncio.get_running_loop().time()
    task.cancel()
    error = await bench.end()
    assert isinstance(error, TimeoutError)
    assert "took longer than 5.0 s" in str(error)
    assert asyncio.get_running_loop().time() - start == 5.0
    assert task.lifecycle.state is TaskState.FAILED
    assert not task.processor.mailbox.is_open
    assert bench.gates[0].is_closed
    await bench.settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_asyncio_task_is_cancelled_by_others_and_cleans_up(
    bench: Any,
) -> None:
    """The loop goes down: nobody called cancel()."""
    bench.input()

    async def slowly(self: Any) -> None:
        await asyncio.sleep(1)
        self.log.append("a closed")

    bench.logged("a", close=slowly)
    bench.output()
    bench.start()
    await bench.settle()
    bench.runner.cancel()
    assert isinstance(await bench.end(), asyncio.CancelledError)
    assert bench.runner.cancelled()
    assert bench.log[-1] == "a closed"


async def test_whoever_insists_waits_until_clean_up_is_over_or_out_of_time(
    bench: Any,
) -> None:
    (producer,) = bench.input()
    bench.cancel_timeout_s = 5.0
    bench.logged("a")
    bench.logged("b", close=forever)
    bench.output()
    bench.start()
    producer.send(1)
    await bench.settle()
    start = asyncio.get_running_loop().time()
    for _ in range(3):
        bench.runner.cancel()
        await bench.settle()
    assert isinstance(await bench.end(), CancelTimeoutError)
    assert asyncio.get_running_loop().time() - start == 5.0
    assert bench.log[-2:] == ["b.close", "a.close"]
    assert bench.gates[0].is_closed
    assert not bench.task.processor.mailbox.is_open
    assert bench.task.lifecycle.state is TaskState.FAILED


async def test_all_is_closed_once_where_every_asyncio_task_is_cancelled_again(
    bench: Any,
) -> None:
    """As an event loop does that goes down, and somebody who cannot wait."""
    (producer,) = bench.input()

    async def slowly(self: Any) -> None:
        await asyncio.sleep(1)

    for name in "abc":
        bench.logged(name, close=slowly)
    task = bench.start()
    producer.send(1)
    await bench.settle()
    for _ in range(4):
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        await bench.settle()
    assert isinstance(await bench.end(), asyncio.CancelledError)
    assert bench.log[-3:] == ["c.close", "b.close", "a.close"]
    assert task.lifecycle.is_terminal


async def test_a_helper_that_fails_while_operators_close_is_not_lost(
    bench: Any,
) -> None:
    (producer,) = bench.input()

    async def slowly(self: Any) -> None:
        await asyncio.sleep(5)

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("helper")

    def on_open(self: Any) -> None:
        self.context.spawn(fail(), name="x")

    bench.logged("a", open=on_open, close=slowly)
    bench.start()
    producer.end()
    assert repr(await bench.end()) == "ValueError('helper')"


async def test_an_error_that_unwinding_raises_is_not_hidden(bench: Any) -> None:
    (producer,) = bench.input()

    async def call(self: Any, run: Any) -> None:
        try:
            await forever()
        finally:
            raise ValueError("unwinding")

    bench.logged("a", run=call)
    task = bench.start()
    producer.send(1)
    await bench.settle()
    task.cancel()
    assert repr(await bench.end()) == "ValueError('unwinding')"
    assert task.lifecycle.state is TaskState.FAILED
