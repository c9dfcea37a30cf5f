"""What cannot run over Spark's shuffle, said before Spark starts a job."""

from __future__ import annotations

from typing import Final

from aiomailbox.connectors.spark.inside.source import StageInput
from aiomailbox.errors import UsageError
from aiomailbox.graph.transformation import Origin, Transformation, reachable
from aiomailbox.operators.core.operator import Operator

__all__ = ["check_applicable", "check_no_sinks", "check_runnable"]

_SOURCE: Final = (
    "is a source inside the pipeline: its records would come once in each Spark task. "
    "Pass its data as a DataFrame, by the name of a parameter: left=df, right=other"
)


def check_applicable(outputs: list[Transformation]) -> None:
    """Check that each stage of a pipeline can run when the one before it has ended.

    Raises:
        UsageError: If an operator cannot; names it, and says why.
    """
    for item in reachable(outputs):
        if isinstance(item.factory, StageInput):
            continue
        if item.source is not None:
            _refuse(item, _SOURCE)
        _check_operator(item, item.factory())


def check_runnable(origins: list[Origin], kind: type, inputs: int) -> None:
    """Check that a pipeline can run in a barrier stage.

    Args:
        origins: Where its result comes from.
        kind: The class of the sources that DataFrames are.
        inputs: How many DataFrames there are.

    Raises:
        UsageError: If an operator cannot; names it, and says why.
    """
    for item in reachable([origin.transformation for origin in origins]):
        if isinstance(item.factory, kind):
            continue
        if item.source is not None:
            _refuse(item, _SOURCE)
        chooses = getattr(item.factory(), "next_selection", None) is not None
        if chooses and inputs > 1:
            _refuse(
                item,
                "chooses the input that it reads next: the rows of several DataFrames "
                "come one behind the other, and the one that it waits for may be behind "
                "those that it does not read. Leave next_selection() out",
            )


def check_no_sinks(sinks: list[Transformation]) -> None:
    """Check that nothing ends inside the pipeline.

    Raises:
        UsageError: If something does; names it.
    """
    for sink in sinks:
        _refuse(
            sink,
            "is a sink inside the pipeline: a task that Spark repeats would write again. "
            "Return the stream, and write the DataFrame",
        )


def _check_operator(item: Transformation, operator: Operator) -> None:
    if operator.live_clock_need:
        _refuse(
            item,
            f"has {operator.live_clock_need}, and over Spark's shuffle there is no live "
            "clock: a stage runs when the one before it has ended. Use event time, or "
            "run the pipeline embedded",
        )
    if getattr(operator, "next_selection", None) is not None:
        _refuse(
            item,
            "chooses the input that it reads next: over Spark's shuffle the inputs come "
            "in one order. Leave next_selection() out, or run the pipeline embedded",
        )


def _refuse(item: Transformation, problem: str) -> None:
    uid = "" if item.uid is None else f" (uid {item.uid!r})"
    raise UsageError(f"operator {item.name!r}{uid} {problem}.")
