"""What is saved has names that no move of a class, and no other version, changes."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from typing import Annotated, Any

import pytest

import aiomailbox as am
from aiomailbox.errors import StateError
from aiomailbox.operators.aggregates.compiled import result_type
from aiomailbox.records.record_classes import (
    RecordClasses,
    SavedAs,
    class_name,
    present_name,
    record_class,
)
from aiomailbox.runtime.peers.record_types import RECORDS_OF_OURS, record_classes
from aiomailbox.state.schema import is_record_class
from aiomailbox.state.serializers import (
    _OURS,
    ObjectSerializer,
    PickleSerializer,
    declared_classes,
    is_known_class,
)
from tests.saved.moved import Acc, Kind

# What version 0.1 called the classes of ours that it wrote, and what they are called.
OF_0_1 = {
    "aiomailbox.connectors.async_iterable:AsyncSplit": "AsyncSplit",
    "aiomailbox.connectors.collection:RangeSplit": "RangeSplit",
    "aiomailbox.connectors.files.source:FileSplit": "FileSplit",
    "aiomailbox.connectors.files.source:FilesSeen": "FilesSeen",
    "aiomailbox.connectors.spark.barrier.source:PartitionPosition": "PartitionPosition",
    "aiomailbox.connectors.spark.reader:SparkSplit": "SparkSplit",
    "aiomailbox.connectors.spark.streaming:StreamSplit": "StreamSplit",
    "aiomailbox.operators.aggregates.compiled:Result": "Result",
    "aiomailbox.operators.core.failures:DeadLetter": "DeadLetter",
    "aiomailbox.operators.useful.patterns:Partial": "Partial",
    "aiomailbox.records.events:StreamRecord": "StreamRecord",
    "aiomailbox.records.record_classes:Record": "Record",
    "aiomailbox.records.events:Answer": "Answer",
    "aiomailbox.records.events:Question": "Question",
    "aiomailbox.state.descriptors:Void": "Void",
    "aiomailbox.testing.scripted_source:ScriptSplit": "ScriptSplit",
    "aiomailbox.windowing.operator:FailedWindow": "FailedWindow",
    "aiomailbox.windowing.time_window:GlobalWindow": "GlobalWindow",
    "aiomailbox.windowing.time_window:TimeWindow": "TimeWindow",
}
FAMILIES = {"Record": record_class, "Result": result_type}


@pytest.fixture(scope="module", autouse=True)
def _all_modules() -> None:
    """Import all modules that declare classes."""
    for found in pkgutil.walk_packages(am.__path__, "aiomailbox."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)


def kept() -> dict[str, type]:
    """Return the classes of ours that may be in state, by their names.

    They are those that operators keep, those that they make records of, and those that
    users can name in a type hint.
    """
    public = [getattr(am, name) for name in am.__all__]
    records = [one for one in public if isinstance(one, type) and is_record_class(one)]
    return declared_classes([*RECORDS_OF_OURS, *records])


def test_no_name_of_ours_says_in_which_module_a_class_is() -> None:
    for name, kind in kept().items():
        assert name == class_name(kind)
        assert name.startswith("aiomailbox."), name
        assert name.count(".") == 1
        assert ":" not in name
    for name, make in FAMILIES.items():
        assert class_name(make(("a", "b"))) == f"aiomailbox.{name}"


def test_names_are_unique() -> None:
    public = {id(getattr(am, name)): getattr(am, name) for name in am.__all__}
    kinds = [one for one in public.values() if isinstance(one, type)]
    names = [class_name(kind) for kind in {*kinds, *kept().values()}]
    names += [f"aiomailbox.{name}" for name in FAMILIES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", OF_0_1)
def test_what_0_1_called_a_class_is_still_found(name: str) -> None:
    now = OF_0_1[name]
    assert present_name(name) == f"aiomailbox.{now}"
    assert present_name(name.replace(":", ".")) == f"aiomailbox.{now}"
    if now in FAMILIES:
        assert is_known_class(f"{name}(a,b)")
        assert present_name(f"{name}(a,b)") == f"aiomailbox.{now}(a,b)"
    else:
        assert kept()[f"aiomailbox.{now}"].__name__ == now


def test_every_class_that_0_1_wrote_is_in_the_table() -> None:
    """One that is new needs no line there; one that is gone cannot be read."""
    assert {present_name(name).partition(".")[2] for name in OF_0_1} == {
        *OF_0_1.values()
    }
    declared = {name.partition(".")[2] for name in _OURS}
    assert declared <= {*OF_0_1.values()}


def sent(classes: RecordClasses, name: str) -> Any:
    entry = classes.named(name)
    return None if entry is None else entry.kind


def test_data_in_flight_is_read_by_old_names_and_by_new() -> None:
    classes = record_classes([], has_arrow=True)
    for old in ("aiomailbox.windowing.time_window.TimeWindow", "aiomailbox.TimeWindow"):
        assert sent(classes, old) is am.TimeWindow
    old = "aiomailbox.operators.aggregates.compiled.Result(n,total)"
    assert sent(classes, old) is result_type(("n", "total"))
    assert sent(classes, "aiomailbox.Record(a)") is record_class(("a",))
    assert sent(classes, "aiomailbox.somewhere.Nothing") is None


def test_pickled_objects_of_ours_are_read_wherever_the_classes_are() -> None:
    result = result_type(("n",))(3)
    for value in (am.TimeWindow(0, 1), result, record_class(("a",))(1), am.Retry()):
        data = pickle.dumps(value, 4)
        module = type(value).__module__
        if not hasattr(am, type(value).__name__):
            module = type(value).__reduce__(value)[0].__module__
        # The same length, so that the pickle stays one.
        moved = "aiomailbox." + "x" * (len(module) - len("aiomailbox."))
        assert module.encode() in data
        there = data.replace(module.encode(), moved.encode())
        assert PickleSerializer().decode(there) == value


def test_a_pickled_class_that_is_gone_is_named_with_what_to_do() -> None:
    data = pickle.dumps(Acc(1, [Kind.ODD]), 4).replace(
        b"tests.saved.moved", b"tests.saved.mooed"
    )
    with pytest.raises(StateError, match=r"tests.saved.mooed:Acc.*state_names="):
        PickleSerializer().decode(data)


def test_a_class_is_written_by_the_name_that_it_has_now() -> None:
    written = ObjectSerializer().encode(Acc(1, [Kind.ODD]))
    assert b"tests.saved.moved:Acc" in written
    declared = declared_classes([Annotated[Acc, SavedAs("__main__:Acc")]])
    assert declared["__main__:Acc"] is declared["tests.saved.moved:Acc"] is Acc


WRONG: list[tuple[Any, str]] = [
    (["__main__:Acc"], "is not a mapping"),
    ({3: Acc}, "3 is not a name"),
    ({"Acc": Acc}, "no name of a class in saved state"),
    ({"__main__:": Acc}, "no name of a class in saved state"),
    ({"__main__:Acc": Acc(1, [])}, "which is not a class"),
    ({"__main__:Acc": "Acc"}, "which is not a class"),
    ({"aiomailbox.TimeWindow": Acc}, "found by itself"),
    ({"aiomailbox.windowing.time_window:TimeWindow": Acc}, "found by itself"),
]


@pytest.mark.parametrize(("names", "problem"), WRONG)
def test_a_wrong_entry_is_refused_where_it_is_written(names: Any, problem: str) -> None:
    with pytest.raises((am.InvalidArgumentError, TypeError), match=problem) as caught:
        am.JobConfig(state_names=names)
    assert "state_names" in str(caught.value)


async def test_a_name_of_another_class_of_the_job_is_refused() -> None:
    env = am.StreamExecutionEnvironment().enable_checkpointing(None)

    def to_kind(number: int) -> Kind:
        return Kind(number)

    env.from_collection([0, 1]).map(to_kind).sink_to(lambda kind: None)
    names = {"tests.saved.moved:Kind": Acc}
    with pytest.raises(am.InvalidArgumentError, match="another class of the job"):
        await env.execute(state_names=names)
