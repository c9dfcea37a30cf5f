"""The mailbox of a task, law by law, from every origin."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from aiomailbox.errors import MailboxClosedError, WrongTaskError, WrongTypeError
from aiomailbox.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from aiomailbox.mailbox.task_mailbox import TaskMailbox

MakeMail = Callable[..., Mail]
Owned = Callable[[], TaskMailbox]
From = Callable[[Callable[[], object]], Awaitable[None]]


def label(mail: Mail | None) -> str | None:
    return None if mail is None else str(mail)


def everything(mailbox: TaskMailbox, priority: int = MIN_PRIORITY) -> list[str]:
    taken = []
    while (mail := mailbox.try_take(priority)) is not None:
        taken.append(str(mail))
    return taken


class TestOrder:
    async def test_mail_comes_out_as_it_was_put(
        self, owned: Owned, a_mail: MakeMail, from_origin: From
    ) -> None:
        """MB-1."""
        mailbox = owned()
        assert not mailbox.has_mail
        for number in range(10):
            await from_origin(lambda number=number: mailbox.put(a_mail(number)))
            assert mailbox.has_mail
            assert mailbox.signal
        taken = []
        while mailbox.has_mail:
            taken.append(label(await mailbox.take(1)))
        assert taken == [str(number) for number in range(10)]
        assert not mailbox.signal

    async def test_priority_filters_and_urgency_places(
        self, owned: Owned, a_mail: MakeMail, urgent: MakeMail, from_origin: From
    ) -> None:
        """MB-9."""
        mailbox = owned()

        def put() -> None:
            mailbox.put(a_mail("C", 1))
            mailbox.put(a_mail("B", 2))
            mailbox.put(a_mail("D", 1))
            mailbox.put(urgent("A", 2))

        await from_origin(put)
        assert label(await mailbox.take(2)) == "A"
        assert label(await mailbox.take(2)) == "B"
        assert mailbox.try_take(2) is None
        assert everything(mailbox, 1) == ["C", "D"]
        assert not mailbox.has_mail

    async def test_priority_does_not_reorder_the_main_loop(
        self, owned: Owned, a_mail: MakeMail, urgent: MakeMail
    ) -> None:
        """MB-10."""
        mailbox = owned()
        for mail in (a_mail("C", 1), a_mail("B", 2), a_mail("D", 1), urgent("A", 2)):
            mailbox.put(mail)
        assert everything(mailbox, 0) == ["A", "C", "B", "D"]

    async def test_urgent_mails_keep_their_own_order(
        self, owned: Owned, a_mail: MakeMail, urgent: MakeMail, from_origin: From
    ) -> None:
        mailbox = owned()
        for mail in (a_mail("a"), urgent("U1"), a_mail("b"), urgent("U2")):
            await from_origin(lambda mail=mail: mailbox.put(mail))
        assert everything(mailbox) == ["U1", "U2", "a", "b"]

    async def test_only_a_take_that_ignores_deferrable_sees_deferrable_mail(
        self, owned: Owned, a_mail: MakeMail
    ) -> None:
        mailbox = owned()
        mailbox.put(a_mail("later", 42, options=MailOptions.DEFERRABLE))
        assert mailbox.try_take(42) is None
        assert mailbox.try_take(0) is None
        assert mailbox.try_take_ignoring_deferrable(43) is None
        assert label(mailbox.try_take_ignoring_deferrable(42)) == "later"


class TestBatch:
    async def test_takes_eat_the_batch_but_never_enlarge_it(
        self, owned: Owned, a_mail: MakeMail
    ) -> None:
        """MB-11."""
        mailbox = owned()
        for number in range(3):
            mailbox.put(a_mail(number))
        assert mailbox.create_batch()
        for number in range(3, 6):
            mailbox.put(a_mail(number))
        assert label(mailbox.try_take_from_batch()) == "0"
        assert label(mailbox.try_take(1)) == "1"
        assert label(await mailbox.take(1)) == "2"
        assert mailbox.try_take_from_batch() is None
        assert label(mailbox.try_take(1)) == "3"
        assert label(await mailbox.take(1)) == "4"
        assert [str(mail) for mail in mailbox.close()] == ["5"]

    async def test_drain_gives_the_batch_before_the_queue(
        self, owned: Owned, a_mail: MakeMail
    ) -> None:
        """MB-12."""
        mailbox = owned()
        mailbox.put(a_mail("A"))
        mailbox.create_batch()
        mailbox.put(a_mail("B"))
        assert [str(mail) for mail in mailbox.drain()] == ["A", "B"]
        assert not mailbox.signal
        assert mailbox.size() == 0

    async def test_a_take_passes_over_a_batch_of_too_low_priority(
        self, owned: Owned, a_mail: MakeMail
    ) -> None:
        """MB-13."""
        mailbox = owned()
        mailbox.put(a_mail("A", 1))
        mailbox.create_batch()
        mailbox.put(a_mail("B", 2))
        assert label(await mailbox.take(2)) == "B"
        assert label(mailbox.try_take_from_batch()) == "A"

    async def test_urgent_mail_cuts_into_a_running_batch(
        self, owned: Owned, a_mail: MakeMail, urgent: MakeMail, from_origin: From
    ) -> None:
        """MB-15."""
        mailbox = owned()
        mailbox.put(a_mail("A"))
        mailbox.put(a_mail("B"))
        mailbox.create_batch()
        assert label(mailbox.try_take_from_batch()) == "A"
        await from_origin(lambda: mailbox.put(urgent("C")))
        assert label(mailbox.try_take_from_batch()) == "C"
        assert label(mailbox.try_take_from_batch()) == "B"

    async def test_all_three_takes_agree_on_the_order(
        self, owned: Owned, a_mail: MakeMail, urgent: MakeMail, from_origin: From
    ) -> None:
        """MB-16."""
        mailbox = owned()

        async def put(*mails: Mail) -> None:
            for mail in mails:
                await from_origin(lambda mail=mail: mailbox.put(mail))

        await put(*(a_mail(number) for number in (1, 2, 3, 4)))
        mailbox.create_batch()
        assert label(mailbox.try_take_from_batch()) == "1"
        await put(urgent("A"), urgent("B"), urgent("C"))
        assert label(mailbox.try_take_from_batch()) == "A"
        assert label(mailbox.try_take()) == "B"
        assert label(await mailbox.take()) == "C"
        assert label(mailbox.try_take_from_batch()) == "2"
        await put(a_mail(5), a_mail(6), a_mail(7))
        assert label(mailbox.try_take_from_batch()) == "3"
        await put(urgent("D"), urgent("E"))
        mailbox.create_batch()
        await put(urgent("F"), urgent("G"))
        assert label(mailbox.try_take_from_batch()) == "D"
        assert label(mailbox.try_take()) == "E"
        assert label(await mailbox.take()) == "F"
        assert label(mailbox.try_take_from_batch()) == "G"
        assert everything(mailbox) == ["4", "5", "6", "7"]

    async def test_one_urgent_mail_at_a_time_is_taken_next_by_each_take(
        self, owned: Owned, a_mail: MakeMail, urgent: MakeMail, from_origin: From
    ) -> None:
        """MB-17."""
        mailbox = owned()
        for number in (1, 2, 3):
            mailbox.put(a_mail(number))
        assert mailbox.try_take_from_batch() is None
        mailbox.create_batch()
        assert label(mailbox.try_take_from_batch()) == "1"
        await from_origin(lambda: mailbox.put(urgent("A")))
        assert label(mailbox.try_take_from_batch()) == "A"
        await from_origin(lambda: mailbox.put(urgent("B")))
        assert label(mailbox.try_take()) == "B"
        await from_origin(lambda: mailbox.put(urgent("C")))
        assert label(await mailbox.take()) == "C"
        mailbox.put(a_mail(4))
        assert label(mailbox.try_take_from_batch()) == "2"
        assert label(mailbox.try_take_from_batch()) == "3"
        assert mailbox.try_take_from_batch() is None
        assert label(mailbox.try_take()) == "4"

    async def test_taking_from_the_batch_leaves_ordinary_mail_in_the_queue(
        self, owned: Owned, a_mail: MakeMail, urgent: MakeMail
    ) -> None:
        mailbox = owned()
        mailbox.put(urgent("U"))
        mailbox.put(a_mail("n"))
        assert label(mailbox.try_take_from_batch()) == "U"
        assert mailbox.try_take_from_batch() is None
        assert label(mailbox.try_take()) == "n"


class TestFlinksAnomalies:
    """What Flink's recorded cases pin down although it looks odd."""

    async def test_a_filtered_take_sees_newer_urgent_mail_first_behind_a_hidden_one(
        self, owned: Owned, urgent: MakeMail
    ) -> None:
        mailbox = owned()
        mailbox.put(urgent("trigger", MIN_PRIORITY))
        assert mailbox.try_take(5) is None
        mailbox.put(urgent("U2", MAX_PRIORITY))
        mailbox.put(urgent("U3", MAX_PRIORITY))
        assert label(mailbox.try_take(5)) == "U3"
        assert everything(mailbox) == ["trigger", "U2"]

    async def test_drain_gives_queued_urgent_mail_newest_first(
        self, owned: Owned, urgent: MakeMail, a_mail: MakeMail
    ) -> None:
        mailbox = owned()
        for mail in (urgent("U1"), a_mail("n"), urgent("U2")):
            mailbox.put(mail)
        assert [str(mail) for mail in mailbox.drain()] == ["U2", "U1", "n"]

    async def test_two_urgent_mails_that_wake_a_sleeper_keep_their_order(
        self, owned: Owned, urgent: MakeMail
    ) -> None:
        """Here Flink gives the newest first; nothing recorded says so, and we do not."""
        mailbox = owned()
        loop = asyncio.get_running_loop()
        loop.call_later(1, lambda: [mailbox.put(urgent(name)) for name in ("U1", "U2")])
        assert label(await mailbox.take()) == "U1"
        assert label(await mailbox.take()) == "U2"


