"""Laws of timers, in event time and in processing time."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from aiomailbox.errors import StateError
from aiomailbox.eventtime import timers as timer_queue
from aiomailbox.eventtime.manual_time import ManualProcessingTimeService
from aiomailbox.eventtime.timers import (
    InternalTimerService,
    LoadedTimers,
    Timer,
    TimerQueue,
    TimerSnapshot,
)
from aiomailbox.keygroups.assignment import KeyGroupRange, key_group
from aiomailbox.records.events import MIN_TIMESTAMP

Reaction = Callable[["Operator", Timer], Any]


class Operator:
    """A target that writes down what fires, and reacts."""

    def __init__(
        self,
        react: Reaction | None = None,
        max_parallelism: int = 128,
        owned: KeyGroupRange | None = None,
    ) -> None:
        self.key: Any = None
        self.fired: list[Any] = []
        self.react = react or (lambda operator, timer: None)
        self.time = ManualProcessingTimeService()
        owned = owned or KeyGroupRange(0, max_parallelism - 1)
        self.share = max_parallelism, owned
        self.timers = InternalTimerService(self, self, self.time, max_parallelism)

    def resume(self, snapshot: TimerSnapshot) -> None:
        loaded = LoadedTimers(*self.share)
        for _ in loaded.load(snapshot):
            pass
        self.timers.take_over(loaded)

    def set_current_key(self, key: Any) -> None:
        self.key = key

    def on_event_time(self, timer: Timer) -> Any:
        return self.note("event", timer)

    def on_processing_time(self, timer: Timer) -> Any:
        return self.note("processing", timer)

    def note(self, kind: str, timer: Timer) -> Any:
        assert self.key == timer.key
        self.fired.append((kind, *timer))
        return self.react(self, timer)

    @property
    def times(self) -> list[int]:
        return [timestamp for _, timestamp, _, _ in self.fired]

    @property
    def armed(self) -> list[int]:
        return self.time.active_timestamps()

    def event(self, *timestamps: int, key: Any = "k") -> None:
        for timestamp in timestamps:
            self.timers.register_event_time_timer(key, "n", timestamp)

    def processing(self, *timestamps: int, namespace: str = "ciao") -> None:
        for timestamp in timestamps:
            self.timers.register_processing_time_timer("k", namespace, timestamp)


def test_of_many_processing_timers_the_earliest_is_armed() -> None:
    """SEM-40."""
    operator = Operator()
    operator.processing(10, 20, 30)
    operator.processing(10, 20, namespace="hello")
    assert (operator.timers.processing_time_timer_count, operator.armed) == (5, [10])
    for time, left, armed in ((10, 3, [20]), (20, 1, [30]), (30, 0, [])):
        operator.time.set_current_time(time)
        assert operator.timers.processing_time_timer_count == left
        assert operator.armed == armed
    operator.processing(40)
    assert operator.armed == [40]


def test_an_earlier_processing_timer_is_armed_instead() -> None:
    """SEM-41."""
    operator = Operator()
    operator.processing(20, 10)
    assert operator.armed == [10]
    assert operator.timers.processing_time_timer_count == 2


def test_a_processing_timer_registered_by_a_callback_is_armed_once() -> None:
    """SEM-42."""

    def react(operator: Operator, timer: Timer) -> None:
        if timer.timestamp < 30:
            operator.processing(timer.timestamp + 10)

    operator = Operator(react)
    operator.processing(10)
    operator.time.set_current_time(10)
    assert operator.armed == [20]
    operator.time.set_current_time(20)
    assert operator.armed == [30]


def test_deleting_a_processing_timer_leaves_a_harmless_wake_up() -> None:
    operator = Operator()
    operator.processing(10, 20)
    operator.timers.delete_processing_time_timer("k", "ciao", 10)
    assert operator.armed == [10]
    operator.time.set_current_time(10)
    assert (operator.fired, operator.armed) == ([], [20])


@pytest.mark.parametrize("kind", ["event", "processing"])
def test_each_timer_fires_once_with_its_key(kind: str) -> None:
    """SEM-43, SEM-44, and the first half of SEM-45."""
    operator = Operator()
    register = getattr(operator.timers, f"register_{kind}_time_timer")
    expected = set()
    for key in ("k1", "k2"):
        for namespace in ("ciao", "hello"):
            register(key, namespace, 10)
            register(key, namespace, 10)
            expected.add((kind, 10, key, namespace))
    operator.timers.advance_watermark(10)
    operator.time.set_current_time(10)
    assert (len(operator.fired), set(operator.fired)) == (4, expected)
    assert operator.timers.event_time_timer_count == 0
    assert operator.timers.processing_time_timer_count == 0


def test_a_deleted_timer_does_not_fire() -> None:
    """The second half of SEM-45."""
    operator = Operator()
    operator.event(10, 10, 10)
    operator.timers.delete_event_time_timer("k", "n", 10)
    operator.timers.delete_event_time_timer("k", "n", 10)
    operator.timers.advance_watermark(10)
    assert operator.fired == []


def test_what_a_callback_registers_or_deletes_counts_in_the_same_advance() -> None:
    """SEM-46."""

    def react(operator: Operator, timer: Timer) -> None:
        if timer.timestamp == 10:
            operator.event(12, 9, 16)
            operator.timers.delete_event_time_timer("k", "n", 14)

    operator = Operator(react)
    operator.event(10, 14, 15)
    assert operator.timers.advance_watermark(15) is None
    assert operator.times == [10, 9, 12, 15]
    assert operator.timers.event_time_timer_count == 1


def test_a_callback_deletes_another_timer_of_the_same_time() -> None:
    def react(operator: Operator, timer: Timer) -> None:
        for key in "abc":
            if key != timer.key:
                operator.timers.delete_event_time_timer(key, "n", 10)

    operator = Operator(react)
    for key in "abc":
        operator.event(10, key=key)
    operator.timers.advance_watermark(10)
    assert (len(operator.fired), operator.timers.event_time_timer_count) == (1, 0)


def test_a_timer_in_the_past_waits_for_the_next_watermark() -> None:
    """SEM-47."""
    operator = Operator()
    operator.timers.advance_watermark(50)
    operator.event(40)
    assert operator.fired == []
    operator.timers.advance_watermark(51)
    assert operator.times == [40]


def test_the_watermark_is_set_before_timers_fire() -> None:
    seen = []
    operator = Operator(lambda op, _: seen.append(op.timers.current_watermark))
    operator.event(10)
    operator.timers.advance_watermark(15)
    assert seen == [15]


def test_timers_of_one_time_fire_in_the_order_they_were_registered() -> None:
    operator = Operator()
    for key in range(10):
        operator.event(10, key=key)
    operator.timers.advance_watermark(10)
    assert [key for _, _, key, _ in operator.fired] == list(range(10))


def filled(max_parallelism: int = 128) -> Operator:
    operator = Operator(max_parallelism=max_parallelism)
    timers = operator.timers
    timers.register_processing_time_timer("k1", "ciao", 10)
    timers.register_processing_time_timer("k2", "hello", 10)
    timers.register_event_time_timer("k1", "hello", 10)
    timers.register_event_time_timer("k2", "ciao", 10)
    return operator


def fire_all(operator: Operator) -> list[Any]:
    operator.time.set_current_time(10)
    operator.timers.advance_watermark(10)
    return sorted(operator.fired)


def test_restored_timers_fire_as_the_old_ones_would_have() -> None:
    """SEM-48."""
    old, new = filled(), Operator()
    new.resume(old.timers.snapshot())
    assert new.timers.current_watermark == MIN_TIMESTAMP
    assert fire_all(new) == fire_all(old)
    assert len(new.fired) == 4


def test_processing_timers_that_came_due_while_nothing_ran_fire_once() -> None:
    old = Operator()
    for timestamp, key in ((10, "a"), (20, "b"), (20, "c"), (500, "d")):
        old.timers.register_processing_time_timer(key, "n", timestamp)
    snapshot = old.timers.snapshot()
    new = Operator()
    # The program was away for a while.
    new.time.set_current_time(100)
    new.resume(snapshot)
    assert new.fired == [], "nothing fires before the operator runs"
    new.time.set_current_time(101)
    assert sorted(new.times) == [10, 20, 20]
    assert sorted(key for _, _, key, _ in new.fired) == ["a", "b", "c"]
    new.time.set_current_time(499)
    assert len(new.fired) == 3, "they have fired once"
    # And a snapshot of now has only what is left.
    (left,) = [
        row for rows in new.timers.snapshot().processing.values() for row in rows
    ]
    assert left == (500, "d", "n")
    new.time.set_current_time(501)
    assert new.times[-1] == 500


def test_a_snapshot_of_timers_is_a_cut_and_two_are_two() -> None:
    def rows(groups: Any) -> list[Any]:
        return sorted(row for group in groups.values() for row in group)

    def all_of(operator: Operator) -> list[Any]:
        return rows(operator.timers.snapshot().event)

    operator = Operator()
    taken: list[tuple[Any, list[Any]]] = []
    numbers = random.Random(7)
    for step in range(400):
        time, key = numbers.randrange(30) * 10, f"key {numbers.randrange(40)}"
        if numbers.random() < 0.6:
            operator.timers.register_event_time_timer(key, None, time)
        else:
            operator.timers.delete_event_time_timer(key, None, time)
        if step % 40 == 0:
            operator.timers.advance_watermark(step // 3)
        if step % 25 == 0:
            taken.append((operator.timers.snapshot(), all_of(operator)))
        if step % 60 == 0 and len(taken) > 2:
            taken.pop(numbers.randrange(len(taken)))
            operator.timers.settle(5)
        snapshot, expected = taken[numbers.randrange(len(taken))]
        assert rows(snapshot.event) == expected
    for snapshot, expected in taken:
        assert rows(snapshot.event) == expected
    del snapshot
    taken.clear()
    while operator.timers.has_snapshot:
        operator.timers.settle(10)
    assert operator.timers.event_time_timer_count == len(all_of(operator))


def test_the_watermark_is_not_part_of_a_snapshot() -> None:
    """SEM-51."""
    old, new = filled(), Operator()
    old.timers.advance_watermark(5)
    new.resume(old.timers.snapshot())
    assert new.timers.current_watermark == MIN_TIMESTAMP


@pytest.mark.parametrize("max_parallelism", [128, 10, 100, 6, 32_767])
def test_timers_follow_their_keys_when_the_range_is_split(max_parallelism: int) -> None:
    old = filled(max_parallelism)
    snapshot = min(key_group(key, max_parallelism) for key in ("k1", "k2"))
    found = []
    for owned in (
        KeyGroupRange(0, snapshot),
        KeyGroupRange(snapshot + 1, max_parallelism - 1),
    ):
        new = Operator(max_parallelism=max_parallelism, owned=owned)
        new.resume(old.timers.snapshot())
        for _, _, key, _ in fire_all(new):
            assert key_group(key, max_parallelism) in owned.key_groups
        found += new.fired
    assert sorted(found) == fire_all(old)


@pytest.mark.parametrize(
    ("start", "end", "max_parallelism"),
    [
        (0, 32_766, 32_767),
        (0, 10, 32_767),
        (0, 9, 10),
        (10, 32_766, 32_767),
        (2, 5, 100),
        (2, 5, 6),
    ],
)
def test_a_range_split_in_the_middle_splits_the_timers(
    start: int, end: int, max_parallelism: int
) -> None:
    """SEM-49."""
    middle = (start + end) // 2
    halves = [KeyGroupRange(start, middle), KeyGroupRange(middle + 1, end)]
    keys = [
        next(key for key in range(10**6) if key_group(key, max_parallelism) in groups)
        for groups in (half.key_groups for half in halves)
    ]
    whole = KeyGroupRange(start, end)
    old = Operator(max_parallelism=max_parallelism, owned=whole)
    for key in keys:
        old.timers.register_event_time_timer(key, "hello", 10)
        old.timers.register_processing_time_timer(key, "ciao", 10)
    for half, key in zip(halves, keys, strict=True):
        new = Operator(max_parallelism=max_parallelism, owned=half)
        new.resume(old.timers.snapshot())
        assert fire_all(new) == [
            ("event", 10, key, "hello"),
            ("processing", 10, key, "ciao"),
        ]


def test_timers_of_another_number_of_key_groups_are_refused() -> None:
    with pytest.raises(StateError, match=r"128.*256"):
        Operator(max_parallelism=256).resume(filled().timers.snapshot())


def test_a_closed_service_is_not_armed() -> None:
    operator = filled()
    operator.timers.close()
    operator.timers.close()
    assert operator.armed == []


async def test_callbacks_that_must_be_awaited_fire_one_after_the_other() -> None:
    log: list[Any] = []

    async def slowly(timer: Timer) -> None:
        log.append(("start", timer.timestamp))
        await asyncio.sleep(1)
        log.append(("end", timer.timestamp))

    def react(operator: Operator, timer: Timer) -> Any:
        return slowly(timer) if timer.timestamp % 20 else log.append(timer.timestamp)

    operator = Operator(react)
    operator.event(10, 20, 30)
    pending = operator.timers.advance_watermark(100)
    assert pending is not None
    await pending
    assert log == [("start", 10), ("end", 10), 20, ("start", 30), ("end", 30)]

    operator.processing(50, 70)
    await operator.time.advance_to(60)
    assert (log[-1], operator.armed) == (("end", 50), [70])


async def test_many_timers_whose_callbacks_are_awaited_do_not_nest() -> None:
    operator = Operator(lambda op, timer: asyncio.sleep(0))
    operator.event(*range(3000))
    pending = operator.timers.advance_watermark(3000)
    assert pending is not None
    await pending
    assert operator.times == list(range(3000))


def test_all_timers_that_are_due_by_now_fire_at_once() -> None:
    """Else a source could register them faster than one per turn of the event loop."""
    operator = Operator()
    armed: list[int] = []
    register = operator.time.register_timer
    operator.time.register_timer = (  # type: ignore[method-assign]
        lambda timestamp, callback: (
            armed.append(timestamp) or register(timestamp, callback)  # type: ignore[func-returns-value]
        )
    )
    operator.processing(*range(10, 60))
    operator.time.set_current_time(40)
    assert operator.times == list(range(10, 41))
    assert armed == [10, 40, 41]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "add", "discard", "pop"]),
            st.integers(0, 12),
            st.sampled_from("abc"),
            st.sampled_from([None, "n"]),
        ),
        max_size=80,
    )
)
def test_a_queue_is_a_set_that_knows_its_earliest(operations: list[Any]) -> None:
    queue, model = TimerQueue(), set()
    for operation, timestamp, key, namespace in operations:
        timer = Timer(timestamp, key, namespace)
        if operation == "add":
            assert queue.add(*timer) is (timer not in model)
            model.add(timer)
        elif operation == "discard":
            assert queue.discard(*timer) is (timer in model)
            model.discard(timer)
        else:
            popped = queue.pop_due(timestamp)
            due = [t for t in model if t.timestamp <= timestamp]
            assert (popped is None) is (not due)
            if popped is not None:
                assert popped.timestamp == min(t.timestamp for t in due)
                model.remove(popped)
        assert (len(queue), set(queue)) == (len(model), model)
        assert queue.head == min((t.timestamp for t in model), default=None)


@settings(max_examples=30)
@given(
    rounds=st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 1000), st.integers(0, 300)),
        max_size=6,
    ),
    seed=st.randoms(use_true_random=False),
)
def test_many_timers_come_out_in_order_whatever_comes_in_between(
    rounds: list[tuple[int, int, int]], seed: random.Random
) -> None:
    """Rounds of additions and removals, each followed by firings and a few more."""
    queue, model = TimerQueue(), set[Timer]()
    # Of the model, in order: its least one is asked for with each timer that fires.
    stamps: list[int] = []

    def add(timer: Timer) -> None:
        assert queue.add(*timer) is (timer not in model)
        if timer not in model:
            model.add(timer)
            insort(stamps, timer.timestamp)

    def remove(timer: Timer) -> None:
        model.remove(timer)
        del stamps[bisect_left(stamps, timer.timestamp)]

    for added, limit, removed in rounds:
        for _ in range(added):
            add(Timer(seed.randrange(1000), seed.choice("ab"), None))
        for timer in seed.sample(sorted(model), min(removed, len(model))):
            assert queue.discard(*timer)
            remove(timer)
        while (popped := queue.pop_due(limit)) is not None:
            assert popped.timestamp == stamps[0]
            remove(popped)
            if seed.random() < 0.1:
                add(Timer(popped.timestamp + seed.randrange(20), "c", None))
        assert (len(queue), set(queue)) == (len(model), model)
        assert queue.head == (stamps[0] if stamps else None)
        assert queue.head is None or queue.head > limit


def test_timers_that_come_and_go_leave_nothing_behind() -> None:
    queue = TimerQueue()
    for timestamp in range(10_000):
        queue.add(timestamp, "k", None)
        queue.discard(timestamp, "k", None)
    assert len(queue._heap) < 200
    for timestamp in range(10_000):
        queue.add(timestamp, "k", None)
    assert queue.pop_due(-1) is None
    for timestamp in range(10_000):
        queue.discard(timestamp, "k", None)
    assert len(queue._heap) + len(queue._sorted) < 200


@given(st.data())
def test_a_snapshot_in_the_middle_changes_nothing(data: Any) -> None:
    plain, moved = Operator(), Operator()
    steps = st.tuples(
        st.sampled_from(["event", "processing", "delete", "advance", "snapshot"]),
        st.sampled_from("abc"),
        st.integers(0, 40),
    )
    watermark = MIN_TIMESTAMP
    for step, key, time in data.draw(st.lists(steps, max_size=40)):
        if step == "snapshot":
            heir = Operator()
            heir.resume(moved.timers.snapshot())
            heir.fired = moved.fired
            moved = heir
            continue
        for operator in (plain, moved):
            if step == "advance":
                operator.timers.advance_watermark(max(watermark, time))
            elif step == "delete":
                operator.timers.delete_event_time_timer(key, "n", time)
            else:
                register = getattr(operator.timers, f"register_{step}_time_timer")
                register(key, "n", time)
        if step == "advance":
            watermark = max(watermark, time)
    for operator in (plain, moved):
        operator.timers.advance_watermark(100)
        operator.time.set_current_time(100)
    assert sorted(plain.fired) == sorted(moved.fired)


@pytest.mark.parametrize("sorted_max", [8, 40])
@pytest.mark.parametrize("seed", range(40))
def test_timers_in_several_sorted_lists_come_out_in_order(
    monkeypatch: pytest.MonkeyPatch, sorted_max: int, seed: int
) -> None:
    monkeypatch.setattr(timer_queue, "_SORTED_MAX", sorted_max)
    chance = random.Random(seed)
    queue, model = TimerQueue(), set[Timer]()
    for _ in range(8):
        for _ in range(chance.randrange(300)):
            timer = Timer(chance.randrange(1000), chance.choice("ab"), None)
            assert queue.add(*timer) is (timer not in model)
            model.add(timer)
        for timer in chance.sample(
            sorted(model), chance.randrange(len(model) // 2 + 1)
        ):
            assert queue.discard(*timer)
            model.discard(timer)
        limit = chance.randrange(1000)
        while (popped := queue.pop_due(limit)) is not None:
            assert popped.timestamp == min(timer.timestamp for timer in model)
            model.remove(popped)
            if chance.random() < 0.2:
                later = Timer(popped.timestamp + chance.randrange(20), "c", None)
                assert queue.add(*later) is (later not in model)
                model.add(later)
        assert (set(queue), len(queue)) == (model, len(model))
        assert queue.head == min((t.timestamp for t in model), default=None)


def test_no_sort_holds_the_event_loop() -> None:
    """Half a million timers in no order took 200 ms to sort, all at once."""
    queue = TimerQueue()
    chance = random.Random(1)
    for _ in range(50_000):
        queue.add(chance.randrange(10**9), "k", None)
    assert queue.pop_due(10**9) is not None
    lists = [queue._sorted, *(ordered for _, _, ordered in queue._waiting)]
    assert max(map(len, lists)) <= 2 * 8192
