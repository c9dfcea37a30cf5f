"""What a user needs for a trigger or an evictor of their own is public."""

from __future__ import annotations

from typing import Any

import pytest

import aiomailbox as am


class OnStop(am.Trigger):
    """Fires and purges when a record says so."""

    def on_element(
        self, value: Any, timestamp: int | None, window: Any, context: Any
    ) -> am.TriggerResult:
        if value == "stop":
            return am.TriggerResult.FIRE_AND_PURGE
        return am.TriggerResult.CONTINUE


async def test_a_trigger_of_the_users_own_decides_when_windows_fire() -> None:
    words = ["a", "b", "stop", "c", "stop", "d"]
    stream = am.StreamExecutionEnvironment().from_collection(words)
    windows = stream.key_by(lambda _: "all").window(am.GlobalWindows.create())
    counts = windows.trigger(OnStop()).aggregate(am.count())
    assert await counts.collect() == [3, 2]


def test_a_life_of_state_is_described_with_public_names_only() -> None:
    life = am.StateTtlConfig(
        60,
        update=am.TtlUpdate.ON_READ_AND_WRITE,
        visibility=am.StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP,
    )
    assert life.ttl_ms == 60_000
    assert issubclass(am.CountEvictor, am.Evictor)


def test_a_trigger_that_would_have_to_be_awaited_is_refused() -> None:
    class Waits(am.Trigger):
        async def on_element(  # type: ignore[override]
            self, value: Any, timestamp: int | None, window: Any, context: Any
        ) -> am.TriggerResult:
            return am.TriggerResult.FIRE

    stream = am.StreamExecutionEnvironment().from_collection([1]).key_by(str)
    with pytest.raises(TypeError, match=r"trigger: on_element of .* is async"):
        stream.window(am.GlobalWindows.create()).trigger(Waits())