class TestLife:
    async def test_quiesce_lets_what_is_inside_out(
        self, owned: Owned, a_mail: MakeMail, urgent: MakeMail, from_origin: From
    ) -> None:
        """MB-6."""
        mailbox = owned()
        mailbox.put(a_mail("1"))
        mailbox.put(a_mail("2"))
        mailbox.quiesce()
        for mail in (a_mail("x"), urgent("x")):
            with pytest.raises(MailboxClosedError):
                await from_origin(lambda mail=mail: mailbox.put(mail))
        assert label(await mailbox.take()) == "1"
        assert label(mailbox.try_take()) == "2"
        assert mailbox.try_take() is None

    async def test_an_urgent_put_into_the_own_batch_respects_quiesce(
        self, owned: Owned, a_mail: MakeMail, urgent: MakeMail
    ) -> None:
        mailbox = owned()
        mailbox.put(a_mail("1"))
        mailbox.create_batch()
        mailbox.quiesce()
        with pytest.raises(MailboxClosedError):
            mailbox.put(urgent("U"))
        assert mailbox.size() == 1

    async def test_close_refuses_everything(
        self, owned: Owned, a_mail: MakeMail, urgent: MakeMail, from_origin: From
    ) -> None:
        """MB-7."""
        mailbox = owned()
        mailbox.close()
        for mail in (a_mail("x"), urgent("x")):
            with pytest.raises(MailboxClosedError, match="closed"):
                await from_origin(lambda mail=mail: mailbox.put(mail))
        with pytest.raises(MailboxClosedError):
            mailbox.try_take()
        with pytest.raises(MailboxClosedError):
            await mailbox.take()

    def test_one_that_was_never_bound_can_be_closed(self, a_mail: MakeMail) -> None:
        mailbox = TaskMailbox()
        mailbox.put(a_mail("x"))
        assert [str(mail) for mail in mailbox.close()] == ["x"]

    @pytest.mark.real_time
    @pytest.mark.parametrize("end", ["quiesce", "close"])
    @pytest.mark.parametrize("is_urgent", [False, True])
    async def test_ending_stops_threads_that_put_for_ever(
        self,
        owned: Owned,
        a_mail: MakeMail,
        urgent: MakeMail,
        end: str,
        is_urgent: bool,
    ) -> None:
        """MB-4, MB-5."""
        mailbox = owned()
        started = threading.Barrier(5)
        has_ended = threading.Event()
        stopped: list[bool] = []

        def put_for_ever() -> None:
            mail = urgent("x") if is_urgent else a_mail("x")
            mailbox.put(mail)
            started.wait()
            with contextlib.suppress(MailboxClosedError):
                while not has_ended.is_set():
                    mailbox.put(mail)
                # It has ended by now, whoever had the processor until then.
                mailbox.put(mail)
                return
            stopped.append(True)

        threads = [threading.Thread(target=put_for_ever) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        getattr(mailbox, end)()
        has_ended.set()
        for thread in threads:
            thread.join()
        assert stopped == [True] * 4

    @pytest.mark.real_time
    async def test_run_exclusively_keeps_several_puts_together(
        self, owned: Owned, a_mail: MakeMail
    ) -> None:
        """MB-14."""
        mailbox = owned()
        inside = threading.Event()

        def put_ten() -> None:
            mailbox.put(a_mail(0))
            inside.set()
            for number in range(1, 10):
                # Time enough for the owner to come in between, were it let in.
                time.sleep(0.001)
                mailbox.put(a_mail(number))

        thread = threading.Thread(target=mailbox.run_exclusively, args=(put_ten,))
        thread.start()
        inside.wait()
        dropped = mailbox.close()
        thread.join()
        assert len(dropped) == 10

    async def test_run_exclusively_refuses_to_hold_its_lock_across_an_await(
        self, owned: Owned
    ) -> None:
        with pytest.raises(WrongTypeError, match="await"):
            owned().run_exclusively(lambda: asyncio.sleep(1))


class TestOwnership:
    @pytest.mark.parametrize(
        "operation",
        [
            lambda box: box.try_take(),
            lambda box: box.try_take_from_batch(),
            lambda box: box.try_take_ignoring_deferrable(0),
            lambda box: box.create_batch(),
            lambda box: box.has_mail,
            lambda box: box.drain(),
            lambda box: box.quiesce(),
            lambda box: box.close(),
        ],
    )
    async def test_what_belongs_to_the_owner_is_refused_to_others(
        self,
        owned: Owned,
        a_mail: MakeMail,
        from_outside: From,
        operation: Callable[[TaskMailbox], object],
    ) -> None:
        mailbox = owned()
        mailbox.put(a_mail("kept"))
        with pytest.raises(WrongTaskError, match="execute"):
            await from_outside(lambda: operation(mailbox))
        assert label(mailbox.try_take()) == "kept"

    async def test_a_foreign_task_cannot_wait(self, owned: Owned) -> None:
        mailbox = owned()
        with pytest.raises(WrongTaskError):
            await asyncio.create_task(mailbox.take())
        with pytest.raises(WrongTaskError):
            await asyncio.create_task(mailbox.wait_for_mail())

    async def test_a_living_owner_cannot_be_replaced(self, owned: Owned) -> None:
        mailbox = owned()
        mailbox.bind_owner()

        async def steal() -> None:
            mailbox.bind_owner()

        with pytest.raises(WrongTaskError, match="bind_owner"):
            await asyncio.create_task(steal())

    async def test_who_cleans_up_after_a_dead_owner_may_close(
        self, a_mail: MakeMail
    ) -> None:
        mailbox = TaskMailbox()
        mailbox.put(a_mail("left"))

        async def own() -> None:
            mailbox.bind_owner()

        await asyncio.create_task(own())
        assert [str(mail) for mail in mailbox.close()] == ["left"]

    async def test_an_owner_can_be_given_when_it_is_made(self) -> None:
        mailbox = TaskMailbox(asyncio.current_task())
        with pytest.raises(WrongTaskError):
            await asyncio.create_task(mailbox.take())


class TestWaiting:
    @pytest.mark.parametrize("in_thread", [False, True])
    @pytest.mark.real_time
    async def test_a_put_from_outside_wakes_a_sleeping_take(
        self, owned: Owned, a_mail: MakeMail, in_thread: bool
    ) -> None:
        mailbox = owned()
        loop = asyncio.get_running_loop()
        if in_thread:
            thread = threading.Timer(0.01, mailbox.put, args=(a_mail("x"),))
            thread.start()
        else:
            loop.call_later(0.001, mailbox.put, a_mail("x"))
        assert label(await mailbox.take()) == "x"

    async def test_mail_that_is_not_eligible_does_not_wake(
        self, owned: Owned, a_mail: MakeMail
    ) -> None:
        mailbox = owned()
        loop = asyncio.get_running_loop()
        looks: list[bool] = []

        def low() -> None:
            mailbox.put(a_mail("low", 1))
            mailbox.put(a_mail("later", 9, options=MailOptions.DEFERRABLE))
            looks.append(mailbox.statistics().parked)

        loop.call_later(1, low)
        loop.call_later(2, lambda: mailbox.put(a_mail("high", 5)))
        assert label(await mailbox.take(5)) == "high"
        assert looks == [True]
        assert everything(mailbox) == ["low", "later"]

    async def test_a_wait_that_ignores_deferrable_is_woken_by_deferrable_mail(
        self, owned: Owned, a_mail: MakeMail
    ) -> None:
        mailbox = owned()
        deferrable = a_mail("later", 9, options=MailOptions.DEFERRABLE)
        asyncio.get_running_loop().call_later(1, mailbox.put, deferrable)
        await mailbox.wait_for_mail(9, ignore_deferrable=True)
        assert label(mailbox.try_take_ignoring_deferrable(9)) == "later"

    async def test_wake_ends_a_wait_and_is_not_lost_before_it(
        self, owned: Owned
    ) -> None:
        mailbox, loop = owned(), asyncio.get_running_loop()
        began = loop.time()
        loop.call_later(1, mailbox.wake)
        await mailbox.wait_for_mail()
        mailbox.wake()
        await mailbox.wait_for_mail()
        assert loop.time() - began == 1

    async def test_a_wait_ends_with_its_future_and_leaves_no_callback(
        self, owned: Owned, a_mail: MakeMail
    ) -> None:
        mailbox = owned()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        for _ in range(100):
            mailbox.put(a_mail("x"))
            await mailbox.wait_for_mail(until=future)
            mailbox.try_take()
        for _ in range(100):
            loop.call_later(1, mailbox.wake)
            await mailbox.wait_for_mail(until=future)
        assert not future._callbacks  # type: ignore[attr-defined]
        loop.call_later(1, future.set_result, None)
        await mailbox.wait_for_mail(until=future)
        assert future.done()

    async def test_cancelling_a_take_loses_no_mail(self, a_mail: MakeMail) -> None:
        mailbox = TaskMailbox()

        async def own() -> None:
            mailbox.bind_owner()
            await mailbox.take()

        task = asyncio.create_task(own())
        await asyncio.sleep(1)
        assert mailbox.statistics().parked
        mailbox.put(a_mail("kept"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not mailbox.statistics().parked
        assert label(mailbox.try_take()) == "kept"

    async def test_two_frames_cannot_wait_at_once(self) -> None:
        mailbox = TaskMailbox()
        first = asyncio.create_task(mailbox.take())
        await asyncio.sleep(1)
        with pytest.raises(AssertionError, match="two frames"):
            await mailbox.take()
        first.cancel()

    def test_a_put_for_a_sleeper_whose_loop_is_closed_is_refused(
        self, a_mail: MakeMail
    ) -> None:
        mailbox = TaskMailbox()
        loop = asyncio.new_event_loop()
        task = loop.create_task(mailbox.take())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        with pytest.raises(MailboxClosedError, match="loop is closed"):
            mailbox.put(a_mail("x"))
        assert mailbox.size() == 0
        task.get_coro().close()  # type: ignore[union-attr]
        task._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.real_time
@pytest.mark.parametrize("blocking", [True, False])
async def test_no_mail_of_many_threads_is_lost_and_each_threads_order_is_kept(
    owned: Owned, blocking: bool
) -> None:
    """MB-2, MB-3."""
    mailbox = owned()
    threads_count, mails_count = 6, 500
    seen: list[list[int]] = [[] for _ in range(threads_count)]
    running = True

    def stop() -> None:
        nonlocal running
        running = False

    def work(thread: int) -> None:
        for number in range(mails_count):
            mailbox.put(Mail(seen[thread].append, number))

    threads = [
        threading.Thread(target=work, args=(number,)) for number in range(threads_count)
    ]
    for thread in threads:
        thread.start()
    closer = threading.Thread(
        target=lambda: [*(thread.join() for thread in threads), mailbox.put(Mail(stop))]
    )
    closer.start()
    while running:
        mail = await mailbox.take() if blocking else mailbox.try_take()
        if mail is not None:
            mail.run()
        else:
            await asyncio.sleep(0)
    closer.join()
    assert seen == [list(range(mails_count))] * threads_count


def test_repr_and_statistics_say_what_is_inside(a_mail: MakeMail) -> None:
    mailbox = TaskMailbox(name="map-0")
    mailbox.put(a_mail(1))
    mailbox.put(a_mail(2))
    mailbox.create_batch()
    mailbox.put(a_mail(3))
    assert repr(mailbox) == "<TaskMailbox 'map-0' open: 1 queued, 2 batched>"
    look = mailbox.statistics()
    assert (look.queued, look.batched, look.parked) == (1, 2, False)
    assert repr(TaskMailbox()) == "<TaskMailbox open: 0 queued, 0 batched>"


def test_nothing_needs_a_task_to_bind_to() -> None:
    with pytest.raises(Exception, match="none is running"):
        TaskMailbox().bind_owner()
