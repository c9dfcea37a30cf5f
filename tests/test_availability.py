"""The latch that says when waiting is over."""

from __future__ import annotations

import asyncio

from aiomailbox.availability import Availability, when_all_available


def test_a_new_one_is_unavailable_until_it_is_set() -> None:
    """NET-01: there is no shared sentinel; the flag is what hot paths read."""
    ready = Availability()
    assert not ready.available
    ready.set_available()
    assert ready.available
    assert Availability(available=True).available


def test_callbacks_find_it_available_already_and_run_once_in_order() -> None:
    """NET-02: waiters wake after the state has changed."""
    ready = Availability()
    seen: list[tuple[int, bool]] = []
    for number in range(3):
        ready.on_available(
            lambda number=number: seen.append((number, ready.available))  # type: ignore[misc]
        )
    ready.set_available()
    assert seen == [(0, True), (1, True), (2, True)]
    ready.reset()
    ready.set_available()
    assert len(seen) == 3


def test_setting_it_again_changes_nothing() -> None:
    """NET-03."""
    ready = Availability(available=True)
    ready.set_available()
    ready.set_available()
    called: list[int] = []
    ready.on_available(lambda: called.append(1))
    assert (ready.available, called) == (True, [1])


async def test_whoever_is_woken_looks_again_and_waits_on_if_it_was_too_late() -> None:
    ready = Availability()
    waiting = asyncio.get_running_loop().create_task(ready.wait())
    await asyncio.sleep(0)
    ready.set_available()
    ready.reset()
    await asyncio.sleep(1)
    assert not waiting.done()
    ready.set_available()
    await waiting


async def test_a_cancelled_waiter_leaves_nothing_and_harms_no_other() -> None:
    ready = Availability()
    one, other = ready.waiter(), ready.waiter()
    one.cancel()
    await asyncio.sleep(0)
    assert len(ready._callbacks) == 1
    ready.set_available()
    await other


def test_all_of_several_are_waited_for_whatever_comes_first() -> None:
    sources = [Availability(), Availability(available=True), Availability()]
    called: list[int] = []
    when_all_available(sources, lambda: called.append(1))
    sources[2].set_available()
    assert not called
    sources[0].set_available()
    assert called == [1]
