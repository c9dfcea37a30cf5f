"""What a user needs for a trigger or an evictor of their own is public."""

from __future__ import annotations

from typing import Any

import pytest

import aiomailbox as am
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.build import window_operator


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


class Remembers(am.Trigger):
    """Fires with the fifth record of a window; keeps the others in a list."""

    seen = am.ValueStateDescriptor("seen", list, default=[])

    def on_element(
        self, value: Any, timestamp: int | None, window: Any, context: Any
    ) -> am.TriggerResult:
        state = context.get_value(self.seen)
        seen = state.value()
        seen.append(value)
        state.update(seen)
        if value < 0:
            raise ValueError(value)
        full = len(state.value()) == 5
        return am.TriggerResult.FIRE if full else am.TriggerResult.CONTINUE


@pytest.mark.parametrize("on_error", [am.fail, am.skip], ids=["fail", "skip"])
def test_a_list_that_a_triggers_state_begins_with_belongs_to_one_window(
    on_error: Any,
) -> None:
    operator = window_operator(
        lambda value: abs(value) % 2,
        am.GlobalWindows.create(),
        aggregate=am.count(),
        trigger=Remembers(),
        on_error=on_error,
    )
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run(range(1, 9))
        assert harness.values == []
        if on_error is am.skip:
            harness.process_run([-9, -10])
        harness.process_run([9])
        assert harness.values == [5]
    assert Remembers.seen.default == []


def test_a_record_that_failed_leaves_no_state_of_a_trigger() -> None:
    operator = window_operator(
        lambda value: abs(value) % 2,
        am.GlobalWindows.create(),
        aggregate=am.count(),
        trigger=Remembers(),
        on_error=am.skip,
    )
    with OneInputHarness(operator, keyed=True) as harness:
        harness.process_run([-1, 2])
        assert harness.context.keyed_state.keys(Remembers.seen) == [0]


def test_a_life_of_state_is_described_with_public_names_only() -> None:
    life = am.StateTtlConfig(
        am.seconds(60),
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
