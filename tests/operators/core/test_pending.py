"""Laws of calls of which some leave something to be awaited."""

from __future__ import annotations

import asyncio

from aiomailbox.operators.core.operator import Pending, in_turn, then


class Steps(list[str]):
    """Notes steps, some at once and some later."""

    def now(self, name: str) -> None:
        self.append(name)

    async def later(self, name: str) -> None:
        self.append(f"{name} begins")
        await asyncio.sleep(0)
        self.append(f"{name} ends")

    def either(self, name: str, is_later: bool) -> Pending:
        return self.later(name) if is_later else self.now(name)


async def test_what_follows_begins_when_the_first_has_ended_and_is_awaited_too() -> (
    None
):
    steps = Steps()
    pending = then(steps.later("a"), steps.later, "b")
    assert pending is not None
    await pending
    assert steps == ["a begins", "a ends", "b begins", "b ends"]
    steps.clear()
    pending = then(steps.later("a"), steps.now, "b")
    assert pending is not None
    await pending
    assert steps == ["a begins", "a ends", "b"]


async def test_calls_in_turn_wait_for_those_before_and_for_nothing_else() -> None:
    steps = Steps()
    given = [("a", False), ("b", True), ("c", False), ("d", True)]
    pending = in_turn(steps.either, given)
    assert steps == ["a"]
    assert pending is not None
    await pending
    assert steps == ["a", "b begins", "b ends", "c", "d begins", "d ends"]
    steps.clear()
    assert in_turn(steps.either, given[:1]) is None
    assert steps == ["a"]
