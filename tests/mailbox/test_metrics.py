"""What a mailbox loop measures about itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.mailbox.control import MailboxController, Suspension
from aiomailbox.mailbox.metrics import MailboxMetrics, PeriodMeter
from aiomailbox.mailbox.processor import MailboxProcessor
from aiomailbox.mailbox.task_mailbox import TaskMailbox


def idle(controller: MailboxController) -> None:
    controller.suspend_default_action()


class TestPeriodMeter:
    def test_adds_up_the_pieces_and_the_current_one(self, clock: Any) -> None:
        meter = PeriodMeter(clock)
        meter.mark_start()
        clock.seconds += 2
        meter.mark_end()
        clock.seconds += 100
        meter.mark_start()
        clock.seconds += 1
        assert meter.total_ms() == pytest.approx(3000)

    def test_a_mark_twice_counts_once(self, clock: Any) -> None:
        meter = PeriodMeter(clock)
        meter.mark_end()
        meter.mark_start()
        clock.seconds += 1
        meter.mark_start()
        meter.mark_end()
        meter.mark_end()
        assert meter.total_ms() == pytest.approx(1000)


async def test_idle_time_is_what_is_left_outside_of_mail() -> None:
    tokens: list[Suspension] = []

    def action(controller: MailboxController) -> None:
        if tokens:
            controller.all_actions_completed()
        else:
            idle_meter = processor.metrics.idle
            tokens.append(controller.suspend_default_action(idle_meter))

    processor = MailboxProcessor(action)
    loop = asyncio.get_running_loop()
    loop.call_later(3, processor.main_executor.execute, asyncio.sleep, 10)
    loop.call_later(15, lambda: tokens[0].resume())
    await processor.run_mailbox_loop()
    assert processor.metrics.idle.total_ms() == pytest.approx(5000)
    assert processor.metrics.backpressured.total_ms() == 0


class TestLatency:
    async def test_is_not_measured_until_some_mail_has_run(self) -> None:
        processor = MailboxProcessor(idle)
        processor.set_up_latency_measurement(1000)
        asyncio.get_running_loop().call_later(10, processor.suspend)
        await processor.run_mailbox_loop()
        latency = processor.metrics.latency
        assert latency is not None
        assert not latency.started
        assert processor.metrics.mails_processed == 1

    async def test_is_how_long_mail_waits_behind_other_mail(self) -> None:
        """MB-76."""
        processor = MailboxProcessor(idle)
        processor.set_up_latency_measurement(1000)
        processor.mailbox.bind_owner()
        latency = processor.metrics.latency
        assert latency is not None
        latency.start()
        for _ in range(10):
            processor.main_executor.execute(asyncio.sleep, 0.005)
        await processor.run_mailbox_step()
        latency.stop()
        latency._send()
        assert processor.mailbox.size() == 11
        await processor.drain()
        latency.stop()
        assert processor.mailbox.size() == 0
        assert latency.waited_ms.count == 2
        assert latency.waited_ms.maximum == pytest.approx(50)

    async def test_sends_the_next_probe_an_interval_after_the_last_was_taken(
        self,
    ) -> None:
        """MB-75."""
        processor = MailboxProcessor(idle)
        processor.set_up_latency_measurement(1000)
        processor.main_executor.execute(int)
        assert processor.mailbox.size() == 1
        asyncio.get_running_loop().call_later(5.5, processor.all_actions_completed)
        await processor.run_mailbox_loop()
        latency = processor.metrics.latency
        assert latency is not None
        assert latency.waited_ms.count == 6
        assert processor.mailbox.size() == 0
        processor.close()
        await asyncio.sleep(10)
        assert latency.waited_ms.count == 6

    async def test_a_closed_mailbox_ends_it(self) -> None:
        processor = MailboxProcessor(idle)
        processor.set_up_latency_measurement(1000)
        processor.mailbox.close()
        assert processor.metrics.latency is not None
        processor.metrics.latency.start()
        assert processor.mailbox.size() == 0

    def test_is_set_up_and_started_once(self) -> None:
        processor = MailboxProcessor(idle)
        with pytest.raises(InvalidArgumentError, match="interval_ms"):
            processor.set_up_latency_measurement(0)
        processor.set_up_latency_measurement()
        with pytest.raises(IllegalStateError, match="already"):
            processor.set_up_latency_measurement()

    async def test_is_started_once(self) -> None:
        processor = MailboxProcessor(idle)
        processor.set_up_latency_measurement()
        latency = processor.metrics.latency
        assert latency is not None
        latency.start()
        with pytest.raises(IllegalStateError, match="already"):
            latency.start()


@pytest.mark.parametrize("name", ["mails_processed", "resumed", "changes"])
def test_whatever_may_change_a_state_is_a_step_but_mail_that_says_it_does_not(
    name: str, clock: Any
) -> None:
    metrics = MailboxMetrics(TaskMailbox(), clock)
    before = metrics.steps
    setattr(metrics, name, getattr(metrics, name) + 1)
    assert metrics.steps == before + 1
    metrics.mails_disregarded += 1
    assert metrics.steps == before
