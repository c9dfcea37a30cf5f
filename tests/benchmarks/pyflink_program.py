"""Nexmark q1, q2, q5, q7 and q8 as PyFlink jobs: run by an interpreter that has it.

Called with a file of events, a query, a number of rounds and how late events may be in
milliseconds; prints the rows of one run if there are no rounds, and else the seconds and
the number of results of each round, after one that warms the JVM up.

Execution is in threads, parallelism is 1. Events are in the memory of the operator that
filters them, and a source in Java only counts, so that no event crosses from Java into
Python: this is kind to PyFlink. The clock runs from the first event to the end of the
last operator.
"""

# This is for an interpreter of its own, whose packages the type checker does not see.
# mypy: ignore-errors

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Duration, Types, WatermarkStrategy
from pyflink.common.time import Time
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.functions import (
    AggregateFunction,
    FlatMapFunction,
    MapFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
)
from pyflink.datastream.window import (
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from pyflink.java_gateway import get_gateway

SIZE_MS, SLIDE_MS = 10_000, 2_000
LONG, DOUBLE, STRING = Types.LONG(), Types.DOUBLE(), Types.STRING()


class Events(FlatMapFunction):
    """Makes rows of the events whose numbers come, and notes when the first came."""

    def __init__(self, path: str, make: Any, notes: str) -> None:
        self.path, self.make, self.notes = path, make, notes

    def open(self, runtime_context: Any) -> None:
        self.events = json.loads(Path(self.path).read_text())
        self.began = 0.0
        self.results = 0

    def flat_map(self, value: Any) -> Any:
        if not self.began:
            self.began = time.time()
        made = self.make(self.events[value])
        if made is not None:
            self.results += 1
            yield made

    def close(self) -> None:
        Path(self.notes, "events").write_text(
            json.dumps([self.began, time.time(), self.results])
        )


class Last(MapFunction):
    """Counts results and notes when they ended."""

    def __init__(self, notes: str) -> None:
        self.notes = notes

    def open(self, runtime_context: Any) -> None:
        self.results = 0

    def map(self, value: Any) -> Any:
        self.results += 1
        return value

    def close(self) -> None:
        Path(self.notes, "last").write_text(json.dumps([time.time(), self.results]))


class Millis(TimestampAssigner):
    """The last field is the event's time."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value[-1]


class Count(AggregateFunction):
    """Counts."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class WithEnd(ProcessWindowFunction):
    """Puts key and window beside a count."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        end = context.window().end
        for count in elements:
            yield key, count, end


class Most(ProcessAllWindowFunction):
    """Chooses the highest counts of a window."""

    def process(self, context: Any, elements: Any) -> Any:
        counts = list(elements)
        most = max(count[1] for count in counts)
        for count in counts:
            if count[1] == most:
                yield count


class Highest(AggregateFunction):
    """Keeps the bids with the highest price."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        if not accumulator or value[1] > accumulator[0][1]:
            return [tuple(value)]
        if value[1] == accumulator[0][1]:
            accumulator.append(tuple(value))
        return accumulator

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        return accumulator

    def merge(self, a: list[Any], b: list[Any]) -> list[Any]:
        for value in b:
            a = self.add(value, a)
        return a


class Rows(ProcessAllWindowFunction):
    """Makes rows of the highest bids."""

    def process(self, context: Any, elements: Any) -> Any:
        for found in elements:
            for auction, price, bidder, extra, at in found:
                yield auction, price, bidder, at, extra


class Sellers(ProcessWindowFunction):
    """Chooses persons who sold something."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        names, sold = [], False
        for _, kind, name, _ in elements:
            if kind == 0:
                names.append(name)
            else:
                sold = True
        if sold:
            for name in names:
                yield key, name, context.window().start


def euros(event: Any) -> Any:
    if event[0] != "bid":
        return None
    _, auction, bidder, price, _, _, at, extra = event
    return auction, bidder, 0.908 * price, at, extra


def selected(event: Any) -> Any:
    return (event[1], event[3]) if event[0] == "bid" and event[1] % 123 == 0 else None


def auction_of(event: Any) -> Any:
    return (event[1], event[6]) if event[0] == "bid" else None


def price_of(event: Any) -> Any:
    if event[0] != "bid":
        return None
    return event[1], event[3], event[2], event[7], event[6]


def person_or_seller(event: Any) -> Any:
    if event[0] == "person":
        return event[1], 0, event[2], event[7]
    return (event[8], 1, "", event[6]) if event[0] == "auction" else None


def timed(stream: Any, late_ms: int) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(
        Duration.of_millis(late_ms)
    )
    return stream.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(Millis())
    )


def q5(bids: Any) -> Any:
    windows = SlidingEventTimeWindows.of(
        Time.milliseconds(SIZE_MS), Time.milliseconds(SLIDE_MS)
    )
    rows = Types.TUPLE([LONG, LONG, LONG])
    counts = (
        bids.key_by(lambda bid: bid[0], key_type=LONG)
        .window(windows)
        .aggregate(Count(), WithEnd(), accumulator_type=Types.LONG(), output_type=rows)
    )
    ends = TumblingEventTimeWindows.of(Time.milliseconds(SLIDE_MS))
    return counts.window_all(ends).process(Most(), output_type=rows)


def q7(bids: Any) -> Any:
    windows = TumblingEventTimeWindows.of(Time.milliseconds(SIZE_MS))
    return bids.window_all(windows).aggregate(
        Highest(),
        Rows(),
        accumulator_type=Types.PICKLED_BYTE_ARRAY(),
        output_type=Types.TUPLE([LONG, LONG, LONG, LONG, STRING]),
    )


def q8(both: Any) -> Any:
    windows = TumblingEventTimeWindows.of(Time.milliseconds(SIZE_MS))
    return (
        both.key_by(lambda one: one[0], key_type=LONG)
        .window(windows)
        .process(Sellers(), output_type=Types.TUPLE([LONG, STRING, LONG]))
    )


# What is made of an event, its type, and what follows.
QUERIES = {
    "q1": (euros, [LONG, LONG, DOUBLE, LONG, STRING], None),
    "q2": (selected, [LONG, LONG], None),
    "q5": (auction_of, [LONG, LONG], q5),
    "q7": (price_of, [LONG, LONG, LONG, STRING, LONG], q7),
    "q8": (person_or_seller, [LONG, LONG, STRING, LONG], q8),
}


def build(path: str, query: str, late_ms: int, notes: str) -> Any:
    settings = Configuration()
    settings.set_string("python.execution-mode", "thread")
    settings.set_string("python.executable", sys.executable)
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.set_parallelism(1)
    count = len(json.loads(Path(path).read_text()))
    numbers = env.from_source(
        NumberSequenceSource(0, count - 1),
        WatermarkStrategy.no_watermarks(),
        "numbers",
        LONG,
    )
    make, types, then = QUERIES[query]
    stream = numbers.flat_map(Events(path, make, notes), output_type=Types.TUPLE(types))
    return env, stream if then is None else then(timed(stream, late_ms))


def rows(path: str, query: str, late_ms: int, notes: str) -> list[Any]:
    _, stream = build(path, query, late_ms, notes)
    with stream.execute_and_collect() as results:
        return [list(result) for result in results]


def measure(path: str, query: str, late_ms: int, notes: str) -> tuple[float, int]:
    env, stream = build(path, query, late_ms, notes)
    ends = QUERIES[query][2] is not None
    if ends:
        stream = stream.map(Last(notes), output_type=stream.get_type())
    sink = "org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink"
    maker = get_gateway().jvm
    for name in sink.split("."):
        maker = getattr(maker, name)
    stream.sink_to(Sink(maker()))
    env.execute(query)
    began, ended, results = json.loads(Path(notes, "events").read_text())
    if ends:
        ended, results = json.loads(Path(notes, "last").read_text())
    return ended - began, results


def main(path: str, query: str, rounds: int, late_ms: int) -> None:
    with tempfile.TemporaryDirectory(prefix="pyflink-") as notes:
        if not rounds:
            print(json.dumps(rows(path, query, late_ms, notes)))
            return
        times = [measure(path, query, late_ms, notes) for _ in range(rounds + 1)]
        print(json.dumps(times[1:]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
