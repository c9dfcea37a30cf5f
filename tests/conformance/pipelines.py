"""Builds the recorded pipelines with the public API, runs them, and compares.

A record is ``(key, number, text)``. What each function does is what the recorded one
did, down to how it prints a missing value.
"""

from __future__ import annotations

import asyncio
import json
import lzma
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import aiomailbox as am
from aiomailbox.records.events import MIN_TIMESTAMP

RECORDED = Path(__file__).parent / "recorded"

ms = am.millis
Record = tuple[str, int, str]
Row = list[Any]
Spec = dict[str, Any]


def recorded(name: str) -> list[dict[str, Any]]:
    """Return the cases of a file."""
    with lzma.open(RECORDED / f"{name}.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


_TAGS: dict[str, am.OutputTag] = {}


def tag(name: str) -> am.OutputTag:
    return _TAGS.setdefault(name, am.OutputTag(name))


def key_of(value: Record) -> str:
    return value[0]


def listed(values: Iterable[Any], *, is_sorted: bool = False) -> str:
    ordered = sorted(values) if is_sorted else values
    return "[" + ",".join(map(str, ordered)) + "]"


def shown(value: object) -> str:
    return "null" if value is None else str(value)


def bounds(window: Any) -> str:
    if isinstance(window, am.TimeWindow):
        return f"{window.start}:{window.end}"
    return "global"


def assigner_of(spec: Spec) -> Any:
    match spec["kind"]:
        case "tumbling":
            return am.TumblingEventTimeWindows.of(ms(spec["size"]), ms(spec["offset"]))
        case "sliding":
            lengths = (ms(spec[name]) for name in ("size", "slide", "offset"))
            return am.SlidingEventTimeWindows.of(*lengths)
        case "session":
            return am.EventTimeSessionWindows.with_gap(ms(spec["gap"]))
        case "dynamic":
            gap = spec["gap"]
            return am.EventTimeSessionWindows.with_dynamic_gap(
                lambda value: ms(gap + value[1] % 3 * 4)
            )
        case "ptumbling":
            return am.TumblingProcessingTimeWindows.of(ms(spec["size"]))
        case "psliding":
            size, slide = ms(spec["size"]), ms(spec["slide"])
            return am.SlidingProcessingTimeWindows.of(size, slide)
        case "psession":
            return am.ProcessingTimeSessionWindows.with_gap(ms(spec["gap"]))
        case "global":
            return am.GlobalWindows()
        case "global_end":
            return am.GlobalWindows.create_with_end_of_stream_trigger()
    raise ValueError(spec)


def is_merging(spec: Spec) -> bool:
    """Whether windows merge: in which order their contents then are is not said."""
    return spec["kind"] in {"session", "dynamic", "psession"}


def distance(one: Record, two: Record) -> float:
    return float(abs(two[1] - one[1]))


def trigger_of(spec: Spec) -> Any:
    match spec["kind"]:
        case "event":
            return am.EventTimeTrigger()
        case "ptime":
            return am.ProcessingTimeTrigger()
        case "count":
            return am.CountTrigger.of(spec["n"])
        case "continuous":
            return am.ContinuousEventTimeTrigger.of(ms(spec["ms"]))
        case "pcontinuous":
            return am.ContinuousProcessingTimeTrigger.of(ms(spec["ms"]))
        case "delta":
            return am.DeltaTrigger.of(spec["th"], distance)
        case "purging":
            return am.PurgingTrigger.of(trigger_of(spec["of"]))
    raise ValueError(spec)


def evictor_of(spec: Spec) -> Any:
    match spec["kind"]:
        case "count":
            return am.CountEvictor.of(spec["n"], after=spec["after"])
        case "time":
            return am.TimeEvictor.of(ms(spec["ms"]), after=spec["after"])
        case "delta":
            return am.DeltaEvictor.of(spec["th"], distance, after=spec["after"])
    raise ValueError(spec)


def added(one: Record, two: Record) -> Record:
    return one[0], one[1] + two[1], one[2]


class Summary(am.AggregateFunction[Any, Any, Any]):
    """Count, sum and maximum, and the key of the record that came last."""

    def create_accumulator(self) -> Any:
        return 0, 0, MIN_TIMESTAMP, ""

    def add(self, value: Any, accumulator: Any) -> Any:
        count, total, most, _ = accumulator
        return count + 1, total + value[1], max(most, value[1]), value[0]

    def get_result(self, accumulator: Any) -> Any:
        count, total, most, key = accumulator
        return key, total, f"c{count}m{most}"

    def merge(self, one: Any, two: Any) -> Any:
        return one[0] + two[0], one[1] + two[1], max(one[2], two[2]), one[3]


FIRES = am.ValueStateDescriptor("fires", int)
FIRES_OF_KEY = am.ValueStateDescriptor("gfires", int)


class Contents(am.ProcessWindowFunction):
    """Emits what is in a window; may count firings, of the window and of the key."""

    def __init__(self, *, is_sorted: bool, counts: bool) -> None:
        self.is_sorted = is_sorted
        self.counts = counts

    def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        values = [one[1] for one in elements]
        total = sum(values)
        text = f"{bounds(context.window)}:{listed(values, is_sorted=self.is_sorted)}"
        if not self.counts:
            out.collect((key, total, text))
            return
        fires = context.window_state.get_value(FIRES)
        of_key = context.global_state.get_value(FIRES_OF_KEY)
        fires.update((fires.value() or 0) + 1)
        of_key.update((of_key.value() or 0) + 1)
        out.collect((key, total, f"{text}:f{fires.value()}:g{of_key.value()}"))
        if total % 2 == 1:
            odd = (key, total, f"odd{bounds(context.window)}")
            context.output(tag("odd"), odd)

    def clear(self, context: Any) -> None:
        if self.counts:
            context.window_state.get_value(FIRES).clear()
            of_key = context.global_state.get_value(FIRES_OF_KEY)
            of_key.update((of_key.value() or 0) + 100)


class Named(am.ProcessWindowFunction):
    """Puts the window before the text of a result."""

    def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        for one in elements:
            out.collect((key, one[1], f"{bounds(context.window)}:{one[2]}"))


class AllContents(am.ProcessWindowFunction):
    """Emits what is in a window of all keys."""

    def __init__(self, *, is_sorted: bool) -> None:
        self.is_sorted = is_sorted

    def process(self, key: Any, context: Any, elements: Any, out: Any) -> None:
        values = [one[1] for one in elements]
        text = f"{bounds(context.window)}:{listed(values, is_sorted=self.is_sorted)}"
        out.collect(("all", sum(values), text))


class Timers(am.KeyedProcessFunction):
    """Sums; sets and deletes timers, also behind the present, by what comes."""

    def __init__(self, spec: Spec) -> None:
        self.first, self.second, self.limit = spec["d1"], spec["d2"], spec["limit"]
        self.is_processing = spec["proc"]

    def open(self, context: Any) -> None:
        self.sum = context.keyed_state.get_value(am.ValueStateDescriptor("sum", int))

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        service = context.timer_service
        total = (self.sum.value() or 0) + value[1]
        self.sum.update(total)
        if self.is_processing:
            now = service.current_processing_time()
        else:
            now = context.timestamp
        # Java's remainder.
        rest = now % self.second if now >= 0 else -(-now % self.second)
        following = now - rest + self.second + 100
        match value[1] % 4:
            case 0:
                self._register(service, now + self.first)
            case 1:
                self._delete(service, following)
            case 2:
                self._register(service, following)
            case _:
                self._register(service, now - 3)
        out.collect((value[0], total, "e"))
        if value[1] % 5 == 0:
            context.output(tag("odd"), (value[0], total, "five"))

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        total = self.sum.value()
        stamp = context.timestamp
        at = timestamp % 1_000_000 if self.is_processing else timestamp
        domain = str(context.time_domain.value)[0].upper()
        own = "=" if stamp == timestamp else shown(stamp)
        number = -1 if total is None else total
        out.collect((context.current_key, number, f"t{at}{domain}{own}"))
        if total is None:
            return
        if total % 3 == 0:
            self.sum.clear()
        if total % 5 == 1 and timestamp < self.limit:
            self._register(context.timer_service, timestamp + self.first + 1)

    def _register(self, service: Any, timestamp: int) -> None:
        if self.is_processing:
            service.register_processing_time_timer(timestamp)
        else:
            service.register_event_time_timer(timestamp)

    def _delete(self, service: Any, timestamp: int) -> None:
        if self.is_processing:
            service.delete_processing_time_timer(timestamp)
        else:
            service.delete_event_time_timer(timestamp)


class Listed(am.AggregateFunction[Any, Any, Any]):
    """All values, printed."""

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        return [*accumulator, value]

    def get_result(self, accumulator: Any) -> Any:
        return listed(accumulator)

    def merge(self, one: Any, two: Any) -> Any:
        return one + two


def ttl_of(spec: Spec) -> am.StateTtlConfig | None:
    if not spec.get("ttl"):
        return None
    update = am.TtlUpdate
    visibility = am.StateVisibility
    return am.StateTtlConfig(
        ms(spec["ttl"]),
        update=update.ON_READ_AND_WRITE if spec["rw"] else update.ON_CREATE_AND_WRITE,
        visibility=visibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
        if spec["ret"]
        else visibility.NEVER_RETURN_EXPIRED,
    )


class Stateful(am.KeyedProcessFunction):
    """Reads and changes state of one kind, by what comes."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.change: Callable[[Any, int], str] = getattr(self, f"_{spec['kind']}")

    def open(self, context: Any) -> None:
        state, ttl = context.keyed_state, ttl_of(self.spec)
        match self.spec["kind"]:
            case "value":
                descriptor = am.ValueStateDescriptor("v", int, ttl=ttl)
                self.state = state.get_value(descriptor)
            case "list":
                self.state = state.get_list(am.ListStateDescriptor("l", int, ttl=ttl))
            case "map":
                kept = am.MapStateDescriptor("m", int, int, ttl=ttl)
                self.state = state.get_map(kept)
            case "reducing":
                reducing = am.ReducingStateDescriptor(
                    "r", lambda one, two: one * 2 + two, int, ttl=ttl
                )
                self.state = state.get_reducing(reducing)
            case "aggregating":
                aggregating = am.AggregatingStateDescriptor(
                    "a", Listed(), list[int], ttl=ttl
                )
                self.state = state.get_aggregating(aggregating)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        out.collect((value[0], value[1], self.change(self.state, value[1])))

    def _value(self, state: Any, number: int) -> str:
        match number % 7:
            case 0 | 1 | 2:
                state.update((state.value() or 0) + number)
            case 3:
                state.clear()
            case 4:
                state.update(number)
                return "w"
        return shown(state.value())

    def _list(self, state: Any, number: int) -> str:
        what = number % 7
        match what:
            case 0 | 1 | 2:
                state.add(number)
            case 3:
                state.update([number, number + 1])
            case 4:
                state.add_all([number, number + 2])
            case 5 if number % 2 == 0:
                state.clear()
        return "w" if what < 2 else listed(state.get())

    def _map(self, state: Any, number: int) -> str:
        what, key = number % 7, number % 3
        match what:
            case 0 | 1 | 2:
                state.put(key, number)
            case 3:
                state.remove(key)
            case 4:
                state.put_all({key: number, key + 1: number + 1})
            case 5 if number % 2 == 0:
                state.clear()
        match what:
            case 0:
                return "w"
            case 1:
                return f"g{shown(state.get(key))}"
            case 2:
                return f"c{int(state.contains(key + 1))}"
            case 6:
                return f"e{int(state.is_empty())}"
        return "{" + ",".join(f"{k}={v}" for k, v in sorted(state.items())) + "}"

    def _reducing(self, state: Any, number: int) -> str:
        what = number % 7
        if what < 4:
            state.add(number)
        elif what == 4:
            state.clear()
        return "w" if what == 0 else shown(state.get())

    _aggregating = _reducing


class Split(am.ProcessFunction):
    """Odd numbers go to the side."""

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        if value[1] % 2 == 1:
            context.output(tag("odd"), value)
        else:
            out.collect(value)
        if value[1] % 6 == 0:
            context.output(tag("odd"), (value[0], value[1], "six"))


class Both(am.KeyedCoProcessFunction):
    """Each side sees what the other one left, and sets or deletes timers."""

    def __init__(self, delay: int) -> None:
        self.delay = delay

    def open(self, context: Any) -> None:
        state = context.keyed_state
        self.left = state.get_value(am.ValueStateDescriptor("left", int))
        self.right = state.get_list(am.ListStateDescriptor("right", int))

    def process_element1(self, value: Any, context: Any, out: Any) -> None:
        self.left.update(value[1])
        due = context.timestamp + self.delay
        context.timer_service.register_event_time_timer(due)
        out.collect((value[0], value[1], f"1{listed(self.right.get())}"))

    def process_element2(self, value: Any, context: Any, out: Any) -> None:
        self.right.add(value[1])
        service = context.timer_service
        if value[1] % 3 == 0:
            service.delete_event_time_timer(context.timestamp + self.delay)
        seen = f"2{shown(self.left.value())}:{max(-1, service.current_watermark)}"
        out.collect((value[0], value[1], seen))

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        left = self.left.value()
        number = -1 if left is None else left
        text = f"t{timestamp}{listed(self.right.get())}"
        out.collect((context.current_key, number, text))
        self.right.clear()


class Pairs(am.ProcessJoinFunction):
    """Emits both event times, and its own."""

    def process_element(self, left: Any, right: Any, context: Any, out: Any) -> None:
        times = context.left_timestamp, context.right_timestamp, context.timestamp
        number = left[1] * 1000 + right[1]
        out.collect((left[0], number, ":".join(map(str, times))))


RULES = am.MapStateDescriptor("rules", str, int)
SUM = am.ValueStateDescriptor("sum", int)


class Ruled(am.BroadcastProcessFunction):
    """Looks at rules that come by broadcast."""

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        rule = context.get_broadcast_state(RULES).get(value[0])
        out.collect((value[0], value[1], f"r{shown(rule)}"))

    def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
        rules = context.get_broadcast_state(RULES)
        if value[1] % 4 == 0:
            rules.remove(value[0])
        else:
            rules.put(value[0], value[1])
        out.collect((value[0], value[1], "b"))


class KeyedRuled(am.KeyedBroadcastProcessFunction):
    """Rules change the state of keys."""

    def __init__(self, delay: int) -> None:
        self.delay = delay

    def open(self, context: Any) -> None:
        self.sum = context.keyed_state.get_value(SUM)

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        self.sum.update((self.sum.value() or 0) + value[1])
        due = context.timestamp + self.delay
        context.timer_service.register_event_time_timer(due)
        rule = context.get_broadcast_state(RULES).get(value[0])
        out.collect((value[0], self.sum.value(), f"r{shown(rule)}"))

    def process_broadcast_element(self, value: Any, context: Any, out: Any) -> None:
        context.get_broadcast_state(RULES).put(value[0], value[1])

        def change(key: str, state: Any) -> None:
            if key == value[0]:
                state.clear()
            else:
                state.update(state.value() + 1000)

        if value[1] % 3 == 0:
            context.apply_to_keyed_state(SUM, change)
        watermark = max(-1, context.current_watermark)
        out.collect((value[0], value[1], f"b{watermark}"))

    def on_timer(self, timestamp: int, context: Any, out: Any) -> None:
        total, key = self.sum.value(), context.current_key
        rule = context.get_broadcast_state(RULES).get(key)
        number = -1 if total is None else total
        out.collect((key, number, f"t{timestamp}r{shown(rule)}"))


class Tap(am.ProcessFunction):
    """Writes down the rows of a stream, with the tick and the watermark."""

    def __init__(self, stream: int, rows: list[Row], tick: Callable[[], int]) -> None:
        self.stream, self.rows, self.tick = stream, rows, tick

    def process_element(self, value: Any, context: Any, out: Any) -> None:
        times = context.timestamp, context.current_watermark
        self.rows.append([self.stream, self.tick(), *value, *times])


def with_function(stream: Any, spec: Spec, *, is_sorted: bool) -> Any:
    """Give windows their function."""
    match spec["fn"]:
        case "reduce":
            return stream.reduce(added)
        case "reduce_process":
            return stream.reduce(added, Named())
        case "aggregate":
            return stream.aggregate(Summary())
        case "aggregate_process":
            return stream.aggregate(Summary(), Named())
        case "process" | "process_state":
            counts = spec["fn"] == "process_state"
            return stream.process(Contents(is_sorted=is_sorted, counts=counts))
        case "apply":

            def apply(key: Any, window: Any, elements: Any) -> list[Any]:
                values = [one[1] for one in elements]
                text = f"{bounds(window)}a{listed(values, is_sorted=is_sorted)}"
                return [(key, sum(values), text)]

            return stream.apply(apply)
    raise ValueError(spec)


def with_settings(stream: Any, spec: Spec) -> Any:
    """Give windows what else is said of them."""
    if "trigger" in spec:
        stream = stream.trigger(trigger_of(spec["trigger"]))
    if "evictor" in spec:
        stream = stream.evictor(evictor_of(spec["evictor"]))
    if spec.get("lateness"):
        stream = stream.allowed_lateness(ms(spec["lateness"]))
    if spec.get("late"):
        stream = stream.side_output_late_data(tag("late"))
    return stream


async def call(value: Record) -> Record:
    """Take some seconds, and some milliseconds of its own."""
    await asyncio.sleep((value[1] % 8 * 1000 + 10 + value[1] // 8) / 1000)
    return value[0], value[1], "a"


def stage_of(streams: list[Any], spec: Spec) -> Any:
    """Make a stream of earlier ones."""
    one, *others = (streams[index] for index in spec["in"])
    if others:
        return _stage_of_two(one, others[0], spec)
    match spec["op"]:
        case "map":
            factor, term = spec["a"], spec["b"]
            return one.map(lambda value: (value[0], value[1] * factor + term, value[2]))
        case "filter":
            modulus, rest = spec["m"], spec["r"]
            return one.filter(lambda value: value[1] % modulus != rest)
        case "flat_map":
            modulus = spec["m"]
            return one.flat_map(
                lambda value: [
                    (value[0], value[1] + i, value[2])
                    for i in range(value[1] % modulus)
                ]
            )
        case "rekey":
            modulus = spec["m"]
            return one.map(lambda value: (f"k{value[1] % modulus}", *value[1:]))
        case "reduce":
            return one.key_by(key_of).reduce(added)
        case "side":
            return one.get_side_output(tag(spec["tag"]))
        case "split":
            return one.process(Split())
        case "assign":
            strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(
                ms(spec["bound"])
            )
            return one.assign_timestamps_and_watermarks(
                strategy.with_timestamp_assigner(lambda value, ts: ts + value[1] % 3)
            )
        case "process":
            is_timers = spec["prog"] == "timers"
            function = Timers(spec) if is_timers else Stateful(spec)
            return one.key_by(key_of).process(function)
        case "async":
            called = one.map_async(
                call, ordered=spec["ordered"], concurrency=1000, capacity=1000
            )
            return called.filter(lambda value: value[1] % 8 != 5)
        case "count_window":
            windows = one.key_by(key_of).count_window(spec["n"], spec.get("slide"))
            return with_function(windows, spec, is_sorted=False)
        case "window":
            windows = one.key_by(key_of).window(assigner_of(spec["assigner"]))
            merge = is_merging(spec["assigner"])
            return with_function(with_settings(windows, spec), spec, is_sorted=merge)
        case "window_all":
            windows = with_settings(one.window_all(assigner_of(spec["assigner"])), spec)
            return windows.process(AllContents(is_sorted=is_merging(spec["assigner"])))
    raise ValueError(spec)


def _stage_of_two(one: Any, two: Any, spec: Spec) -> Any:
    match spec["op"]:
        case "union":
            return one.union(two)
        case "co_process":
            keyed = one.key_by(key_of).connect(two.key_by(key_of))
            return keyed.process(Both(spec["d"]))
        case "co_map":
            return one.connect(two).map(
                lambda value: (value[0], value[1], "L" + value[2]),
                lambda value: (value[0], value[1] + 1, "R" + value[2]),
            )
        case "interval_join":
            joined = one.key_by(key_of).interval_join(two.key_by(key_of))
            joined = joined.between(
                ms(spec["lower"]),
                ms(spec["upper"]),
                lower_exclusive=spec["lx"],
                upper_exclusive=spec["ux"],
            )
            late = {name: tag(name) for name in ("left_late", "right_late")}
            return joined.process(Pairs(), **late)
        case "join":
            joined = one.join(two).where(key_of).equal_to(key_of)
            joined = joined.window(assigner_of(spec["assigner"]))
            return with_settings(joined, spec).apply(
                lambda left, right: (left[0], left[1] * 1000 + right[1], "j")
            )
        case "co_group":
            is_sorted = is_merging(spec["assigner"])

            def both(left: Any, right: Any) -> list[Any]:
                left, right = list(left), list(right)
                sides = [
                    listed((value[1] for value in side), is_sorted=is_sorted)
                    for side in (left, right)
                ]
                number = len(left) * 100 + len(right)
                return [((left + right)[-1][0], number, "/".join(sides))]

            grouped = one.co_group(two).where(key_of).equal_to(key_of)
            grouped = grouped.window(assigner_of(spec["assigner"]))
            return with_settings(grouped, spec).apply(both)
        case "broadcast":
            return one.connect(two.broadcast(RULES)).process(Ruled())
        case "kbroadcast":
            keyed = one.key_by(key_of).connect(two.broadcast(RULES))
            return keyed.process(KeyedRuled(spec["d"]))
    raise ValueError(spec)


class Course:
    """When the events of a case come; time stands still while its job is stopped."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin = self._loop.time()

    async def until(self, tick: float) -> None:
        await asyncio.sleep(self._begin + tick - self._loop.time())

    def tick(self) -> int:
        # Whole milliseconds, for a sleep ends at the float next to what was meant.
        passed_ms = round((self._loop.time() - self._begin) * 1000)
        return (passed_ms - 300) // 1000

    def go_on_at(self, tick: float) -> None:
        self._begin = self._loop.time() - tick


def build(
    case: Spec, parallelism: int, rows: list[Row], course: Course
) -> am.StreamExecutionEnvironment:
    """Make the job of a case, which writes down the rows of its outputs."""
    env = am.StreamExecutionEnvironment(parallelism=parallelism)
    events = case["events"]

    def source(index: int) -> Callable[..., AsyncIterator[Any]]:
        async def records(after: int | None = None) -> AsyncIterator[Any]:
            for number, (owner, key, value, stamp) in enumerate(events, 1):
                if owner == index and number > (after or 0):
                    await course.until(number + 0.3)
                    yield key, value, stamp, number
            await course.until(len(events) + 1 + index + 0.3)

        return records

    streams: list[Any] = []
    for index, spec in enumerate(case["sources"]):
        strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(ms(spec["bound"]))
        strategy = strategy.with_timestamp_assigner(lambda value: value[2])
        events_of = am.AsyncIterableSource(source(index), offset=lambda one: one[3])
        stream = env.from_source(events_of, strategy, name=f"source {index}")
        streams.append(stream.map(lambda value: (value[0], value[1], "")))
    for spec in case["stages"]:
        streams.append(stage_of(streams, spec))
    for number in case["outputs"]:
        tapped = streams[number].process(Tap(number, rows, course.tick))
        tapped.set_parallelism(1).sink_to(lambda _: None)
    return env


async def run(case: Spec, parallelism: int = 1) -> list[Row]:
    """Run a case; return its rows."""
    rows: list[Row] = []
    await build(case, parallelism, rows, Course()).execute(case["id"])
    return rows


def cut_of(case: Spec) -> int:
    """Return the tick behind which a case is stopped: each has one of its own."""
    return Random(case["id"]).randint(0, len(case["events"]))


async def run_cut(
    case: Spec, directory: Path, parallelism: int = 1, then: int | None = None
) -> list[Row]:
    """Stop a case with a savepoint, and go on from it, maybe at another parallelism."""
    rows: list[Row] = []
    course, cut = Course(), cut_of(case) + 0.8
    env = build(case, parallelism, rows, course)
    env.enable_checkpointing(None)
    async with env.start(case["id"]) as job:
        await course.until(cut)
        await job.stop_with_savepoint(directory / "saved")
    course.go_on_at(cut)
    env = build(case, then or parallelism, rows, course)
    await env.execute(case["id"], restore_from=directory / "saved")
    return rows


def _per_key(case: Spec, rows: list[Row]) -> dict[Any, list[Any]]:
    """Return rows by stream and key, in order."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for stream, tick, key, *rest, _ in rows:
        found[stream, key].append((tick, *rest))
    # Flink walks over the other side's records, and those of merged sessions, by hash.
    if any(
        spec["op"] == "interval_join"
        or (spec["op"] == "join" and spec["assigner"]["kind"] == "session")
        for spec in case["stages"]
    ):
        for one in found.values():
            one.sort(key=repr)
    return found


def difference(
    case: Spec, rows: list[Row], *, parallelism: int = 1, is_cut: bool = False
) -> str | None:
    """Say how rows differ from Flink's, and in which; None if they do not.

    Calls in flight are made anew after a restore, here as in Flink, and so end later
    and maybe in another order.
    """
    flink = case["flink"]
    has_calls = is_cut and any(spec["op"] == "async" for spec in case["stages"])
    if has_calls:
        kept = _without_order_of_calls(case)
        flink, rows = (
            [row for row in some if row[0] in kept] for some in (flink, rows)
        )
    views: dict[str, Callable[[list[Row]], Counter[Any]]] = {
        "rows": lambda some: Counter((row[0], *row[2:6]) for row in some)
    }
    if not has_calls:
        views["ticks"] = lambda some: Counter(tuple(row[:6]) for row in some)
        views["order"] = lambda some: Counter(
            (key, tuple(values)) for key, values in _per_key(case, some).items()
        )
        if parallelism == 1:
            views["watermarks"] = lambda some: Counter(map(tuple, some))
    for name, view in views.items():
        theirs, ours = view(flink), view(rows)
        if theirs != ours:
            lost, more = (list((a - b).elements())[:4] for a, b in _both(theirs, ours))
            return f"other {name}: Flink has {lost}, ours has {more}"
    return None


def _both(one: Counter[Any], two: Counter[Any]) -> Any:
    return (one, two), (two, one)


_STATELESS = {"map", "filter", "flat_map", "rekey", "union", "side", "split", "co_map"}


def _without_order_of_calls(case: Spec) -> set[int]:
    """Return the streams whose rows do not follow from the order in which calls end."""
    unordered: set[int] = set()
    for number, spec in enumerate(case["stages"], len(case["sources"])):
        is_behind = any(index in unordered for index in spec["in"])
        if is_behind or (spec["op"] == "async" and not spec["ordered"]):
            unordered.add(number)
    stages = dict(enumerate(case["stages"], len(case["sources"])))
    kept = set(range(len(case["sources"]) + len(stages)))
    for number, spec in stages.items():
        is_stateful = spec["op"] not in _STATELESS
        if any(index not in kept for index in spec["in"]) or (
            is_stateful and any(index in unordered for index in spec["in"])
        ):
            kept.discard(number)
    return kept
