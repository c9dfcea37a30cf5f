"""A day of events on virtual time: what comes out is what a batch job would say.

Sources are of different pace, fall silent, send in disorder and now and then very
late. No record may be lost or counted twice: what the windows counted and what the
side output of late records got is together what was sent.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

import aiomailbox as am

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WINDOW_MS = 15 * 60_000
GAP_MS = 20 * 60_000
DISORDER_S = 120
LATE = am.OutputTag("late")


class Event(NamedTuple):
    """Something that happened at ``at``, milliseconds into the day."""

    number: int
    key: str
    at: int
    amount: int


@dataclass(frozen=True)
class Device:
    """A source: when it sends what.

    Attributes:
        name: Which of the day's sources.
        pace_s: Seconds between its events, on average.
        silence: From which to which hour nothing happens.
        stragglers: The part of events that come hours late.
    """

    name: str
    pace_s: float
    silence: tuple[float, float] = (0, 0)
    stragglers: float = 0.02

    def schedule(self, seed: int) -> list[tuple[float, Event]]:
        """Return the events with the second at which they arrive, in that order."""
        rng = random.Random(f"{seed}/{self.name}")
        found: list[tuple[float, Event]] = []
        now_s = 0.0
        quiet_from, quiet_to = (hour * 3600 for hour in self.silence)
        while (now_s := now_s + rng.expovariate(1 / self.pace_s)) < DAY_MS / 1000:
            if quiet_from <= now_s < quiet_to:
                continue
            event = Event(
                len(found), rng.choice("abcdef"), int(now_s * 1000), rng.randrange(100)
            )
            delay_s = rng.uniform(0, DISORDER_S)
            if rng.random() < self.stragglers:
                delay_s = rng.uniform(600, 4 * 3600)
            # Nothing comes after the day: who has ended holds nobody back.
            found.append((min(now_s + delay_s, DAY_MS / 1000), event))
        return sorted(found)


DEVICES = [
    Device("steady", 40),
    Device("sleeps in the morning", 60, (3, 9.5)),
    Device("rare", 1500, stragglers=0),
    Device("silent all day", 90, (0.2, 23.9), stragglers=0.2),
]


def source(env: Any, schedule: list[tuple[float, Event]]) -> am.DataStream[Event]:
    """Make the stream of a device, which sleeps until each event arrives."""

    async def events() -> AsyncIterator[Event]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        for arrival_s, event in schedule:
            delay_s = started + arrival_s - loop.time()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            yield event

    strategy = (
        am.WatermarkStrategy.for_bounded_out_of_orderness(am.seconds(DISORDER_S))
        .with_timestamp_assigner("at")
        .with_idleness(am.minutes(5))
    )
    stream: am.DataStream[Event] = env.from_async_iterable(events, strategy)
    return stream


def tumbling_batch(events: list[Event]) -> dict[tuple[str, int], tuple[int, int]]:
    """Group by key and window, as a batch job does: ``(count, sum)``."""
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for event in events:
        groups[event.key, event.at - event.at % WINDOW_MS].append(event.amount)
    return {key: (len(found), sum(found)) for key, found in groups.items()}


def session_batch(events: list[Event]) -> set[tuple[str, int, int, int]]:
    """Group by key and session: ``(key, start, end, sum)``."""
    found: set[tuple[str, int, int, int]] = set()
    by_key: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.at):
        by_key[event.key].append(event)
    for key, of_key in by_key.items():
        start, last, total = of_key[0].at, of_key[0].at, 0
        for event in of_key:
            if event.at > last + GAP_MS:
                found.add((key, start, last + GAP_MS, total))
                start, total = event.at, 0
            last, total = event.at, total + event.amount
        found.add((key, start, last + GAP_MS, total))
    return found


def millis(time: Any) -> int:
    return round(time.timestamp() * 1000)


def streams(
    seed: int, parallelism: int = 1
) -> tuple[am.StreamExecutionEnvironment, Any, list[Event]]:
    env = am.StreamExecutionEnvironment(parallelism)
    schedules = [device.schedule(seed) for device in DEVICES]
    first, *others = [source(env, schedule) for schedule in schedules]
    sent = [event for schedule in schedules for _, event in schedule]
    return env, first.union(*others), sent


@pytest.mark.parametrize(
    ("seed", "parallelism"), [(1, 1), (2, 1), (1, 2), (2, 3)], ids=str
)
@pytest.mark.parametrize("lateness_s", [0, 3600])
async def test_a_day_of_windows_is_the_batch_answer(
    seed: int, parallelism: int, lateness_s: int
) -> None:
    env, events, sent = streams(seed, parallelism)
    windows = (
        events.key_by("key")
        .window(am.TumblingEventTimeWindows.of(am.seconds(WINDOW_MS / 1000)))
        .allowed_lateness(am.seconds(lateness_s))
        .side_output_late_data(LATE)
        .aggregate(am.aggregates(n=am.count(), total=am.sum_(int_amount)))
    )
    fired: list[Any] = []
    late: list[Event] = []
    windows.sink_to(fired.append)
    windows.get_side_output(LATE).sink_to(late.append)
    loop = asyncio.get_running_loop()
    started = loop.time()
    await env.execute("a day")
    assert loop.time() - started > DAY_MS / 1000 * 0.99
    # With lateness a window fires again; what it said last counts.
    last = {(row.key, millis(row.window_start)): (row.n, row.total) for row in fired}
    counted = Counter(sent)
    counted.subtract(Counter(late))
    assert min(counted.values()) >= 0
    assert last == tumbling_batch(list(counted.elements()))
    assert 0 < len(late) < len(sent) / 10
    assert len(fired) > len(last) if lateness_s else len(fired) == len(last)


@pytest.mark.parametrize("parallelism", [1, 4])
async def test_a_day_with_enough_lateness_has_no_late_record(parallelism: int) -> None:
    env, events, sent = streams(4, parallelism)
    windows = (
        events.key_by("key")
        .window(am.TumblingEventTimeWindows.of(am.seconds(WINDOW_MS / 1000)))
        .allowed_lateness(am.hours(5))
        .side_output_late_data(LATE)
        .aggregate(am.aggregates(n=am.count(), total=am.sum_(int_amount)))
    )
    fired: list[Any] = []
    late: list[Event] = []
    windows.sink_to(fired.append)
    windows.get_side_output(LATE).sink_to(late.append)
    await env.execute("a day")
    last = {(row.key, millis(row.window_start)): (row.n, row.total) for row in fired}
    assert (last, late) == (tumbling_batch(sent), [])


@pytest.mark.parametrize(("seed", "parallelism"), [(5, 1), (6, 3)])
async def test_a_day_of_sessions_is_the_batch_answer(
    seed: int, parallelism: int
) -> None:
    _, events, sent = streams(seed, parallelism)
    sessions = (
        events.key_by("key")
        .window(am.EventTimeSessionWindows.with_gap(am.seconds(GAP_MS / 1000)))
        .allowed_lateness(am.hours(30))
        .aggregate(am.aggregates(total=am.sum_(int_amount)))
    )
    # Sessions that were shorter when they fired were taken back by longer ones.
    longest: dict[tuple[str, int], tuple[int, int]] = {}
    for row in await sessions.collect():
        end = (row.key, millis(row.window_end))
        start, total = longest.get(end, (DAY_MS, 0))
        if (millis(row.window_start), -row.total) <= (start, -total):
            longest[end] = (millis(row.window_start), row.total)
    found = {(key, start, end, total) for (key, end), (start, total) in longest.items()}
    assert session_batch(sent) <= found


@pytest.mark.parametrize(("seed", "parallelism"), [(7, 1), (8, 2)])
async def test_a_day_of_running_sums_ends_with_the_sum_of_all(
    seed: int, parallelism: int
) -> None:
    env, events, sent = streams(seed, parallelism)
    totals: dict[str, int] = {}
    pairs = events.map(key_and_amount).key_by(first_of)
    sums = pairs.reduce(lambda one, two: (one[0], one[1] + two[1]))
    sums.sink_to(lambda pair: totals.__setitem__(*pair))
    await env.execute("a day")
    expected: Counter[str] = Counter()
    for event in sent:
        expected[event.key] += event.amount
    assert totals == expected


def int_amount(event: Event) -> int:
    return event.amount


def key_and_amount(event: Event) -> tuple[str, int]:
    return event.key, event.amount


def first_of(pair: tuple[str, int]) -> str:
    return pair[0]
