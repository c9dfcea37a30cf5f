"""Jobs whose classes were those of a program: ``python -m tests.saved.moved DIRECTORY``.

The fixtures name its classes as ``__main__:Acc``, for it ran as a program. What the
tests import has them in this module. It is changed as little as `tests.saved.programs`.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import aiomailbox as am
from tests.saved.programs import TUMBLING, Event, Job, keyed, paced


class Kind(Enum):
    EVEN = 0
    ODD = 1


@dataclass
class Acc:
    count: int
    kinds: list[Kind]


class Seen(NamedTuple):
    number: int
    acc: Acc | None


class Unlike:
    """What only pickle can keep."""

    def __init__(self, acc: Acc) -> None:
        self.acc = acc


class Accumulates(am.KeyedProcessFunction):
    def open(self, context: Any) -> None:
        state = context.keyed_state
        self.acc = state.get_value(am.ValueStateDescriptor("acc", Acc | None))
        self.seen = state.get_map(am.MapStateDescriptor("seen", Kind, list[Seen]))
        self.odd = state.get_value(
            am.ValueStateDescriptor("odd", serializer=am.PickleSerializer())
        )

    def process_element(self, value: Event, context: Any, out: Any) -> None:
        kind = Kind(value.number % 2)
        acc = self.acc.value() or Acc(0, [])
        acc = Acc(acc.count + 1, [*acc.kinds[-3:], kind])
        self.acc.update(acc)
        seen = self.seen.get(kind) or []
        self.seen.put(kind, [*seen, Seen(value.number, acc)])
        odd = self.odd.value()
        self.odd.update(Unlike(acc))
        before = None if odd is None else odd.acc.count
        out.collect(Seen(value.number, acc))
        out.collect((context.current_key, before, len(seen)))


def seen_of(event: Event) -> Seen:
    return Seen(event.number, Acc(event.size, [Kind.ODD]))


def number_of(seen: Seen) -> int:
    return seen.number


def state(env: Any, sink: Any) -> None:
    """Have classes in state, in windows, and in what a sink has prepared."""
    keyed(env).process(Accumulates()).uid("acc").sink_to(sink)
    windows = keyed(env, name="more").map(seen_of).uid("seen")
    lists = windows.key_by(lambda seen: seen.number % 3).window(TUMBLING)
    lists.apply(lambda key, window, values: [sorted(values, key=number_of)]).uid(
        "lists"
    ).sink_to(sink)


ASKED: list[int] = []


async def asked(event: Event) -> Seen:
    ASKED.append(event.number)
    # The first one takes long: all others finish behind it, and wait in the journal.
    await asyncio.sleep(1.0 if event.number == 5 else 0.05)
    return seen_of(event)


async def slowly(seen: Seen) -> int:
    await asyncio.sleep(0.03)
    return seen.number


def calls(env: Any, sink: Any) -> None:
    """Have results of calls in a journal, and records of the classes in flight."""
    events = paced(env)
    found = events.map_async(asked, concurrency=60, journal=True, id="number")
    found.uid("calls").sink_to(sink)
    sent = events.map(seen_of).uid("seen").set_parallelism(1)
    sent.rebalance().map(slowly).uid("slowly").set_parallelism(1).sink_to(sink)


MOVED: dict[str, Job] = {
    "moved": Job(state),
    "moved-checkpoint": Job(state, "checkpoint", on_disk=True, parallelism=1),
    "moved-in-flight": Job(calls, "unaligned"),
}


if __name__ == "__main__":
    from tests.saved.write import write

    for name, job in MOVED.items():
        write(Path(sys.argv[1]) / f"{name}.zip", job)
