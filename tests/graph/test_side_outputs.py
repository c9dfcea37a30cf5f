"""`explain` names side outputs that nothing emits to, and those that nobody reads."""

from __future__ import annotations

from typing import Any

import pytest

import aiomailbox as am

LATE = am.OutputTag[int]("late")


def said(env: am.StreamExecutionEnvironment) -> list[str]:
    lines = env.explain().splitlines()
    return [line for line in lines if line.startswith("Side output")]


def emit_elsewhere(context: Any, value: int) -> None:
    context.output(LATE, value)


class Global(am.ProcessFunction):
    def process_element(self, value: int, context: Any, out: Any) -> None:
        context.output(LATE, value)


class Helper(am.ProcessFunction):
    def process_element(self, value: int, context: Any, out: Any) -> None:
        emit_elsewhere(context, value)


class Attribute(am.ProcessFunction):
    def __init__(self, tag: am.OutputTag[int]) -> None:
        self.tag = tag

    def process_element(self, value: int, context: Any, out: Any) -> None:
        context.output(self.tag, value)


class Slot(Attribute):
    __slots__ = ("empty", "tag")


class ByName(am.ProcessFunction):
    def process_element(self, value: int, context: Any, out: Any) -> None:
        context.output(am.OutputTag("late"), value)


class Lambda(am.ProcessFunction):
    def process_element(self, value: int, context: Any, out: Any) -> None:
        emit = lambda each: context.output(LATE, each)  # noqa: E731
        emit(value)


class Inherited(Global): ...


class Closed(am.ProcessFunction):
    def __init__(self, tag: am.OutputTag[int]) -> None:
        self.emit = lambda context, value: context.output(tag, value)

    def process_element(self, value: int, context: Any, out: Any) -> None:
        self.emit(context, value)


class Silent(am.ProcessFunction):
    def process_element(self, value: int, context: Any, out: Any) -> None:
        out.collect(value)

    @property
    def tag(self) -> am.OutputTag[int]:
        raise AssertionError("code of the user's ran")


EMITS = [
    Global(), Helper(), Attribute(LATE), Slot(LATE), ByName(), Lambda(), Inherited(),
    Closed(LATE),
]  # fmt: skip


@pytest.mark.parametrize("function", EMITS, ids=lambda each: type(each).__name__)
def test_a_tag_that_the_code_names_in_any_way_is_emitted(function: Any) -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([1]).process(function)
    stream.sink_to(print)
    stream.get_side_output(LATE).sink_to(print)
    assert said(env) == []


def test_a_tag_that_nothing_names_is_refused() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([1]).process(Global())
    with pytest.raises(am.InvalidArgumentError, match="'lates' is no side") as caught:
        stream.get_side_output(am.OutputTag("lates"))
    assert "nothing there emits to it: it has 'late'" in str(caught.value)
    with pytest.raises(am.InvalidArgumentError, match="'late' is no side output"):
        stream.map(abs).get_side_output(LATE)


def test_compiled_code_of_another_library_may_emit_to_any() -> None:
    import msgspec
    import numpy as np

    env = am.StreamExecutionEnvironment()
    # A function, and an object that compiled code calls.
    for function in (msgspec.json.encode, np.absolute):
        stream = env.from_collection([1]).map(function)
        assert stream.get_side_output(LATE) is not None


async def test_a_warning_names_what_no_operator_reads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = am.StreamExecutionEnvironment()
    failed = am.OutputTag[am.DeadLetter]("failed")
    numbers = env.from_collection([1]).map(abs, on_error=am.dead_letter(failed))
    await numbers.name("parse").collect()
    (said,) = (one for one in caplog.records if "side output" in one.getMessage())
    fields: Any = said
    assert (fields.side_output, fields.operator) == ("failed", "parse")
    assert fields.levelname == "WARNING"


def test_dead_letters_that_nobody_reads_are_told() -> None:
    env = am.StreamExecutionEnvironment()
    failed = am.OutputTag[am.DeadLetter]("failed")
    stream = env.from_collection([1]).map(abs, on_error=am.dead_letter(failed))
    stream.sink_to(print)
    assert said(env) == [
        "Side output 'failed' of 'map' is emitted, and no operator reads it."
    ]
    stream.get_side_output(failed).sink_to(print)
    assert said(env) == []


def test_late_records_that_nobody_reads_are_told() -> None:
    env = am.StreamExecutionEnvironment()
    windows = env.from_collection([1]).window_all(
        am.TumblingEventTimeWindows.of(am.seconds(1))
    )
    counts = windows.side_output_late_data(LATE).aggregate(am.count())
    counts.sink_to(print)
    assert said(env) == [
        "Side output 'late' of 'window aggregate' is emitted, and no operator reads it."
    ]
    counts.get_side_output(LATE).sink_to(print)
    assert said(env) == []


def test_no_code_of_the_user_runs_for_it() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([1]).process(Silent())
    with pytest.raises(am.InvalidArgumentError, match="is no side output"):
        stream.get_side_output(LATE)


class Unhashable(type):
    """As a class of classes that are compared by what they have."""

    def __eq__(cls, other: object) -> bool:
        return cls is other


class OfThem(metaclass=Unhashable):  # type: ignore[metaclass]
    __slots__ = ("by",)

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, value: int) -> int:
        return value + self.by


async def test_objects_whose_class_has_no_hash_are_functions_too() -> None:
    env = am.StreamExecutionEnvironment()
    stream = env.from_collection([1]).map(OfThem(1))
    with pytest.raises(am.InvalidArgumentError, match="nothing there emits to it"):
        stream.get_side_output(LATE)
    assert await stream.collect() == [2]
