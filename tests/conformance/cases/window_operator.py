"""Whole window operators.

Firings between two watermarks are compared as a multiset, and so are the values of a
session, unless an evictor by count makes their order matter.
"""

from __future__ import annotations

import re
from typing import Any

from aiomailbox.durations import millis
from aiomailbox.records.events import MAX_TIMESTAMP, OutputTag, StreamRecord
from aiomailbox.testing import OneInputHarness
from aiomailbox.windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from aiomailbox.windowing.build import window_operator
from aiomailbox.windowing.evictors import CountEvictor, Evictor, TimeEvictor
from aiomailbox.windowing.functions import ProcessWindowFunction
from aiomailbox.windowing.triggers import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
    PurgingTrigger,
    Trigger,
)

FILE = "window_operator"
LATE = OutputTag("late")


class Report(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: list[Any], out: Any) -> None:
        values = [value for _, value in elements]
        window = context.window
        out.collect((key, window.start, window.end, values, context.current_watermark))


def assigner_of(spec: dict[str, Any]) -> WindowAssigner:
    match spec["kind"]:
        case "tumbling":
            return TumblingEventTimeWindows(spec["size"], spec["offset"])
        case "sliding":
            return SlidingEventTimeWindows(spec["size"], spec["slide"], spec["offset"])
        case "session":
            return EventTimeSessionWindows(spec["gap"])
    return GlobalWindows()


def trigger_of(text: str) -> Trigger:
    name, number = re.fullmatch(r"(\w+?)(?:\((\d+)\))?", text).groups()  # type: ignore[union-attr]
    if name.startswith("purging_"):
        return PurgingTrigger(trigger_of(text.removeprefix("purging_")))
    if name == "count":
        return CountTrigger(int(number))
    if name == "continuous":
        return ContinuousEventTimeTrigger(int(number))
    return EventTimeTrigger()


def evictor_of(text: str | None) -> Evictor | None:
    if text is None:
        return None
    name, number = re.fullmatch(r"(\w+)\((\d+)\)", text).groups()  # type: ignore[union-attr]
    return CountEvictor(int(number)) if name == "count" else TimeEvictor(int(number))


def produced(case: dict[str, Any]) -> list[list[Any]]:
    operator = window_operator(
        lambda record: record[0],
        assigner_of(case["assigner"]),
        window_function=Report(),
        trigger=trigger_of(case["trigger"]),
        evictor=evictor_of(case["evictor"]),
        allowed_lateness=millis(case["allowed_lateness"]),
        late_tag=LATE,
    )
    found: list[list[Any]] = []
    with OneInputHarness(operator, keyed=True) as harness:
        for step in [*case["inputs"], ["watermark", MAX_TIMESTAMP]]:
            if step[0] == "element":
                harness.process_element((step[1], step[2]), step[3])
            else:
                harness.process_watermark(step[1])
            late = harness.recorded.sides.pop(LATE, [])
            found += [["late", *record.value, record.timestamp] for record in late]
            for element in harness.take_output():
                if isinstance(element, StreamRecord):
                    *window, watermark = element.value
                    found.append(["window", *window, element.timestamp, watermark])
                else:
                    found.append(["watermark", element.timestamp_ms])
    return found


def comparable(case: dict[str, Any], outputs: list[list[Any]]) -> list[Any]:
    """Sort what may come in any order."""
    is_session = case["assigner"]["kind"] == "session"
    keeps_order = "count" in (case["evictor"] or "")
    result: list[Any] = []
    between: list[Any] = []
    for output in outputs:
        if output[0] == "watermark":
            result += [sorted(between), output]
            between = []
        elif output[0] == "window" and is_session and not keeps_order:
            between.append([*output[:4], sorted(output[4]), *output[5:]])
        else:
            between.append(output)
    return [*result, sorted(between)]


def run_case(case: dict[str, Any]) -> None:
    assert comparable(case, produced(case)) == comparable(case, case["outputs"])
