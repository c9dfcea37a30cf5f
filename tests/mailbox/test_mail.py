"""Mail: what it says, what priority it has, how it is run and cancelled."""

from __future__ import annotations

import asyncio

import pytest

from aiomailbox.errors import InvalidArgumentError, MailFailedError, WrongTypeError
from aiomailbox.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions


class Untouchable:
    """An argument that must not be rendered."""

    def __str__(self) -> str:
        raise AssertionError("rendered too early")


class TestDescription:
    """MB-D1."""

    def test_is_not_rendered_until_somebody_asks(self) -> None:
        mail = Mail(int, description="with %s", description_args=(Untouchable(),))
        mail.run()
        with pytest.raises(AssertionError, match="too early"):
            str(mail)

    def test_shows_the_rendered_text(self) -> None:
        mail = Mail(int, description="timer %d of %s", description_args=(7, "map"))
        assert str(mail) == mail.description == "timer 7 of map"

    def test_without_one_shows_the_function(self) -> None:
        def wash() -> None: ...

        assert "wash" in str(Mail(wash))
        assert "wash" in repr(Mail(wash))

    def test_a_percent_sign_without_arguments_is_plain_text(self) -> None:
        assert str(Mail(int, description="100 %")) == "100 %"


class TestPriority:
    """MB-D2."""

    def test_deferrable_mail_counts_as_the_lowest_and_remembers_its_own(self) -> None:
        mail = Mail(int, priority=42, options=MailOptions.DEFERRABLE)
        assert (mail.priority, mail.declared_priority) == (MIN_PRIORITY, 42)

    @pytest.mark.parametrize("options", [MailOptions.DEFAULT, MailOptions.URGENT])
    def test_other_options_do_not_change_it(self, options: MailOptions) -> None:
        mail = Mail(int, priority=42, options=options)
        assert (mail.priority, mail.declared_priority) == (42, 42)

    @pytest.mark.parametrize("priority", [MIN_PRIORITY - 1, MAX_PRIORITY + 1])
    def test_out_of_range_is_refused_by_name(self, priority: int) -> None:
        with pytest.raises(InvalidArgumentError, match="priority"):
            Mail(int, priority=priority)


class TestRun:
    def test_calls_the_function_with_its_arguments_once(self) -> None:
        """MB-D4; there is no action executor to go through."""
        seen: list[object] = []
        assert Mail(seen.append, "x").run() is None
        assert seen == ["x"]

    async def test_returns_what_has_to_be_awaited(self) -> None:
        seen = []

        async def work(value: int) -> None:
            await asyncio.sleep(1)
            seen.append(value)

        pending = Mail(work, 3).run()
        assert pending is not None
        await pending
        assert seen == [3]

    def test_ignores_a_result_that_cannot_be_awaited(self) -> None:
        assert Mail(lambda: 5).run() is None

    def test_wraps_stop_iteration_which_no_coroutine_lets_through(self) -> None:
        def leak() -> None:
            next(iter(()))

        with pytest.raises(MailFailedError, match="leak") as caught:
            Mail(leak).run()
        assert isinstance(caught.value.__cause__, StopIteration)

    def test_a_coroutine_object_is_refused_and_closed(self) -> None:
        async def work() -> None: ...

        with pytest.raises(WrongTypeError, match="coroutine function"):
            Mail(work())  # type: ignore[arg-type]

    def test_what_cannot_be_called_is_refused(self) -> None:
        """MB-D4."""
        with pytest.raises(WrongTypeError, match="run"):
            Mail(None)  # type: ignore[arg-type]


class TestCancel:
    def test_of_a_plain_function_does_nothing(self) -> None:
        """MB-D3."""
        ran: list[int] = []
        Mail(lambda: ran.append(1)).cancel()
        assert ran == []

    def test_tells_whoever_waits(self) -> None:
        told: list[str] = []
        Mail(int, on_cancel=lambda: told.append("cancelled")).cancel()
        assert told == ["cancelled"]
